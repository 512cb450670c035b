"""Runs by name: settings over the defaults of `dograph.config`, as nested values."""

from typing import Any

# The recipe that the paper's runs share: AdamW, linear warm-up of 500 steps to 5e-4, cosine to
# 1e-4, weight decay 0.01, clipping at 1.0, float32; GPT-2's dropout is left at its default, 0.1.
_PAPER: dict[str, Any] = {
    "optim": {"lr": 5e-4, "lr_end": 1e-4, "warmup_steps": 500, "betas": [0.9, 0.999]}
    | {"weight_decay": 0.01, "clip_norm": 1.0},
    "eval": {"every": 1000, "max_samples_per_source": 2857},  # 20,000 blocks over seven sources
    "checkpoint": {"every": 1000},
    "seed": 42,
}
_PAPER_GPT2 = {
    "data": {"seq_len": 512},
    "train": {"steps": 20_000, "batch_size": 48, "micro_batch_size": 12},
}
_PAPER_LLAMA = {
    "data": {"seq_len": 2048},
    "train": {"steps": 25_000, "batch_size": 64, "micro_batch_size": 8}
    | {"dtype": "bfloat16", "activation_checkpointing": True},
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
    # Uniform, as the paper's baselines; the paper does not say what DoGraph draws.
    own: dict[str, Any] = {"mixer": {"name": "dograph", "recipe": "paper", "sampling": "uniform"}}
    own |= {"run": f"runs/paper-{model}", "data": {"corpus": corpus}}
    return merge(_PAPER, part, own, {"model": {"preset": model, "dropout": dropout}})


RUN_PRESETS: dict[str, dict[str, Any]] = {
    "demo": {"probe": {"rows": 32}},  # six probes of 512 rows would cost as much as the run
    # A corpus with a known answer: four sources of the same words in different orders.
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
    **{
        f"paper-{model}": _paper(model, "data/slimpajama-6b", _PAPER_GPT2, dropout=0.1)
        for model in ("gpt2-mini", "gpt2-small", "gpt2-medium")
    },
    **{
        f"paper-{model}": _paper(model, "data/pile", _PAPER_LLAMA, dropout=0.0)
        for model in ("llama-1.1b", "llama-3.2-3b")
    },
}
