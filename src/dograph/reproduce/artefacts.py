"""Every table and figure of the paper with an outcome, and which runs it needs.

Artefacts whose runs are the same share a folder, so nothing is trained twice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dograph.config import merge
from dograph.errors import ConfigError, did_you_mean
from dograph.reproduce.paper import DOWNSTREAM, NUM_DOMAINS, OBJECTIVES

# Two scales: the paper's own runs, and runs of minutes on one GPU. `MINI` is plain nested values,
# so that others can use the same runs:
#
#     from dograph.reproduce.artefacts import mini
#     config = parse_config(mini({"data": {"corpus": "data/mine"}}), "mine")

Scale = Literal["mini", "paper"]

# 700 steps of 24,576 tokens, 17.2M in all. betas are those of recent practice: 0.999, torch's
# default, averages over more steps than such a run has warm-up.
MINI: dict[str, Any] = {
    "data": {"seq_len": 512},
    "model": {"preset": "gpt2-mini"},
    "optim": {
        "lr": 5e-4,
        "lr_end": 1e-4,
        "warmup_steps": 100,
        "betas": [0.9, 0.95],
        "weight_decay": 0.01,
        "clip_norm": 1.0,
    },
    "train": {"steps": 700, "batch_size": 48},
    "eval": {"every": 0, "max_blocks": 128},
    "probe": {"rows": 0},
    "checkpoint": {"every": 200, "keep": 1},
}
ON_CUDA: dict[str, Any] = {"train": {"dtype": "bfloat16", "compile": True}}
SHORT: dict[str, Any] = {"train": {"steps": 400}}
PROBED: dict[str, Any] = {"probe": {"rows": 512, "at": [0.0, 0.01, 0.03, 0.1, 0.3, 1.0]}}

SEEDS: dict[Scale, tuple[int, ...]] = {
    "mini": (10, 11, 12, 13, 14),
    "paper": (42,),  # the preset's own: the paper does not say how many
}


def mini(*parts: dict[str, Any], cuda: bool = False) -> dict[str, Any]:
    """The settings of a mini run, with `parts` on top; on a GPU in bfloat16 and compiled."""
    return merge(MINI, ON_CUDA if cuda else {}, *parts)


# The methods of the paper's protocol, in the language of `dograph compare --mixers`.
#
# Every source is drawn alike (the paper's Uniform, and what its Dynamic Loss-Based and DoGraph
# draw); `natural` draws by tokens, and those that plan draw what they planned. `natural` and
# `inverse-norm` are not in the paper: what is gained over Uniform by drawing as the text comes,
# or by counting each sample's gradient by its direction alone, needs no domains.

BASELINE = "uniform"
LEAD = ("natural", "inverse-norm")  # rows that come first

_EQUAL = "objective={name: precision, q: 0},effective_floor=null,warmup=0,sampling=uniform"
_PAPER = "recipe=paper,sampling=uniform"
PROTOCOL = {
    "natural": "natural=natural",
    "inverse-norm": "inverse-norm=dograph[recipe=inverse-norm,sampling=uniform]",
    "uniform": "uniform=uniform",
    "dynamic-loss": "dynamic-loss=dynamic-loss[sampling=uniform]",
    "doremi": "doremi=doremi",
    "doge": "doge=doge",
    "regmix": "regmix=regmix",
    "mixing-law": "mixing-law=mixing-law",
    "dograph-paper": f"dograph-paper=dograph[{_PAPER}]",
    "dograph": "dograph=dograph[sampling=uniform]",
}
# All samples alike, as in `uniform`, but sketched, so that the run is probed.
_PROBED = {"equal": f"equal=dograph[{_EQUAL}]"}
_OBJECTIVES = {name: f"{name}=dograph[{_PAPER},objective={name}]" for name in OBJECTIVES}
_DOMAINS = {f"m{m}": f"m{m}=dograph[{_PAPER},num_domains={m}]" for m in NUM_DOMAINS}
SPECS = PROTOCOL | _PROBED | _OBJECTIVES | _DOMAINS
ALL = tuple(PROTOCOL)


def spelled_out(text: str) -> str:
    """The user's --methods, with every label of ours replaced by what it stands for."""
    names = "|".join(map(re.escape, SPECS))
    return re.sub(rf"(?<![^,])\s*({names})\s*(?![^,])", lambda found: SPECS[found[1]], text)


@dataclass(frozen=True, slots=True)
class Artefact:
    """One table or figure."""

    name: str
    line: str  # what it shows
    where: str  # its label in the paper
    model: str = "gpt2-medium"  # of the paper's run
    runs: str = "methods"  # folder of its runs; tables of the same runs share it
    methods: tuple[str, ...] = ALL
    baseline: str = BASELINE
    mini: Mapping[str, Any] = field(default_factory=dict)  # on top of MINI
    data: Literal["slimpajama", "pile"] = "slimpajama"
    sizes: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)  # models to go through
    picture: bool = False  # the paper prints a picture only

    @property
    def kind(self) -> str:
        return "downstream" if self.name in DOWNSTREAM else self.name

    @property
    def preset(self) -> str:
        """The paper's run."""
        return f"paper-{self.model}"

    @property
    def is_probed(self) -> bool:
        """Whether it is made of probes."""
        return self.runs == "probes"

    def folder(self, scale: Scale) -> Path:
        """At the paper's scale, tables of all methods have other runs for each model."""
        by_model = scale == "paper" and self.methods == ALL
        return Path("reproduce", scale, self.model if by_model else self.runs)


_SIZES: dict[Scale, tuple[str, ...]] = {
    "mini": ("gpt2-proxy", "gpt2-mini", "gpt2-small"),
    "paper": ("gpt2-mini", "gpt2-small", "gpt2-medium"),
}
_LLAMA = {"model": {"preset": "llama-mini"}}
_PILE: dict[str, Any] = {"runs": "llama", "mini": _LLAMA, "data": "pile"}
_SEEN: dict[str, Any] = {
    "model": "gpt2-mini",
    "runs": "probes",
    "methods": ("equal", "dograph-paper"),
    "baseline": "equal",
    "mini": SHORT | PROBED,
    "picture": True,
}
_ARTEFACTS = (
    Artefact(
        "gpt2-small",
        "nine downstream tasks, GPT-2 Small on SlimPajama",
        "tab:benchmark_joint_3",
        "gpt2-small",
    ),
    Artefact(
        "gpt2-medium",
        "nine downstream tasks, GPT-2 Medium on SlimPajama (the main table)",
        "tab:benchmark_joint",
    ),
    Artefact(
        "llama-1.1b",
        "nine downstream tasks, LLaMA-1.1B on the Pile",
        "tab:benchmark_joint_1",
        "llama-1.1b",
        **_PILE,
    ),
    Artefact(
        "llama-3.2-3b",
        "nine downstream tasks, LLaMA-3.2-3B on the Pile",
        "tab:benchmark_joint_2",
        "llama-3.2-3b",
        **_PILE,
    ),
    Artefact("validation-loss", "validation loss of every method", "tab:pretrain_results"),
    Artefact(
        "objectives",
        "the four objectives: loss, complexity, milliseconds of a solve",
        "tab:opt_objectives",
        runs="objectives",
        methods=(*LEAD, BASELINE, *_OBJECTIVES),
        mini=SHORT,
    ),
    Artefact(
        "num-domains",
        "validation loss at m = 7, 9, 11, 13, 15 domains",
        "fig:cluster_granularity",
        runs="num-domains",
        methods=(*LEAD, BASELINE, *_DOMAINS),
        mini=SHORT,
        picture=True,
    ),
    Artefact(
        "model-scale",
        "validation loss by model size",
        "fig:domain_bias",
        runs="model-scale",
        methods=(*LEAD, BASELINE, "regmix", "dograph-paper", "dograph"),
        sizes=_SIZES,
        picture=True,
    ),
    Artefact(
        "gradient-pca",
        "gradients of the sources over training: PCA, separation, NMI (Figure 1)",
        "fig:domain_evolution",
        **_SEEN,
    ),
    Artefact(
        "clusters",
        "what 11 domains are made of, early and late",
        "fig:model_centric_domains",
        **_SEEN,
    ),
    Artefact(
        "cost",
        "seconds and FLOPs of every method, plans counted",
        "fig:efficiency_h200",
        "gpt2-mini",
        picture=True,
    ),
    Artefact(
        "balance",
        "how far apart the sources' losses are, by method",
        "Section 1 and Section 3.2, in words",
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
