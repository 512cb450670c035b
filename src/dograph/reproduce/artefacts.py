"""Every table and figure of the paper with an outcome, and which runs it needs.

Artefacts whose runs are the same share a folder, so nothing is trained twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dograph.errors import ConfigError, did_you_mean
from dograph.reproduce.methods import (
    ALL,
    BASELINE,
    DOMAIN_ROWS,
    OBJECTIVE_ROWS,
    PROBED_ROWS,
    SIZE_ROWS,
)
from dograph.reproduce.scales import LLAMA, PROBED, SHORT, Scale

Kind = Literal[
    "downstream",
    "validation-loss",
    "objectives",
    "num-domains",
    "model-scale",
    "gradient-pca",
    "clusters",
    "cost",
    "balance",
]
ROOT = Path("reproduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One table or figure."""

    name: str
    line: str  # what it shows
    where: str  # its label in the paper
    kind: Kind
    preset: str  # the paper's run
    home: Mapping[Scale, str]  # folder of its runs
    methods: tuple[str, ...] = ALL
    baseline: str = BASELINE
    mini: Mapping[str, Any] = field(default_factory=dict)  # on top of scales.MINI
    data: Literal["slimpajama", "pile"] = "slimpajama"
    sizes: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)  # models to go through
    picture: bool = False  # the paper prints a picture only

    @property
    def is_probed(self) -> bool:
        """Whether it is made of probes."""
        return self.kind in ("gradient-pca", "clusters")

    def folder(self, scale: Scale) -> Path:
        return ROOT / scale / self.home[scale]


def _benchmark(name: str, line: str, where: str, **own: Any) -> Artefact:
    return Artefact(
        name=name, line=line, where=where, kind="downstream", preset=f"paper-{name}", **own
    )


_ARTEFACTS = (
    _benchmark(
        "gpt2-small",
        "nine downstream tasks, GPT-2 Small on SlimPajama",
        "tab:benchmark_joint_3",
        home={"mini": "methods", "paper": "gpt2-small"},
    ),
    _benchmark(
        "gpt2-medium",
        "nine downstream tasks, GPT-2 Medium on SlimPajama (the main table)",
        "tab:benchmark_joint",
        home={"mini": "methods", "paper": "gpt2-medium"},
    ),
    _benchmark(
        "llama-1.1b",
        "nine downstream tasks, LLaMA-1.1B on the Pile",
        "tab:benchmark_joint_1",
        home={"mini": "llama", "paper": "llama-1.1b"},
        mini=LLAMA,
        data="pile",
    ),
    _benchmark(
        "llama-3.2-3b",
        "nine downstream tasks, LLaMA-3.2-3B on the Pile",
        "tab:benchmark_joint_2",
        home={"mini": "llama", "paper": "llama-3.2-3b"},
        mini=LLAMA,
        data="pile",
    ),
    Artefact(
        name="validation-loss",
        line="validation loss of every method",
        where="tab:pretrain_results",
        kind="validation-loss",
        preset="paper-gpt2-medium",
        home={"mini": "methods", "paper": "gpt2-medium"},
    ),
    Artefact(
        name="objectives",
        line="the four objectives: loss, complexity, milliseconds of a solve",
        where="tab:opt_objectives",
        kind="objectives",
        preset="paper-gpt2-medium",
        home={"mini": "objectives", "paper": "objectives"},
        methods=OBJECTIVE_ROWS,
        mini=SHORT,
    ),
    Artefact(
        name="num-domains",
        line="validation loss at m = 7, 9, 11, 13, 15 domains",
        where="fig:cluster_granularity",
        kind="num-domains",
        preset="paper-gpt2-medium",
        home={"mini": "num-domains", "paper": "num-domains"},
        methods=DOMAIN_ROWS,
        mini=SHORT,
        picture=True,
    ),
    Artefact(
        name="model-scale",
        line="validation loss by model size",
        where="fig:domain_bias",
        kind="model-scale",
        preset="paper-gpt2-medium",
        home={"mini": "model-scale", "paper": "model-scale"},
        methods=SIZE_ROWS,
        sizes={
            "mini": ("gpt2-proxy", "gpt2-mini", "gpt2-small"),
            "paper": ("gpt2-mini", "gpt2-small", "gpt2-medium"),
        },
        picture=True,
    ),
    Artefact(
        name="gradient-pca",
        line="gradients of the sources over training: PCA, separation, NMI (Figure 1)",
        where="fig:domain_evolution",
        kind="gradient-pca",
        preset="paper-gpt2-mini",
        home={"mini": "probes", "paper": "probes"},
        methods=PROBED_ROWS,
        baseline="equal",
        mini=SHORT | PROBED,
        picture=True,
    ),
    Artefact(
        name="clusters",
        line="what 11 domains are made of, early and late",
        where="fig:model_centric_domains",
        kind="clusters",
        preset="paper-gpt2-mini",
        home={"mini": "probes", "paper": "probes"},
        methods=PROBED_ROWS,
        baseline="equal",
        mini=SHORT | PROBED,
        picture=True,
    ),
    Artefact(
        name="cost",
        line="seconds and FLOPs of every method, plans counted",
        where="fig:efficiency_h200",
        kind="cost",
        preset="paper-gpt2-mini",
        home={"mini": "methods", "paper": "gpt2-mini"},
        picture=True,
    ),
    Artefact(
        name="balance",
        line="how far apart the sources' losses are, by method",
        where="Section 1 and Section 3.2, in words",
        kind="balance",
        preset="paper-gpt2-medium",
        home={"mini": "methods", "paper": "gpt2-medium"},
    ),
)
ARTEFACTS: dict[str, Artefact] = {artefact.name: artefact for artefact in _ARTEFACTS}


def find_artefact(name: str) -> Artefact:
    if name not in ARTEFACTS:
        raise ConfigError(
            f'there is no table or figure "{name}" (`dograph reproduce` lists them); '
            f"{did_you_mean(name, ARTEFACTS)}"
        )
    return ARTEFACTS[name]
