"""Two scales: the paper's own runs, and runs of minutes on one GPU.

`MINI` is plain nested values, so that benchmarks can use the same runs:

    from dograph.reproduce.scales import mini
    config = parse_config(mini({"data": {"corpus": "data/mine"}}), "mine")
"""

from typing import Any, Literal

from dograph.presets import merge

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
SHORT: dict[str, Any] = {"train": {"steps": 400}}
PROBED: dict[str, Any] = {"probe": {"rows": 512, "at": [0.0, 0.01, 0.03, 0.1, 0.3, 1.0]}}
LLAMA: dict[str, Any] = {"model": {"preset": "llama-mini"}}
ON_CUDA: dict[str, Any] = {"train": {"dtype": "bfloat16", "compile": True}}

SEEDS: dict[Scale, tuple[int, ...]] = {
    "mini": (10, 11, 12, 13, 14),
    "paper": (42,),  # the preset's own: the paper does not say how many
}


def mini(*parts: dict[str, Any], cuda: bool = False) -> dict[str, Any]:
    """The settings of a mini run, with `parts` on top; on a GPU in bfloat16 and compiled."""
    return merge(MINI, ON_CUDA if cuda else {}, *parts)
