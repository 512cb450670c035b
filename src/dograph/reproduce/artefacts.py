"""The paper's tables and figures as data: the runs that each needs, their scale and their corpus.

Artefacts that need the same runs share a folder, so nothing is trained twice. An artefact and the
user's options give one comparison (`dograph.compare`), or one per model size. The settings of a
mini run are plain nested values, so that scripts can use the same runs:

    from dograph.reproduce.artefacts import mini
    config = parse_config(mini({"data": {"corpus": "data/mine"}}), "mine")
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dograph.compare.arms import Ask, parse_methods, parse_seeds
from dograph.config import RUN_PRESETS, RunConfig, merge, parse_config, parse_override
from dograph.data.corpus import MANIFEST
from dograph.errors import ConfigError, CorpusError, require_known
from dograph.models.presets import PRESETS
from dograph.plan.lab import default_proxy
from dograph.reproduce.paper import DOWNSTREAM, NUM_DOMAINS, OBJECTIVES
from dograph.train.distributed import pick_device

Scale = Literal["mini", "paper"]  # minutes per run on one GPU, or the paper's own runs

# 700 steps of 24,576 tokens, 17.2M in total. Common betas: torch's default of 0.999 would average
# over more steps than such a run has warm-up.
_ADAMW = {"betas": [0.9, 0.95], "weight_decay": 0.01, "clip_norm": 1.0}
MINI: dict[str, Any] = {
    "data": {"seq_len": 512},
    "model": {"preset": "gpt2-mini"},
    "optim": {"lr": 5e-4, "lr_end": 1e-4, "warmup_steps": 100} | _ADAMW,
    "train": {"steps": 700, "batch_size": 48},
    "eval": {"every": 0, "max_samples_per_source": 128},
    "probe": {"rows": 0},
    "checkpoint": {"every": 200, "keep": 2},
}
ON_CUDA: dict[str, Any] = {"train": {"dtype": "bfloat16", "compile": True}}
SHORT: dict[str, Any] = {"train": {"steps": 400}}
PROBED: dict[str, Any] = {"probe": {"rows": 512, "at": [0.0, 0.01, 0.03, 0.1, 0.3, 1.0]}}

SEEDS: dict[Scale, tuple[int, ...]] = {
    "mini": (10, 11, 12, 13, 14),
    "paper": (42,),  # the preset's own: the paper does not say how many
}


def mini(*parts: dict[str, Any], cuda: bool = False) -> dict[str, Any]:
    """The settings of a mini run with the changes in `parts`; on a GPU in bfloat16 and compiled."""
    return merge(MINI, ON_CUDA if cuda else {}, *parts)


# The methods, in the syntax of `dograph compare --mixers`. Sources are drawn uniformly (the paper's
# Uniform, and the sampling of its Dynamic Loss-Based and DoGraph); `natural` draws by tokens, and
# planned methods draw their planned mixture. `natural` and `inverse-norm` are not in the paper: a
# gain over Uniform that comes from drawing text as it is, or from normalizing each sample's
# gradient, needs no domains.
BASELINE = "uniform"
LEAD = ("natural", "inverse-norm")  # the first rows of a table
ALL = (
    *(*LEAD, BASELINE, "dynamic-loss", "doremi", "doge", "regmix", "mixing-law"),
    *("dograph-paper", "dograph"),
)
_PAPER = "recipe=paper,sampling=uniform"
_MIXERS = {  # of the labels that are not the name of a mixer without options
    "inverse-norm": "dograph[recipe=inverse-norm,sampling=uniform]",
    "dynamic-loss": "dynamic-loss[sampling=uniform]",
    "dograph-paper": f"dograph[{_PAPER}]",
    "dograph": "dograph[sampling=uniform]",
    # Equal weights, as in `uniform`, but with sketches, so that the run can be probed.
    "equal": "dograph[objective={name: precision, q: 0},min_effective_fraction=null,"
    "warmup_ratio=0,sampling=uniform]",
}
_OBJECTIVES = {name: f"dograph[{_PAPER},objective={name}]" for name in OBJECTIVES}
_DOMAINS = {f"m{m}": f"dograph[{_PAPER},num_domains={m}]" for m in NUM_DOMAINS}
_MIXERS |= _OBJECTIVES | _DOMAINS
SPECS = {label: f"{label}={_MIXERS.get(label, label)}" for label in (*ALL, *_MIXERS)}


@dataclass(frozen=True, slots=True)
class Artefact:
    name: str
    line: str  # what it shows
    where: str  # its label in the paper
    model: str = "gpt2-medium"  # of the paper's run
    runs: str = "methods"  # folder of its runs, shared by artefacts with the same runs
    methods: tuple[str, ...] = ALL
    baseline: str = BASELINE
    mini: Mapping[str, Any] = field(default_factory=dict)  # changes to MINI
    data: Literal["slimpajama", "pile"] = "slimpajama"
    sizes: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)  # models to train

    @property
    def kind(self) -> str:
        return "downstream" if self.name in DOWNSTREAM else self.name

    @property
    def is_probed(self) -> bool:
        return self.runs == "probes"

    def folder(self, scale: Scale) -> Path:
        """At the paper's scale, tables of all methods need other runs for each model."""
        by_model = scale == "paper" and self.methods == ALL
        return Path("reproduce", scale, self.model if by_model else self.runs)


_LLAMA: dict[str, Any] = {
    "runs": "llama",
    "mini": {"model": {"preset": "llama-mini"}},
    "data": "pile",
}
_PROBES: dict[str, Any] = {
    "model": "gpt2-mini",
    "runs": "probes",
    "methods": ("equal", "dograph-paper"),
    "baseline": "equal",
    "mini": SHORT | PROBED,
}
_SIZES = {
    "mini": ("gpt2-proxy", "gpt2-mini", "gpt2-small"),
    "paper": ("gpt2-mini", "gpt2-small", "gpt2-medium"),
}
_SOME = (*LEAD, BASELINE, "regmix", "dograph-paper", "dograph")
_SETTINGS: dict[str, dict[str, Any]] = {  # where they are not the defaults
    "gpt2-small": {"model": "gpt2-small"},
    "llama-1.1b": {"model": "llama-1.1b"} | _LLAMA,
    "llama-3.2-3b": {"model": "llama-3.2-3b"} | _LLAMA,
    "objectives": {"methods": (*LEAD, BASELINE, *_OBJECTIVES), "mini": SHORT, "runs": "objectives"},
    "num-domains": {"methods": (*LEAD, BASELINE, *_DOMAINS), "mini": SHORT, "runs": "num-domains"},
    "model-scale": {"methods": _SOME, "sizes": _SIZES, "runs": "model-scale"},
    "gradient-pca": _PROBES,
    "clusters": _PROBES,
    "cost": {"model": "gpt2-mini"},
}
_TASKS = "nine downstream tasks"
_ROWS = {  # what it shows, and its label in the paper
    "gpt2-small": (f"{_TASKS}, GPT-2 Small on SlimPajama", "tab:benchmark_joint_3"),
    "gpt2-medium": (f"{_TASKS}, GPT-2 Medium on SlimPajama (main table)", "tab:benchmark_joint"),
    "llama-1.1b": (f"{_TASKS}, LLaMA-1.1B on the Pile", "tab:benchmark_joint_1"),
    "llama-3.2-3b": (f"{_TASKS}, LLaMA-3.2-3B on the Pile", "tab:benchmark_joint_2"),
    "validation-loss": ("validation loss of every method", "tab:pretrain_results"),
    "objectives": ("validation loss with each of the four objectives", "tab:opt_objectives"),
    "num-domains": ("validation loss with m = 7, 9, 11, 13, 15 domains", "fig:cluster_granularity"),
    "model-scale": ("validation loss by model size", "fig:domain_bias"),
    "gradient-pca": ("do sources merge in gradient space? (Figure 1)", "fig:domain_evolution"),
    "clusters": ("the sources in 11 domains, early and late", "fig:model_centric_domains"),
    "cost": ("seconds and FLOPs of every method, including plans", "fig:efficiency_h200"),
}
ARTEFACTS: dict[str, Artefact] = {
    name: Artefact(name, line, where, **_SETTINGS.get(name, {}))
    for name, (line, where) in _ROWS.items()
}


def find_artefact(name: str) -> Artefact:
    what = f'there is no table or figure "{name}" (`dograph reproduce` lists them)'
    require_known(name, ARTEFACTS, what)
    return ARTEFACTS[name]


_OWN_OPTIONS = {  # settings that have options of their own
    "mixer": "--methods names the mixers",
    "seed": "--seeds names the seeds",
    "run": "--out names the folder",
}


class Dataset(NamedTuple):
    """A dataset on the hub, and how to cut a small corpus from it."""

    recipe: str
    about: str
    keep: str  # fraction of the documents for a small corpus
    tokens: str  # that this gives


# A smaller part of the Pile might lose Ubuntu IRC, which has few and long documents.
DATASETS = {
    "slimpajama": Dataset(
        "slimpajama-6b", "SlimPajama-6B, 6B tokens of seven sources", "0.006", "36M"
    ),
    "pile": Dataset("pile", "the Pile, 17 of its sets", "0.0005", "150M"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The user's request; None: the default of the scale."""

    artefact: Artefact
    scale: Scale = "mini"
    settings: tuple[str, ...] = ()  # of every run; model.preset may name several model sizes
    seeds: str | None = None
    methods: str | None = None
    proxy: tuple[str, ...] = ()
    out: Path | None = None
    lab: Path = Path("runs/lab")
    command: str | None = None

    @property
    def folder(self) -> Path:
        return self.out or self.artefact.folder(self.scale)

    @property
    def changes(self) -> dict[str, Any]:
        """The settings as nested values."""
        return merge({}, *map(parse_override, self.settings))

    @property
    def named_corpus(self) -> str | None:
        return (self.changes.get("data") or {}).get("corpus")

    @property
    def corpus_name(self) -> str:
        """The user's corpus, or for example data/slimpajama-mini or data/slimpajama-6b."""
        data = self.artefact.data
        default = f"{data}-mini" if self.scale == "mini" else DATASETS[data].recipe
        return self.named_corpus or f"data/{default}"


def require_corpus(wanted: Wanted) -> None:
    """Refuse a folder that is not a corpus, with the command that prepares it."""
    folder, data = Path(wanted.corpus_name), DATASETS[wanted.artefact.data]
    if (folder / MANIFEST).is_file():
        return
    how, keep = "Prepare it from the Hugging Face hub", ""
    if wanted.scale == "mini":
        how, keep = f"{how}, about {data.tokens} tokens of it", f" --keep {data.keep}"
    raise CorpusError(
        f"{folder} is not a prepared corpus. {how}:\n  dograph data prepare {data.recipe} "
        f"--tokenizer gpt2{keep} --out {folder}\nOr use yours: data.corpus=DIR (docs/reproduce.md)"
    )


def build_asks(wanted: Wanted) -> dict[str, Ask]:
    """One comparison (named ""), or one per model size; does not open the corpus."""
    if not wanted.artefact.sizes:
        return {"": _build_ask(wanted)}
    given = (wanted.changes.get("model") or {}).get("preset")
    asks = {}
    for size in str(given).split(",") if given else wanted.artefact.sizes[wanted.scale]:
        require_known(size, PRESETS, f'model.preset="{given}" is not known')
        settings = (*wanted.settings, f"model.preset={size}")
        asks[size] = _build_ask(replace(wanted, settings=settings, out=wanted.folder / size))
    return asks


def _build_ask(wanted: Wanted) -> Ask:
    """The comparison; --methods may use our labels and the syntax of `dograph compare`."""
    for name, instead in _OWN_OPTIONS.items():
        if name in wanted.changes:
            raise ConfigError(f"{name} cannot be set here: {instead}")
    config, artefact = _config(wanted), wanted.artefact
    text = wanted.methods or ",".join(artefact.methods)
    try:
        methods = parse_methods(text, config, artefact.baseline, SPECS)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--mixers", "--methods")) from error
    if artefact.is_probed and not (config.probe.rows and config.probe.at):  # none at the end
        raise ConfigError(
            f"{artefact.name} needs probes, and probe.rows={config.probe.rows}, probe.at="
            f"{list(config.probe.at)} takes none; leave both at their defaults, or set probe.rows "
            "to some hundreds and probe.at to fractions of the run such as [0.0, 0.1, 1.0]"
        )
    unprobed = [method.label for method in methods if not method.is_sketched]
    if artefact.is_probed and unprobed:
        every = parse_methods(",".join(SPECS), config, BASELINE, SPECS)
        able = ", ".join(method.label for method in every if method.is_sketched)
        raise ConfigError(
            f"{artefact.name} needs probes, and runs of {', '.join(unprobed)} take none: their "
            "mixers do not need sketches. Leave them out of --methods. These can be probed: "
            f"{able}, and your own mixers that need sketches. equal samples and weighs as uniform"
        )
    planned = any(method.is_planned for method in methods)
    if wanted.proxy and not planned:
        raise ConfigError("--proxy is for planned methods, and --methods names none")
    proxy_changes = merge({}, *map(parse_override, wanted.proxy))
    seeds = wanted.seeds or ",".join(map(str, SEEDS[wanted.scale])) + ","
    return Ask(
        config=config,
        proxy=default_proxy(config, proxy_changes) if planned else None,
        methods=tuple(methods),
        seeds=tuple(parse_seeds(seeds, config.seed)),
        budget="tokens",
        replan=False,
        out=wanted.folder,
        lab=wanted.lab,
        command=wanted.command,
    )


def _config(wanted: Wanted) -> RunConfig:
    changes = wanted.changes
    train = changes.get("train") or {}
    if wanted.scale == "paper":
        values = RUN_PRESETS[f"paper-{wanted.artefact.model}"]
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
    merged = merge(values, own, changes) | {"mixer": {"name": "uniform"}}
    return parse_config(merged, f"{wanted.artefact.name}, scale {wanted.scale}", changes)
