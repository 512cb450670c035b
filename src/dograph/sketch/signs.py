"""Random words and signs as functions of a key: the same on every device, many keys at once.

A stream is SplitMix64 (Steele, Lea and Flood 2014): word w of key k is mix(k + w * GOLDEN). The
words of all streams are made in a dozen operations, however many streams there are, and 64 signs
come from each word; drawing the projections of a whole model costs what a few small kernels cost.

Shapes: W words, N entries.
"""

import math

import torch
from torch import Tensor

from dograph.kernels import usable
from dograph.rng import key64

GOLDEN = 0x9E3779B97F4A7C15
BITS = 64  # of a word


def signed(key: int) -> int:
    """An unsigned 64-bit number as torch.int64 holds it."""
    return key - (1 << BITS) if key >> (BITS - 1) else key


def start_words(keys: list[int], counts: list[int], device: torch.device) -> Tensor:
    """For each key so many counters, one after the other: what `words` draws from."""
    count_S = torch.tensor(counts)
    key_W = torch.tensor([signed(k) for k in keys]).repeat_interleave(count_S)
    first_W = (count_S.cumsum(0) - count_S).repeat_interleave(count_S)
    index_W = torch.arange(1, len(key_W) + 1) - first_W
    return mixed(key_W + index_W * signed(GOLDEN)).to(device)


def words(start_W: Tensor, seed: int, epoch: int) -> Tensor:
    """64 random bits for each counter, others in every epoch."""
    return mixed(start_W ^ epoch_key(seed, epoch))


def epoch_key(seed: int, epoch: int) -> int:
    """What sets the words of one epoch apart from those of the others."""
    return signed(key64(seed, "projection epoch", epoch))


def mixed(value: Tensor) -> Tensor:
    """SplitMix64's finaliser: every bit of the input moves half of the output's."""
    value = (value ^ _shifted(value, 30)) * signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def signs(start_W: Tensor, seed: int, epoch: int, scale: float, dtype: torch.dtype) -> Tensor:
    """64 entries of +-scale for each counter, one for each bit of its word: (64 W,)."""
    if usable(start_W):
        from dograph.kernels.projection import signs_by_kernel

        return signs_by_kernel(start_W, epoch_key(seed, epoch), scale, dtype)
    return signs_plainly(words(start_W, seed, epoch), scale, dtype)


def signs_plainly(word_W: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """The same in plain PyTorch, byte by byte: row b of a table has the eight entries of byte b."""
    device = word_W.device
    bit_256x8 = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    table_256x8 = (bit_256x8 * (2 * scale) - scale).to(dtype)
    return table_256x8.index_select(0, word_W.view(torch.uint8).int()).flatten()


def normals(word_W: Tensor) -> Tensor:
    """Two standard normals a word, by the inverse of their distribution: (2 W,) float64."""
    half_W2 = torch.stack((word_W, word_W >> 32), dim=1) & 0xFFFFFFFF
    return torch.erfinv((half_W2.flatten().double() + 0.5) / (1 << 31) - 1) * math.sqrt(2)


def _shifted(value: Tensor, places: int) -> Tensor:
    """To the right, filled with zeros: torch's own shift copies the sign."""
    return (value >> places) & ((1 << (BITS - places)) - 1)
