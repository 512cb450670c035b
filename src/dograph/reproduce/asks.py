"""From a name and what the user changed to the comparisons that have to be made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dograph.compare.arms import Ask, parse_methods, parse_seeds
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
    "data.corpus": "--corpus names the folder",
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
            raise ConfigError(f"--sizes is for model-scale; {artefact.name} has one model")
        return {WHOLE: _ask(wanted, changes, wanted.folder)}
    if {"preset", "path"} & set(changes.get("model") or {}):
        raise ConfigError(
            f"{artefact.name} goes through models; name them with --sizes, as in "
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
        f"{folder} is not a prepared corpus. {how}\nOr name a corpus that you have: --corpus DIR"
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


# Settings that change numbers are listed, but for those that have a line of their own.
_PARTS = ("data", "model", "sketch", "optim", "train", "eval")
_TOLD = {
    *("data.corpus", "data.seq_len", "data.warn_epochs", "model.preset", "sketch.dim"),
    *("sketch.projection", "train.steps", "train.batch_size", "train.device"),
    *("train.micro_batch_size", "train.activation_checkpointing", "eval.every"),
}


def differences(study: Study) -> list[str]:
    """What differs between these runs and the paper's, a line each, from the settings."""
    artefact, ask = study.artefact, next(iter(study.asks.values()))
    ours, theirs = ask.config, resolve_config(artefact.preset, [])
    if artefact.sizes:
        models = ", ".join(_model(one.config) for one in study.asks.values())
        lines = [f"models: {models}; the paper: GPT-2 sizes that its figure does not name"]
    else:
        same = ours.model.preset == theirs.model.preset
        lines = [f"model: {_beside(_model(ours), None if same else _model(theirs))}"]
    runs = [
        f"{config.train.steps:,} steps of {config.train.batch_size} x {config.data.seq_len} = "
        f"{_short(config.tokens)} tokens"
        for config in (ours, theirs)
    ]
    lines.append(f"a run: {_beside(runs[0], None if runs[0] == runs[1] else runs[1])}")
    corpus = next(iter(study.findings.values())).corpus
    part = "20 % of " if artefact.is_probed else ""
    lines.append(
        f"corpus: {corpus.folder}, {_short(sum(corpus.tokens.values()))} tokens of "
        f"{len(corpus.tokens)} sources; paper: {part}{ABOUT[artefact.data]}. Unless it is the "
        "same text, levels do not compare; differences between methods are what to look at"
    )
    here, there = (config.model_dump(mode="json") for config in (ours, theirs))
    changed = []
    for name in (f"{part}.{name}" for part in _PARTS for name in here[part]):
        part, _, own = name.partition(".")
        pair = here[part][own], there[part][own]
        if name not in _TOLD and pair[0] != pair[1]:
            told = [f"{value:g}" if isinstance(value, float) else str(value) for value in pair]
            changed.append(f"{name} {told[0]} (the paper's preset {told[1]})")
    if changed:
        lines.append(f"settings: {', '.join(changed)}")
    numbers = ", ".join(map(str, ask.seeds))
    lines.append(f"seeds: {len(ask.seeds)} ({numbers}); the paper does not say how many it has")
    lines.append(
        "sampling: every source alike but for natural and for methods that plan; the paper says "
        "no more of it than Uniform, and its baselines' code draws like this"
    )
    if ask.proxy is not None:
        model, steps = ask.proxy.model, ask.proxy.train.steps
        lines.append(
            f"plans: proxies are {model.preset or model.path} of {steps:,} steps; the paper does "
            "not say what its were, and one plan serves all seeds"
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


def _beside(ours: str, theirs: str | None) -> str:
    return f"{ours}, as in the paper" if theirs is None else f"{ours}; paper: {theirs}"


def _model(config: RunConfig) -> str:
    preset = config.model.preset
    if preset is None:
        return str(config.model.path)
    return f"{preset} ({PRESETS[preset].layers} layers, {PRESETS[preset].width} wide)"


def _short(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
