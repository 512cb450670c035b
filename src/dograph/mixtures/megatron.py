"""Megatron-LM: the blend of --data-path.

Against the help of --data-path (megatron/training) and `get_blend_from_list`
(megatron/core/datasets/utils.py; NVIDIA/Megatron-LM, core 0.20): weight and prefix in turn. A file
for --data-args-path is split at white space and has no comments, so this is shell text instead.
"""

import shlex
from collections.abc import Mapping

from dograph.mixtures.export import comments, file_place_of, printed


def export_megatron(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A bash array of arguments."""
    weights = printed(mixture)
    head = comments(
        mixture,
        places,
        (
            """Megatron-LM: source this in bash, then: torchrun ... pretrain_gpt.py
            "${DATA_ARGS[@]}" """,
            "For --data-args-path: the lines of weight and prefix alone, without comments.",
            """Weights count samples of --seq-length tokens, so they are shares of tokens. Places
            are prefixes of .bin and .idx files.""",
        ),
    )
    lines = "".join(
        f"  {weight!r} {shlex.quote(file_place_of(name, places, 'data/{}_text_document'))}\n"
        for name, weight in weights.items()
    )
    return f"{head}DATA_ARGS=(\n  --data-path\n{lines})\n"
