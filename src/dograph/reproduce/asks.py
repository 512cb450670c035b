"""From a name and what the user changed to the comparisons that have to be made."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.compare.arms import Ask, ComparedMethod, parse_methods, parse_seeds
from dograph.config import (
    RUN_PRESETS,
    RunConfig,
    merge,
    parse_config,
    parse_override,
    resolve_config,
)
from dograph.data.corpus import MANIFEST
from dograph.errors import ConfigError, CorpusError
from dograph.models.presets import PRESETS
from dograph.plan.lab import default_proxy
from dograph.reproduce.artefacts import BASELINE, SEEDS, SPECS, Artefact, Scale, mini, spelled_out
from dograph.reproduce.verdicts import Study
from dograph.train.distributed import pick_device

WHOLE = ""  # the one comparison of an artefact that does not go through model sizes
_OWN = {  # settings that have options of their own
    "mixer": "--methods names the mixers",
    "seed": "--seeds names the seeds",
    "run": "--out names the folder",
}
CORPORA: dict[tuple[str, Scale], str] = {
    ("slimpajama", "mini"): "data/slimpajama-mini",
    ("slimpajama", "paper"): "data/slimpajama-6b",
    ("pile", "mini"): "data/pile-mini",
    ("pile", "paper"): "data/pile",
}
# What to keep of the whole for a small corpus, about how many tokens that gives, and what to keep
# of one training file for as many: SlimPajama-6B has 48 of them, the Pile 30. A smaller slice of
# the Pile might lose Ubuntu IRC, whose texts are few and long.
SLICES: dict[str, tuple[str, str, str]] = {
    "slimpajama": ("0.006", "36M", "0.3"),
    "pile": ("0.0005", "150M", "0.015"),
}


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
        return self.corpus or CORPORA[self.artefact.data, self.scale]


def build_asks(wanted: Wanted) -> dict[str, Ask]:
    """One comparison, or one for each model size under the size's name; no corpus is opened."""
    changes = merge({}, *(parse_override(setting) for setting in wanted.settings))
    for name, instead in _OWN.items():
        if name in changes:
            raise ConfigError(f"{name} is not a setting here: {instead}")
    if "corpus" in (changes.get("data") or {}):
        raise ConfigError("data.corpus is not a setting here: --corpus names the folder")
    sizes = wanted.artefact.sizes
    if not sizes:
        if wanted.sizes is not None:
            raise ConfigError(f"--sizes is for model-scale; {wanted.artefact.name} has one model")
        return {WHOLE: _ask(wanted, changes, wanted.folder)}
    if {"preset", "path"} & set(changes.get("model") or {}):
        raise ConfigError(
            f"{wanted.artefact.name} goes through models; name them with --sizes, as in "
            f"--sizes {','.join(sizes[wanted.scale])}"
        )
    named = list(sizes[wanted.scale])
    if wanted.sizes is not None:
        named = [name.strip() for name in wanted.sizes.split(",") if name.strip()]
    if not named or len(set(named)) < len(named) or not set(named) <= set(PRESETS):
        raise ConfigError(
            f'--sizes "{wanted.sizes}": give models by name, none of them twice, with commas '
            f"between; allowed: {', '.join(PRESETS)}"
        )
    return {
        size: _ask(wanted, merge(changes, {"model": {"preset": size}}), wanted.folder / size)
        for size in named
    }


def require_corpus(wanted: Wanted) -> None:
    """Refuse a folder that is no corpus, with the command that makes it one."""
    folder = Path(wanted.corpus_name)
    if (folder / MANIFEST).is_file():
        return
    recipe = "pile" if wanted.artefact.data == "pile" else "slimpajama-6b"
    if wanted.scale == "mini":
        keep, tokens, shard_keep = SLICES[wanted.artefact.data]
        how = (
            f"A slice of the dataset on the Hugging Face hub will do, about {tokens} tokens:\n"
            f"  dograph data prepare {recipe} --tokenizer gpt2 --keep {keep} --out {folder}\n"
            "All of the dataset is read for that, once. One training file of it is enough, on "
            "disk:\n"
            f"  dograph data prepare FILE --recipe {recipe} --tokenizer gpt2 --keep {shard_keep} "
            f"--out {folder}"
        )
    else:
        how = (
            "Make it from the Hugging Face hub with:\n"
            f"  dograph data prepare {recipe} --tokenizer gpt2 --out {folder}"
        )
    raise CorpusError(
        f"{folder} is not a prepared corpus. {how}\nOr name a corpus that you have: --corpus DIR"
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


def _ask(wanted: Wanted, settings: Mapping[str, Any], out: Path) -> Ask:
    """The baseline first; --methods in the language of `dograph compare`, and our own labels."""
    config = _config(wanted, settings)
    text = spelled_out(wanted.methods or ",".join(wanted.artefact.methods))
    baseline = wanted.artefact.baseline
    if not re.search(rf"(?<![^,]){re.escape(baseline)}=", text):
        text = f"{SPECS[baseline]},{text}"
    try:
        methods = parse_methods(text, config, baseline)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--mixers", "--methods")) from error
    if wanted.artefact.is_probed:
        _require_probes(wanted.artefact.name, config, methods)
    planned = any(method.is_planned for method in methods)
    if wanted.proxy and not planned:
        raise ConfigError("--proxy is for methods that plan, and none is asked for")
    changes = merge({}, *(parse_override(setting) for setting in wanted.proxy))
    default = ",".join(map(str, SEEDS[wanted.scale])) + ","
    return Ask(
        config=config,
        proxy=default_proxy(config, changes) if planned else None,
        methods=tuple(methods),
        seeds=tuple(parse_seeds(wanted.seeds or default, config.seed)),
        budget="tokens",
        replan=False,
        out=out,
        lab=wanted.lab,
        command=wanted.command,
    )


def _require_probes(name: str, config: RunConfig, methods: Sequence[ComparedMethod]) -> None:
    """Refuse runs of which there would be nothing to show, however long they trained."""
    if not config.probe.rows or not config.probe.at:
        raise ConfigError(
            f"{name} is made of probes, and probe.rows={config.probe.rows}, probe.at="
            f"{list(config.probe.at)} takes none; leave both as they are, or set probe.rows to "
            "some hundreds and probe.at to fractions of the run such as [0.0, 0.1, 1.0]"
        )
    if blind := [method.label for method in methods if not method.is_sketched]:
        all_methods = parse_methods(",".join(SPECS.values()), config, BASELINE)
        able = [method.label for method in all_methods if method.is_sketched]
        raise ConfigError(
            f"{name} is made of probes, and runs of {', '.join(blind)} take none: their mixers "
            f"need no sketches. Leave them out of --methods. These can be probed: "
            f"{', '.join(able)}, and any mixer of yours that needs sketches. equal draws and "
            "weighs as uniform does"
        )


# What differs between these runs and the paper's. Settings that change numbers are listed, but for
# those that have a line of their own.
_PARTS = ("data", "model", "sketch", "optim", "train", "eval")
_TOLD = {
    *("data.corpus", "data.seq_len", "data.warn_epochs", "model.preset", "sketch.dim"),
    *("sketch.projection", "train.steps", "train.batch_size", "train.device"),
    *("train.micro_batch_size", "train.activation_checkpointing", "eval.every"),
}
_CORPORA = {
    "slimpajama": "SlimPajama-6B, 6B tokens of seven sources",
    "pile": "the Pile, 17 of its sets",
}


def differences(study: Study) -> list[str]:
    """What differs between these runs and the paper's, a line each, from the settings."""
    artefact, ask = study.artefact, next(iter(study.asks.values()))
    ours, theirs = ask.config, resolve_config(artefact.preset, [])
    models, runs = [_model(one.config) for one in study.asks.values()], [_run(ours), _run(theirs)]
    if artefact.sizes:
        lines = [
            f"models: {', '.join(models)}; the paper: GPT-2 sizes that its figure does not name"
        ]
    else:
        same = ours.model.preset == theirs.model.preset
        told = ", as in the paper" if same else f"; paper: {_model(theirs)}"
        lines = [f"model: {models[0]}{told}"]
    told = ", as in the paper" if runs[0] == runs[1] else f"; paper: {runs[1]}"
    lines.append(f"a run: {runs[0]}{told}")
    corpus = next(iter(study.findings.values())).corpus
    part = "20 % of " if artefact.is_probed else ""
    lines.append(
        f"corpus: {corpus.folder}, {_short(sum(corpus.tokens.values()))} tokens of "
        f"{len(corpus.tokens)} sources; paper: {part}{_CORPORA[artefact.data]}. Unless it is the "
        "same text, levels do not compare; differences between methods are what to look at"
    )
    here, there = ours.model_dump(mode="json"), theirs.model_dump(mode="json")
    changed = [
        f"{part}.{name} {_value(here[part][name])} (the paper's preset {_value(there[part][name])})"
        for part in _PARTS
        for name in here[part]
        if f"{part}.{name}" not in _TOLD and here[part][name] != there[part][name]
    ]
    if changed:
        lines.append(f"settings: {', '.join(changed)}")
    numbers = ", ".join(map(str, ask.seeds))
    lines.append(f"seeds: {len(ask.seeds)} ({numbers}); the paper does not say how many it has")
    lines.append(
        "sampling: every source alike but for natural and for methods that plan; the paper says "
        "no more of it than Uniform, and its baselines' code draws like this"
    )
    if any(method.is_planned for method in ask.methods) and ask.proxy is not None:
        proxy = ask.proxy
        lines.append(
            f"plans: proxies are {proxy.model.preset or proxy.model.path} of {proxy.train.steps:,} "
            "steps; the paper does not say what its were, and one plan serves all seeds"
        )
    if any(method.is_sketched for method in ask.methods):
        lines.append(
            f"sketches: {ours.sketch.dim:,} numbers, {ours.sketch.projection} by layer;"
            " the paper's dense Gaussian of 5,000 columns would fill terabytes"
        )
    if artefact.picture:
        lines.append(
            f"the paper prints a picture only ({artefact.where}): there are no numbers to "
            "set beside ours but those of its text"
        )
    return lines


def _model(config: RunConfig) -> str:
    preset = config.model.preset
    if preset is None:
        return str(config.model.path)
    return f"{preset} ({PRESETS[preset].layers} layers, {PRESETS[preset].width} wide)"


def _run(config: RunConfig) -> str:
    train, length = config.train, config.data.seq_len
    tokens = f"{_short(config.tokens)} tokens"
    return f"{train.steps:,} steps of {train.batch_size} x {length} = {tokens}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
