"""Runs by name, and how a name, a file and overrides become one configuration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dograph.config import RunConfig, load_yaml, parse_config, read_yaml
from dograph.errors import ConfigError, did_you_mean

# The recipe that the paper's runs share: AdamW, linear warm-up of 500 steps to 5e-4, cosine to
# 1e-4, weight decay 0.01, clipping at 1.0, float32; GPT-2's dropout is left at its default, 0.1.
_PAPER: dict[str, Any] = {
    "optim": {
        "lr": 5e-4,
        "lr_end": 1e-4,
        "warmup_steps": 500,
        "betas": [0.9, 0.999],
        "weight_decay": 0.01,
        "clip_norm": 1.0,
    },
    "eval": {"every": 1000, "max_blocks": 2857},  # 20,000 blocks over seven sources
    "checkpoint": {"every": 1000},
    "seed": 42,
}
_PAPER_GPT2 = {
    "data": {"seq_len": 512},
    "train": {"steps": 20_000, "batch_size": 48, "micro_batch_size": 12},
}
_PAPER_LLAMA = {
    "data": {"seq_len": 2048},
    "train": {
        "steps": 25_000,
        "batch_size": 64,
        "micro_batch_size": 8,
        "dtype": "bfloat16",
        "activation_checkpointing": True,
    },
}


def merge(base: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Nested values, later ones winning key by key."""
    merged = dict(base)
    for other in others:
        for key, value in other.items():
            old = merged.get(key)
            both = isinstance(old, dict) and isinstance(value, dict)
            merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _paper(model: str, corpus: str, part: dict[str, Any], dropout: float) -> dict[str, Any]:
    own = {
        "run": f"runs/paper-{model}",
        "data": {"corpus": corpus},
        "model": {"preset": model, "dropout": dropout},
        # Every source alike, as the baselines of the paper draw; it does not say so of its own.
        "mixer": {"name": "dograph", "recipe": "paper", "sampling": "uniform"},
    }
    return merge(_PAPER, part, own)


RUN_PRESETS: dict[str, dict[str, Any]] = {
    "demo": {"probe": {"rows": 32}},  # six probes of 512 rows would cost as much as the run
    # A corpus with a known answer: four sources of the same words, told apart by what follows what.
    "planted": {
        "run": "runs/planted",
        "data": {"corpus": "bigram", "seq_len": 64},
        "model": {"preset": "tiny"},
        "mixer": {"name": "dograph", "recipe": "safe", "num_domains": 4},  # domains that persist
        "optim": {"lr": 2e-3, "lr_end": 2e-3, "warmup_steps": 0, "weight_decay": 0.0},
        "train": {"steps": 300, "batch_size": 32},
        "eval": {"every": 100},
        "probe": {"rows": 32},
    },
    "paper-gpt2-mini": _paper("gpt2-mini", "data/slimpajama-6b", _PAPER_GPT2, 0.1),
    "paper-gpt2-small": _paper("gpt2-small", "data/slimpajama-6b", _PAPER_GPT2, 0.1),
    "paper-gpt2-medium": _paper("gpt2-medium", "data/slimpajama-6b", _PAPER_GPT2, 0.1),
    "paper-llama-1.1b": _paper("llama-1.1b", "data/pile", _PAPER_LLAMA, 0.0),
    "paper-llama-3.2-3b": _paper("llama-3.2-3b", "data/pile", _PAPER_LLAMA, 0.0),
}


def resolve_config(name: str | None, overrides: Sequence[str]) -> RunConfig:
    """A preset or a YAML file (which may name a preset as its base), then dotted overrides."""
    name = name or "demo"
    if name in RUN_PRESETS:
        values = RUN_PRESETS[name]
    elif Path(name).suffix in {".yaml", ".yml"} or Path(name).is_file():
        values = read_yaml(Path(name))
        values = merge(_preset(values.pop("preset", "demo")), values)
    else:
        values = _preset(name)
    changes = merge({}, *(parse_override(override) for override in overrides))
    merged = _with_mixer(merge(values, changes), values, changes)
    return parse_config(_with_warmup(merged), name, changes)


def _with_warmup(values: dict[str, Any]) -> dict[str, Any]:
    """A warm-up that nobody set takes no larger part of a short run than of the default one."""
    train, optim, default = values.get("train"), values.get("optim", {}), RunConfig()
    steps = train.get("steps") if isinstance(train, dict) else None
    if not isinstance(optim, dict) or "warmup_steps" in optim or not isinstance(steps, int):
        return values  # what is wrong with them is told by parse_config
    if not 0 < steps < default.train.steps:
        return values
    return merge(values, {"optim": {"warmup_steps": default.warmup_over(steps)}})


def _with_mixer(
    merged: dict[str, Any], values: dict[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
    """Naming another mixer drops the options of the one it replaces."""
    old, new = values.get("mixer"), changes.get("mixer")
    if isinstance(old, dict) and isinstance(new, dict) and new.get("name") != old.get("name"):
        return merged | {"mixer": new if "name" in new else merged["mixer"]}
    return merged


def _preset(name: Any) -> dict[str, Any]:
    if not isinstance(name, str) or name not in RUN_PRESETS:
        raise ConfigError(
            f'"{name}" is neither a YAML file nor a preset; {did_you_mean(str(name), RUN_PRESETS)}'
        )
    return RUN_PRESETS[name]


def parse_override(text: str) -> dict[str, Any]:
    """`train.steps=200` as nested values; the right side is read as YAML."""
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ConfigError(f'"{text}" is not an override; write name=value, as in train.steps=200')
    try:
        parsed: Any = load_yaml(value)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f'"{text}": the value is not YAML: {error}') from error
    for part in reversed(name.split(".")):
        parsed = {part: parsed}
    nested: dict[str, Any] = parsed
    return nested
