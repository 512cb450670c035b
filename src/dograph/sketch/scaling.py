"""Samples times their weights, rounded once.

The one pass over memory that a weighted gradient costs beyond a plain one. PyTorch's broadcast
product of bfloat16 runs at a third of an H200's memory speed (benchmarks/results), so on a GPU a
Triton kernel takes its place.
"""

import torch
from torch import Tensor

from dograph.kernels import usable


def scaled(value: Tensor, times_B: Tensor) -> Tensor:
    """Scale sample by sample: value * times in float32 or better, rounded as value is."""
    narrow = value.dtype in (torch.bfloat16, torch.float16, torch.float32)
    if narrow and value.is_contiguous() and usable(value):
        from dograph.kernels.gradients import scaled_by_kernel

        return scaled_by_kernel(value, times_B)
    return scaled_plainly(value, times_B)


def scaled_plainly(value: Tensor, times_B: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    wide = torch.promote_types(value.dtype, torch.float32)
    times = times_B.to(wide).view(-1, *[1] * (value.dim() - 1))
    return (value * times).to(value.dtype)
