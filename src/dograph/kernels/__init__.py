"""Chooses between a Triton kernel, on a GPU, and its twin: the same computation in plain PyTorch.

The other modules of this package import Triton, so import them only where they are needed.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

MOST_SAMPLES, MOST_DOMAINS = 1024, 64  # of a batch whose domains and weights are made by kernels


@dataclass(frozen=True, slots=True)
class Space:
    """The samples as K-means uses them."""

    gram_BB: Tensor  # inner products in the space clustered
    weight_B: Tensor  # 1 for samples that count in centroids, 0 for those that only get a label
    rounding_B: Tensor  # squared distances up to these, or the sum of two of them, are 0
    spherical: bool  # centroids are unit directions


@dataclass(frozen=True, slots=True)
class Sorted:
    """A batch sorted by value, in float64; rows that are not finite are 0."""

    order_B: Tensor  # int64: the sample at each position
    raw_BB: Tensor  # Gram of the sketches
    finite_B: Tensor  # 1 or 0
    space: Space  # that is clustered


_chosen: list[bool] = []  # a stack: the last one counts


@contextmanager
def choose(kernels: bool) -> Iterator[None]:
    """Inside it kernels run (True; on a CPU in Triton's interpreter), or their twins (False)."""
    _chosen.append(kernels)
    try:
        yield
    finally:
        _chosen.pop()


def usable(tensor: Tensor, num_samples: int = 0, num_domains: int = 0) -> bool:
    """Whether to run kernels on this tensor, of a batch of so many samples and domains."""
    if num_samples > MOST_SAMPLES or num_domains > MOST_DOMAINS:
        return False
    return _chosen[-1] if _chosen else tensor.is_cuda and has_triton()


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int, **constants: Any) -> None:
    """Run a kernel on the device of its first argument, which need not be the current one."""
    tensor: Tensor = args[0]
    elsewhere = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
    with torch.cuda.device(tensor.device) if elsewhere else nullcontext():
        kernel[grid](*args, num_warps=warps, **constants)


def warps_for(side: int) -> int:
    """Warps of a program whose float64 blocks have `side` columns."""
    return 16 if side > 64 else 8 if side > 32 else 4


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least both."""
    return max(1 << (number - 1).bit_length(), least)
