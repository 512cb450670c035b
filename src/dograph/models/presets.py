"""Presets: every model of the paper's table, Mini (of its figures), proxies and tiny models.

The paper's table swaps two columns for LLaMA-3.2-3B and omits the feed-forward width of
LLaMA-1.1B; these are the public shapes. Sizes are counted without vocabulary padding.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a decoder."""

    family: Literal["gpt2", "llama"]
    layers: int
    heads: int
    kv_heads: int
    width: int
    feed_forward: int
    positions: int = 2048
    tied: bool = False
    rope_theta: float = 10_000.0


def _gpt2(layers: int, heads: int, width: int = 768) -> Shape:
    return Shape("gpt2", layers, heads, heads, width, 4 * width, positions=512, tied=True)


PRESETS: dict[str, Shape] = {
    "tiny": _gpt2(layers=2, heads=2, width=64),
    "demo": _gpt2(layers=4, heads=4, width=128),
    # RegMix's proxy model: 1.3M parameters without its vocabulary.
    "proxy-1m": Shape("llama", 2, 8, 8, 256, 512),
    "gpt2-proxy": _gpt2(layers=6, heads=12),
    "gpt2-mini": _gpt2(layers=12, heads=12),
    "gpt2-small": _gpt2(layers=24, heads=16),
    "gpt2-medium": _gpt2(layers=36, heads=24),
    "llama-tiny": Shape("llama", 2, 4, 2, 64, 176),
    "llama-mini": Shape("llama", 12, 12, 4, 768, 2048),
    "llama-1.1b": Shape("llama", 22, 32, 4, 2048, 5632),
    "llama-3.2-3b": Shape("llama", 28, 24, 8, 3072, 8192, 131_072, True, rope_theta=500_000.0),
}
