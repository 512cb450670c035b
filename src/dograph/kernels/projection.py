"""Triton: random signs; the twin is `signs_plainly` of dograph.sketch.projection."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import launch

_BLOCK = 4096


def signs_by_kernel(start_W: Tensor, epoch_key: int, scale: float, dtype: torch.dtype) -> Tensor:
    """64 entries of +-scale for each counter."""
    result_N = torch.empty(64 * len(start_W), dtype=dtype, device=start_W.device)
    size = len(result_N)
    programs = (triton.cdiv(size, _BLOCK),)
    launch(_draw, programs, start_W, result_N, epoch_key, scale, size, BLOCK=_BLOCK, warps=8)
    return result_N


@triton.jit(do_not_specialize=["epoch_key", "scale"])
def _draw(start, result, epoch_key, scale, count, BLOCK: constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = tl.load(start + place // 64, mask=inside, other=0) ^ epoch_key.to(tl.int64)
    value = value.to(tl.uint64, bitcast=True)
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    value = value ^ (value >> 31)
    bit = (value >> (place % 64).to(tl.uint64)) & 1
    entry = tl.where(bit == 1, scale, -scale)
    tl.store(result + place, entry.to(result.dtype.element_ty), mask=inside)
