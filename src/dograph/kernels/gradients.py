"""Triton: samples scaled by weights; the twin is `scaled_plainly` of dograph.sketch.gradients."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import launch

_BLOCK = 4096


def scaled_by_kernel(value: Tensor, times_B: Tensor) -> Tensor:
    """Scale each sample: value * times; `value` must be contiguous."""
    result = torch.empty_like(value)
    length = value[0].numel()
    programs = (triton.cdiv(length, _BLOCK), len(value))
    times_B = times_B.float().contiguous()
    launch(_scale, programs, value, times_B, result, length, BLOCK=_BLOCK, warps=8)
    return result


@triton.jit
def _scale(value, times, result, length, BLOCK: constexpr):
    sample = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = sample.to(tl.int64) * length
    inside = place < length
    factor = tl.load(times + sample)
    number = tl.load(value + start + place, mask=inside, other=0.0)
    product = number.to(tl.float32) * factor
    tl.store(result + start + place, product.to(number.dtype), mask=inside)
