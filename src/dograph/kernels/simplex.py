"""Triton: the quadratic of dograph.domains.objectives on the simplex, solved in one program.

The twin is `solve_qp`, which has the formulas. The block is padded to a power of two; weights and
multipliers of the padding are held at 0 and 1 and have no effect. Each linear system is I + DCD
with C positive semidefinite, so Gauss-Jordan elimination needs no pivoting; its two right-hand
sides are two of the padded columns, or apart where 63 or 64 domains leave no room.

Shapes: M domains; P is a power of two, at least M.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import launch, power_of_two


def solve_qp_by_kernel(
    quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor, **constants: float
) -> Tensor:
    """Weights (M,) in the dtype of Q; the constants are those of dograph.domains.objectives."""
    num_domains = len(linear_M)
    weight_M = torch.empty_like(linear_M, dtype=torch.float64)
    # Triton 3.6 miscompiles a block of 8: weights of six domains were off by up to 1e-2.
    side = min(power_of_two(num_domains + 2, 16), 64)
    launch(
        _solve,
        (1,),
        *(quadratic_MM.double().contiguous(), linear_M.double().contiguous()),
        *(present_M.contiguous().view(torch.uint8), weight_M),
        M=num_domains,
        P=side,
        TINY=torch.finfo(torch.float64).tiny,
        **constants,
        warps=1 if side <= 16 else 4,
    )
    return weight_M.to(quadratic_MM.dtype)


@triton.jit
def _solve(
    quadratic,
    linear,
    present,
    weight,
    M: constexpr,
    P: constexpr,
    ITERATIONS: constexpr,
    CENTRING: constexpr,
    CONVERGED: constexpr,
    TO_BOUNDARY: constexpr,
    NEAREST: constexpr,
    OUT_OF_REACH: constexpr,
    RIDGE: constexpr,
    NEGLIGIBLE: constexpr,
    TINY: constexpr,
):
    row = tl.arange(0, P)
    inside = row < M
    present_P = tl.load(present + row, mask=inside, other=0) != 0
    curvature_PP, slope_P = _scaled(quadratic, linear, present_P, M, P, OUT_OF_REACH)
    finite = tl.sum(tl.sum(curvature_PP, axis=1) + tl.where(inside, slope_P, 0.0), axis=0)
    diagonal_PP = row[:, None] == row[None, :]
    curvature_PP = tl.where(diagonal_PP & inside[:, None], curvature_PP + RIDGE, curvature_PP)
    w_P = tl.where(inside, tl.full((P,), 1.0, tl.float64) / M, 0.0)
    gradient_P = tl.sum(curvature_PP, axis=1) / M + slope_P
    least = tl.min(tl.where(inside, gradient_P, float("inf")), axis=0)
    z_P = tl.where(inside, gradient_P - least + 1, 1.0)
    moving = tl.full((), 1, tl.int32)
    for _step in range(ITERATIONS):
        if moving != 0:  # otherwise the same step would be computed again and again
            product_P = w_P * z_P
            gap = tl.sum(product_P, axis=0)
            aim = gap * (tl.where(gap > CENTRING, CENTRING, gap) / M)
            aim = tl.where(aim < CONVERGED, CONVERGED, aim)
            root_P = tl.sqrt(w_P / z_P)
            towards_P = tl.where(
                inside, (aim - product_P) / tl.sqrt(tl.where(inside, product_P, 1.0)), 0.0
            )
            toward_P, along_P = _solved(curvature_PP, root_P, towards_P, M, P)
            toward_P, along_P = toward_P * root_P, along_P * root_P
            dy = tl.sum(toward_P, axis=0) / tl.sum(along_P, axis=0)
            dw_P = toward_P - dy * along_P
            dz_P = tl.where(inside, tl.sum(curvature_PP * dw_P[None, :], axis=1) + dy, 0.0)
            fall_P = tl.where(inside, dw_P / tl.where(inside, w_P, 1.0), 0.0)
            drop_P = dz_P / z_P
            short = tl.where(gap > TO_BOUNDARY, TO_BOUNDARY, tl.where(gap < NEAREST, NEAREST, gap))
            steepest = -tl.min(tl.where(fall_P < drop_P, fall_P, drop_P), axis=0) / (1 - short)
            length = 1.0 / tl.where(steepest > 1, steepest, 1.0)
            next_w_P, next_z_P = w_P + length * dw_P, z_P + length * dz_P
            better = tl.sum(next_w_P * next_z_P, axis=0) < gap
            better = better & (gap > 2 * M * CONVERGED)
            w_P = tl.where(better, next_w_P, w_P)
            z_P = tl.where(better, next_z_P, z_P)
            moving = better.to(tl.int32)
    w_P = tl.where(present_P & (w_P >= NEGLIGIBLE), w_P, 0.0)
    total = tl.sum(w_P, axis=0)
    w_P = w_P / tl.where(total < TINY, TINY, total)
    w_P = tl.where(finite - finite == 0, w_P, float("nan"))
    tl.store(weight + row, w_P, mask=inside)


@triton.jit
def _scaled(quadratic, linear, present_P, M: constexpr, P: constexpr, OUT_OF_REACH: constexpr):
    """Hessian and slope in units of Q's largest entry; slopes of absent domains are clipped."""
    row = tl.arange(0, P)
    both_PP = present_P[:, None] & present_P[None, :]
    place_PP = row[:, None] * M + row[None, :]
    across_PP = row[None, :] * M + row[:, None]
    here_PP = tl.load(quadratic + place_PP, mask=both_PP, other=0.0).to(tl.float64)
    there_PP = tl.load(quadratic + across_PP, mask=both_PP, other=0.0).to(tl.float64)
    q_PP = (here_PP + there_PP) / 2
    b_P = tl.load(linear + row, mask=present_P, other=0.0).to(tl.float64)
    b_P = tl.where(present_P, b_P - tl.min(tl.where(present_P, b_P, float("inf")), axis=0), 0.0)
    largest = tl.max(tl.max(tl.abs(q_PP), axis=1), axis=0)
    outlier = 1e-12 * tl.max(b_P, axis=0)
    unit = tl.where(largest > outlier, largest, outlier)
    unit = tl.where(unit == 0, 1.0, unit)
    slope_P = b_P / unit
    slope_P = tl.where(slope_P > OUT_OF_REACH, OUT_OF_REACH, slope_P)
    return 2 * q_PP / unit, tl.where(present_P, slope_P, OUT_OF_REACH)


@triton.jit
def _solved(curvature_PP, root_P, towards_P, M: constexpr, P: constexpr):
    """(I + DCD) x = towards and (I + DCD) x = root, D = diag(root)."""
    row = tl.arange(0, P)
    row_P1, col_1P = row[:, None], row[None, :]
    system_PP = curvature_PP * root_P[:, None] * root_P[None, :]
    system_PP = tl.where(row_P1 == col_1P, system_PP + 1, system_PP)
    apart: constexpr = M + 2 > P
    if not apart:
        system_PP = tl.where(col_1P == M, towards_P[:, None], system_PP)
        system_PP = tl.where(col_1P == M + 1, root_P[:, None], system_PP)
    for k in range(M):
        pivot_row_P = tl.sum(tl.where(row_P1 == k, system_PP, 0.0), axis=0)
        pivot_col_P = tl.sum(tl.where(col_1P == k, system_PP, 0.0), axis=1)
        pivot = tl.sum(tl.where(row == k, pivot_row_P, 0.0), axis=0)
        factor_P = tl.where(row == k, 0.0, pivot_col_P * (1.0 / pivot))
        system_PP = system_PP - factor_P[:, None] * pivot_row_P[None, :]
        if apart:
            towards_P = towards_P - factor_P * tl.sum(tl.where(row == k, towards_P, 0.0), axis=0)
            root_P = root_P - factor_P * tl.sum(tl.where(row == k, root_P, 0.0), axis=0)
    diagonal_P = tl.sum(tl.where(row_P1 == col_1P, system_PP, 0.0), axis=1)
    diagonal_P = tl.where(row < M, diagonal_P, 1.0)
    if not apart:
        towards_P = tl.sum(tl.where(col_1P == M, system_PP, 0.0), axis=1)
        root_P = tl.sum(tl.where(col_1P == M + 1, system_PP, 0.0), axis=1)
    return towards_P / diagonal_P, root_P / diagonal_P
