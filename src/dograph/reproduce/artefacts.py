"""Every table and figure of the paper with an outcome, and the comparisons that it is made of.

Artefacts whose runs are the same share a folder, so nothing is trained twice. A name and what the
user changed come to one comparison (`dograph.compare`), or to one for each model size.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dograph.compare.arms import Ask, parse_methods, parse_seeds
from dograph.config import RUN_PRESETS, RunConfig, merge, parse_config, parse_override
from dograph.data.corpus import MANIFEST
from dograph.errors import ConfigError, CorpusError, did_you_mean
from dograph.models.presets import PRESETS
from dograph.plan.lab import default_proxy
from dograph.reproduce.paper import DOWNSTREAM, NUM_DOMAINS, OBJECTIVES
from dograph.train.distributed import pick_device

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
    "eval": {"every": 0, "max_samples_per_source": 128},
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

_EQUAL = (
    "objective={name: precision, q: 0},min_effective_fraction=null,warmup_ratio=0,sampling=uniform"
)
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
    *(
        Artefact(name, f"nine downstream tasks, {what}", f"tab:benchmark_joint{end}", name, **more)
        for name, what, end, more in (
            ("gpt2-small", "GPT-2 Small on SlimPajama", "_3", {}),
            ("gpt2-medium", "GPT-2 Medium on SlimPajama (the main table)", "", {}),
            ("llama-1.1b", "LLaMA-1.1B on the Pile", "_1", _PILE),
            ("llama-3.2-3b", "LLaMA-3.2-3B on the Pile", "_2", _PILE),
        )
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


WHOLE = ""  # the one comparison of an artefact that does not go through model sizes
_OWN = {  # settings that have options of their own
    "mixer": "--methods names the mixers",
    "seed": "--seeds names the seeds",
    "run": "--out names the folder",
    "data.corpus": "Wanted.corpus names the folder",
}


RECIPES = {"slimpajama": "slimpajama-6b", "pile": "pile"}
ABOUT = {
    "slimpajama": "SlimPajama-6B, 6B tokens of seven sources",
    "pile": "the Pile, 17 of its sets",
}
# What to keep of the whole for a small corpus, about how many tokens that gives, and what to keep
# of one training file for as many: SlimPajama-6B has 48 of them, the Pile 30. A smaller slice of
# the Pile might lose Ubuntu IRC, whose texts are few and long.
SLICES = {"slimpajama": ("0.006", "36M", "0.3"), "pile": ("0.0005", "150M", "0.015")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for; None: as the scale has it."""

    artefact: Artefact
    scale: Scale = "mini"
    settings: tuple[str, ...] = ()
    corpus: str | None = None
    seeds: str | None = None
    methods: str | None = None
    sizes: str | None = None
    proxy: tuple[str, ...] = ()
    out: Path | None = None
    lab: Path = Path("runs/lab")
    command: str | None = None

    @property
    def folder(self) -> Path:
        return self.out or self.artefact.folder(self.scale)

    @property
    def corpus_name(self) -> str:
        """The user's folder, else data/slimpajama-mini or data/slimpajama-6b, and so on."""
        text = self.artefact.data
        return self.corpus or f"data/{f'{text}-mini' if self.scale == 'mini' else RECIPES[text]}"


def build_asks(wanted: Wanted) -> dict[str, Ask]:
    """One comparison, or one for each model size under the size's name; no corpus is opened."""
    artefact, sizes = wanted.artefact, wanted.artefact.sizes
    changes = merge({}, *(parse_override(setting) for setting in wanted.settings))
    for name, instead in _OWN.items():
        part, _, own = name.partition(".")
        if part in changes and (not own or own in (changes[part] or {})):
            raise ConfigError(f"{name} is not a setting here: {instead}")
    if not sizes:
        if wanted.sizes is not None:
            raise ConfigError(f"several models are for model-scale; {artefact.name} has one")
        return {WHOLE: _ask(wanted, changes, wanted.folder)}
    if {"preset", "path"} & set(changes.get("model") or {}):
        raise ConfigError(
            f"{artefact.name} goes through models; name them as in "
            f"model.preset={','.join(sizes[wanted.scale])}"
        )
    named = list(sizes[wanted.scale])
    if wanted.sizes is not None:
        named = [name.strip() for name in wanted.sizes.split(",") if name.strip()]
    if not named or len(set(named)) < len(named) or not set(named) <= set(PRESETS):
        raise ConfigError(
            f'model.preset="{wanted.sizes}": give models by name, none of them twice, with commas '
            f"between; allowed: {', '.join(PRESETS)}"
        )
    return {
        size: _ask(wanted, merge(changes, {"model": {"preset": size}}), wanted.folder / size)
        for size in named
    }


def require_corpus(wanted: Wanted) -> None:
    """Refuse a folder that is no corpus, with the command that makes it one."""
    folder, recipe = Path(wanted.corpus_name), RECIPES[wanted.artefact.data]
    if (folder / MANIFEST).is_file():
        return
    command = f"  dograph data prepare {recipe} --tokenizer gpt2"
    how = f"Make it from the Hugging Face hub with:\n{command} --out {folder}"
    if wanted.scale == "mini":
        keep, tokens, shard_keep = SLICES[wanted.artefact.data]
        how = (
            f"A slice of the dataset on the Hugging Face hub will do, about {tokens} tokens:\n"
            f"{command} --keep {keep} --out {folder}\n"
            "All of the dataset is read for that, once. One training file of it is enough, on "
            f"disk:\n  dograph data prepare FILE --recipe {recipe} --tokenizer gpt2 --keep "
            f"{shard_keep} --out {folder}"
        )
    raise CorpusError(
        f"{folder} is not a prepared corpus. {how}\nOr name a corpus that you have: data.corpus=DIR"
    )


def _ask(wanted: Wanted, changes: Mapping[str, Any], out: Path) -> Ask:
    """The baseline first; --methods in the language of `dograph compare`, and our own labels."""
    config = _config(wanted, changes)
    text = spelled_out(wanted.methods or ",".join(wanted.artefact.methods))
    baseline = wanted.artefact.baseline
    if not re.search(rf"(?<![^,]){re.escape(baseline)}=", text):
        text = f"{SPECS[baseline]},{text}"
    try:
        methods = parse_methods(text, config, baseline)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--mixers", "--methods")) from error
    if wanted.artefact.is_probed:
        blind = [method.label for method in methods if not method.is_sketched]
        _require_probes(wanted.artefact.name, config, blind)
    planned = any(method.is_planned for method in methods)
    if wanted.proxy and not planned:
        raise ConfigError("--proxy is for methods that plan, and none is asked for")
    of_proxies = merge({}, *(parse_override(setting) for setting in wanted.proxy))
    default = ",".join(map(str, SEEDS[wanted.scale])) + ","
    return Ask(
        config=config,
        proxy=default_proxy(config, of_proxies) if planned else None,
        methods=tuple(methods),
        seeds=tuple(parse_seeds(wanted.seeds or default, config.seed)),
        budget="tokens",
        replan=False,
        out=out,
        lab=wanted.lab,
        command=wanted.command,
    )


def _config(wanted: Wanted, changes: Mapping[str, Any]) -> RunConfig:
    train = changes.get("train") or {}
    if wanted.scale == "paper":
        values = RUN_PRESETS[wanted.artefact.preset]
    else:
        cuda = pick_device(train.get("device", "auto")).type == "cuda"
        values = mini(dict(wanted.artefact.mini), cuda=cuda)
    own = {
        "seed": SEEDS[wanted.scale][0],
        "run": str(wanted.folder),
        "data": {"corpus": wanted.corpus_name},
    }
    steps, asked = values["train"]["steps"], train.get("steps")
    if isinstance(asked, int) and asked > 0:  # warm-up keeps its share of the run
        own["optim"] = {"warmup_steps": round(values["optim"]["warmup_steps"] * asked / steps)}
    merged = merge(values, own, dict(changes)) | {"mixer": {"name": "uniform"}}
    return parse_config(merged, f"{wanted.artefact.name}, scale {wanted.scale}", changes)


def _require_probes(name: str, config: RunConfig, blind: list[str]) -> None:
    """Refuse runs of which there would be nothing to show, however long they trained."""
    if not config.probe.rows or not config.probe.at:
        raise ConfigError(
            f"{name} is made of probes, and probe.rows={config.probe.rows}, probe.at="
            f"{list(config.probe.at)} takes none; leave both as they are, or set probe.rows to "
            "some hundreds and probe.at to fractions of the run such as [0.0, 0.1, 1.0]"
        )
    if blind:
        every = parse_methods(",".join(SPECS.values()), config, BASELINE)
        able = ", ".join(method.label for method in every if method.is_sketched)
        raise ConfigError(
            f"{name} is made of probes, and runs of {', '.join(blind)} take none: their mixers "
            f"need no sketches. Leave them out of --methods. These can be probed: {able}, and any "
            "mixer of yours that needs sketches. equal draws and weighs as uniform does"
        )
