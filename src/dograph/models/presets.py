"""Every row of the paper's model table, plus Mini (its figures), proxies and tiny ones.

The paper's table swaps two columns for LLaMA-3.2-3B and leaves out the feed-forward width of
LLaMA-1.1B; these are the public shapes. Sizes are counted without vocabulary padding.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What sets a decoder's size."""

    family: Literal["gpt2", "llama"]
    layers: int
    heads: int
    kv_heads: int
    width: int
    feed_forward: int
    positions: int
    tied: bool
    rope_theta: float = 10_000.0


def _gpt2(layers: int, heads: int, width: int = 768, positions: int = 512) -> Shape:
    return Shape(
        family="gpt2",
        layers=layers,
        heads=heads,
        kv_heads=heads,
        width=width,
        feed_forward=4 * width,
        positions=positions,
        tied=True,
    )


def _llama(layers: int, heads: int, kv_heads: int, width: int, feed_forward: int) -> Shape:
    return Shape(
        family="llama",
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        feed_forward=feed_forward,
        positions=2048,
        tied=False,
    )


PRESETS: dict[str, Shape] = {
    "tiny": _gpt2(layers=2, heads=2, width=64),
    "demo": _gpt2(layers=4, heads=4, width=128),
    # What RegMix trains by the hundred: 1.3M parameters without its vocabulary.
    "proxy-1m": _llama(layers=2, heads=8, kv_heads=8, width=256, feed_forward=512),
    "gpt2-proxy": _gpt2(layers=6, heads=12),
    "gpt2-mini": _gpt2(layers=12, heads=12),
    "gpt2-small": _gpt2(layers=24, heads=16),
    "gpt2-medium": _gpt2(layers=36, heads=24),
    "llama-tiny": _llama(layers=2, heads=4, kv_heads=2, width=64, feed_forward=176),
    "llama-mini": _llama(layers=12, heads=12, kv_heads=4, width=768, feed_forward=2048),
    "llama-1.1b": _llama(layers=22, heads=32, kv_heads=4, width=2048, feed_forward=5632),
    "llama-3.2-3b": replace(
        _llama(layers=28, heads=24, kv_heads=8, width=3072, feed_forward=8192),
        positions=131_072,
        tied=True,
        rope_theta=500_000.0,
    ),
}
