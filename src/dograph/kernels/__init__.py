"""Which code runs: a Triton kernel on a GPU, or its twin in plain PyTorch anywhere else.

The other modules of this package import Triton, so each is imported when it is needed.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

_chosen: list[bool] = []  # the innermost choice is the last


@contextmanager
def choose(kernels: bool) -> Iterator[None]:
    """Inside, kernels run (True; on a CPU that is Triton's interpreter) or twins do (False)."""
    _chosen.append(kernels)
    try:
        yield
    finally:
        _chosen.pop()


def usable(tensor: Tensor) -> bool:
    """Whether kernels are to run on this tensor."""
    return _chosen[-1] if _chosen else tensor.is_cuda and has_triton()


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def launch(
    kernel: Any, programs: int | tuple[int, int], *args: Any, warps: int, **constants: Any
) -> None:
    """Run a kernel on the device of its first argument, whichever is the current one."""
    grid = (programs,) if isinstance(programs, int) else programs
    tensor: Tensor = args[0]
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        kernel[grid](*args, num_warps=warps, **constants)
        return
    with torch.cuda.device(tensor.device):
        kernel[grid](*args, num_warps=warps, **constants)


def power_of_two(number: int, least: int = 1) -> int:
    """The least power of two that is no less than both."""
    return max(1 << (number - 1).bit_length(), least)
