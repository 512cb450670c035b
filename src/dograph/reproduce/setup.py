"""What differs between these runs and the paper's, a line each."""

from collections.abc import Iterator, Mapping
from typing import Any

from dograph.config import RunConfig
from dograph.models.presets import PRESETS
from dograph.presets import resolve_config
from dograph.reproduce.study import Study

# Settings that change numbers, beside those that have a line of their own.
_PARTS = ("data", "model", "sketch", "optim", "train", "eval")
_TOLD = {
    "data.corpus",
    "data.seq_len",
    "data.warn_epochs",
    "model.preset",
    "sketch.dim",
    "sketch.projection",
    "train.steps",
    "train.batch_size",
    "train.device",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "eval.every",
}
_CORPORA = {
    "slimpajama": "SlimPajama-6B, 6B tokens of seven sources",
    "pile": "the Pile, 17 of its sets",
}


def differences(study: Study) -> list[str]:
    """Lines for the reader, from the settings themselves."""
    ask = next(iter(study.asks.values()))
    theirs = resolve_config(study.artefact.preset, [])
    findings = next(iter(study.findings.values()))
    lines = [_models(study, theirs), _tokens(ask.config, theirs), _corpus(study, findings)]
    lines += _settings(ask.config, theirs)
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
    if any(method.mixer["name"] == "dograph" for method in ask.methods):
        lines.append(
            f"sketches: {ask.config.sketch.dim:,} numbers, {ask.config.sketch.projection} by layer;"
            " the paper's dense Gaussian of 5,000 columns would fill terabytes"
        )
    if study.artefact.picture:
        lines.append(
            f"the paper prints a picture only ({study.artefact.where}): there are no numbers to "
            "set beside ours but those of its text"
        )
    return lines


def _models(study: Study, theirs: RunConfig) -> str:
    names = [_model(ask.config) for ask in study.asks.values()]
    if study.artefact.sizes:
        return f"models: {', '.join(names)}; the paper: GPT-2 sizes that its figure does not name"
    same = study.asks[next(iter(study.asks))].config.model.preset == theirs.model.preset
    return f"model: {names[0]}" + (", as in the paper" if same else f"; paper: {_model(theirs)}")


def _model(config: RunConfig) -> str:
    preset = config.model.preset
    if preset is None:
        return str(config.model.path)
    shape = PRESETS[preset]
    return f"{preset} ({shape.layers} layers, {shape.width} wide)"


def _tokens(ours: RunConfig, theirs: RunConfig) -> str:
    def told(config: RunConfig) -> str:
        train, length, tokens = config.train, config.data.seq_len, _short(config.tokens)
        return f"{train.steps:,} steps of {train.batch_size} x {length} = {tokens} tokens"

    if told(ours) == told(theirs):
        return f"a run: {told(ours)}, as in the paper"
    return f"a run: {told(ours)}; paper: {told(theirs)}"


def _corpus(study: Study, findings: Mapping[str, Any]) -> str:
    corpus = findings["corpus"]
    tokens = sum(corpus["tokens"].values())
    part = "20 % of " if study.artefact.is_probed else ""
    return (
        f"corpus: {corpus['folder']}, {_short(tokens)} tokens of {len(corpus['tokens'])} sources; "
        f"paper: {part}{_CORPORA[study.artefact.data]}. Unless it is the same text, levels do not "
        "compare; differences between methods are what to look at"
    )


def _settings(ours: RunConfig, theirs: RunConfig) -> Iterator[str]:
    """Settings that the two runs do not share."""
    here, there = ours.model_dump(mode="json"), theirs.model_dump(mode="json")
    changed = [
        f"{part}.{name} {_value(here[part][name])} (the paper's preset {_value(there[part][name])})"
        for part in _PARTS
        for name in here[part]
        if f"{part}.{name}" not in _TOLD and here[part][name] != there[part][name]
    ]
    if changed:
        yield f"settings: {', '.join(changed)}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
