"""Triton: the fixed-point iteration of the objective `alignment` in one program.

The twin is `Alignment._iterated` of dograph.domains.objectives, which has the formulas.

Shapes: M domains; P is a power of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import launch, power_of_two


def aligned_by_kernel(
    gram_MM: Tensor, present_M: Tensor, weight_M: Tensor, iterations: int
) -> Tensor:
    """`weight_M` after this many iterations, in float64."""
    num_domains = len(weight_M)
    result_M = torch.empty_like(weight_M, dtype=torch.float64)
    side = power_of_two(num_domains, 4)
    launch(
        _align,
        (1,),
        *(gram_MM.contiguous(), present_M.contiguous().view(torch.uint8)),
        *(weight_M.contiguous(), result_M),
        M=num_domains,
        ITERATIONS=iterations,
        P=side,
        EPS=torch.finfo(gram_MM.dtype).eps,
        warps=1 if side <= 16 else 4,
    )
    return result_M


@triton.jit
def _align(
    gram, present, weight, result, M: constexpr, ITERATIONS: constexpr, P: constexpr, EPS: constexpr
):
    row = tl.arange(0, P)
    inside = row < M
    both = inside[:, None] & inside[None, :]
    gram_PP = tl.load(gram + row[:, None] * M + row[None, :], mask=both, other=0.0).to(tl.float64)
    square_P = tl.load(gram + row * (M + 1), mask=inside, other=0.0).to(tl.float64)
    present_P = tl.load(present + row, mask=inside, other=0) != 0
    norm_P = tl.sqrt(tl.where(square_P < 0, 0.0, square_P))
    norm_P = norm_P * present_P.to(tl.float64)
    long_P = norm_P != 0
    unit_PP = gram_PP / tl.where(long_P, norm_P, 1.0)[:, None]
    unit_PP = tl.where(long_P[:, None], unit_PP, 0.0)
    rounding = EPS * M * tl.max(norm_P * norm_P, axis=0)
    check = tl.sum(norm_P, axis=0)
    w_P = tl.load(weight + row, mask=inside, other=0.0).to(tl.float64)
    for _step in range(ITERATIONS):
        along_P = tl.sum(unit_PP * w_P[None, :], axis=1)
        square = tl.sum(w_P * norm_P * along_P, axis=0)
        agrees_P = tl.where(square > rounding, tl.where(along_P > 0, along_P, 0.0), 0.0)
        total = tl.sum(agrees_P, axis=0)
        w_P = tl.where(total > 0, agrees_P / tl.where(total > 0, total, 1.0), w_P)
    tl.store(result + row, tl.where(check - check == 0, w_P, float("nan")), mask=inside)
