"""Optimisation on the simplex: a convex quadratic to full precision.

Shapes: B numbers, M domains. Nothing here waits for the device, and float running sums avoid
torch.cumsum, which CUDA refuses in deterministic mode.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.kernels import usable

ITERATIONS = 24  # of the interior-point method: mostly 8 to 12, more where Q has a low rank
CENTRING = 0.05  # each step aims at this fraction of the present gap, or at the gap's square,
CONVERGED = 1e-13  # but not below this for each domain, in units of the largest curvature
TO_BOUNDARY = 0.005  # each step stops short of the nearest bound by this share of the way,
NEAREST = 1e-5  # or by the gap, but not by less than this: no weight may round to 0
OUT_OF_REACH = 8.0  # a slope so far above the least one that the domain's weight is 0
RIDGE = 1e-6  # added curvature: a Gram rounded to float32 is indefinite by nearly this much
NEGLIGIBLE = 1e-9  # a weight below this is a zero that the interior-point method came close to
MOST_DOMAINS = 32  # of the kernel, whose matrices lie in registers


def running_sum(value_B: Tensor) -> Tensor:
    """Inclusive running sum by two triangular products: repeatable on every device."""
    side = math.isqrt(max(value_B.numel() - 1, 0)) + 1
    grid = F.pad(value_B, (0, side * side - value_B.numel())).view(side, side)
    upper = torch.ones(side, side, dtype=value_B.dtype, device=value_B.device).triu()
    inside = grid @ upper
    before = inside[:, -1] @ upper.triu(1)
    return (inside + before[:, None]).view(-1)[: value_B.numel()]


def solve_qp(quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor) -> Tensor:
    """Weights on the simplex that minimise w'Qw + b'w, exactly 0 where `present_M` is False.

    A primal-dual interior-point method in float64 that starts feasible on both sides, w = 1/m and
    y = min(gradient) - 1, so that w'z is the duality gap at every step. Q is positive semidefinite
    up to the rounding of float32. A small ridge makes the minimum unique: among many, the weights
    nearest to equal ones; it leaves a relative gap of at most a quarter of the ridge.
    Without any present domain all weights are 0; numbers that are not finite give weights that
    are not. On a GPU this is one kernel (simplex_kernel.py).
    """
    if len(linear_M) > MOST_DOMAINS or not usable(quadratic_MM):
        return _solve_by_pytorch(quadratic_MM, linear_M, present_M)
    from dograph.kernels.simplex import solve_qp_by_kernel

    return solve_qp_by_kernel(
        *(quadratic_MM, linear_M, present_M),
        ITERATIONS=ITERATIONS,
        CENTRING=CENTRING,
        CONVERGED=CONVERGED,
        TO_BOUNDARY=TO_BOUNDARY,
        NEAREST=NEAREST,
        OUT_OF_REACH=OUT_OF_REACH,
        RIDGE=RIDGE,
        NEGLIGIBLE=NEGLIGIBLE,
    )


def _solve_by_pytorch(quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor) -> Tensor:
    # Hessian and slope in units of the largest entry of Q. A domain whose slope exceeds the least
    # one by more than four units has weight 0 in every minimum. Slopes are therefore cut at eight,
    # so that no outlier sets the precision of the rest, and an absent domain is one without
    # curvature and with that slope.
    q_MM, b_M, unit = _within(quadratic_MM, linear_M, present_M)
    slope_M = (b_M / unit).clamp_max(OUT_OF_REACH).masked_fill(~present_M, OUT_OF_REACH)
    curvature_MM = 2 * q_MM / unit
    identity_MM = torch.eye(len(slope_M), dtype=torch.float64, device=slope_M.device)
    curvature_MM = curvature_MM + RIDGE * identity_MM
    w_M = torch.full_like(slope_M, 1 / len(slope_M))
    gradient_M = curvature_MM @ w_M + slope_M
    pair_2M = torch.stack((w_M, gradient_M - gradient_M.amin() + 1))  # w and its multipliers z
    for _ in range(ITERATIONS):
        w_M, z_M = pair_2M
        product_M = w_M * z_M
        duality_gap = product_M.sum()
        aim = (duality_gap * (duality_gap.clamp_max(CENTRING) / len(w_M))).clamp_min(CONVERGED)
        root_M = (w_M / z_M).sqrt()
        system_MM = torch.addcmul(identity_MM, root_M[:, None] * root_M, curvature_MM)
        right_M2 = torch.stack(((aim - product_M) * product_M.rsqrt(), root_M), dim=1)
        solved_M2 = torch.linalg.solve_ex(system_MM, right_M2, check_errors=False).result
        toward_M, along_M = solved_2M = solved_M2.T * root_M
        total_2 = solved_2M.sum(dim=1)
        dy = total_2[0] / total_2[1]  # downwards: keeps the sum of w
        dw_M = toward_M - dy * along_M
        change_2M = torch.stack((dw_M, curvature_MM @ dw_M + dy))
        short = duality_gap.clamp(NEAREST, TO_BOUNDARY)
        length = 1 / (-(change_2M / pair_2M).amin() / (1 - short)).clamp_min(1)
        next_2M = pair_2M + length * change_2M
        better = next_2M.prod(dim=0).sum() < duality_gap
        better = better & (duality_gap > 2 * len(w_M) * CONVERGED)  # else all is rounding
        pair_2M = torch.where(better, next_2M, pair_2M)
    w_M = pair_2M[0].masked_fill(~present_M | (pair_2M[0] < NEGLIGIBLE), 0)
    weight_M = w_M / w_M.sum().clamp_min(torch.finfo(torch.float64).tiny)
    finite = torch.isfinite(curvature_MM.sum() + slope_M.sum())
    return weight_M.masked_fill(~finite, torch.nan).to(quadratic_MM.dtype)


def relative_gap(
    quadratic_MM: Tensor, linear_M: Tensor, weight_M: Tensor, present_M: Tensor
) -> Tensor:
    """How far weights are from the minimum of w'Qw + b'w, at most: w'g - min_j g_j, g = 2Qw + b.

    The Frank-Wolfe gap over the present domains, in units of the problem's largest curvature, the
    scale that `solve_qp` works in; 0 exactly at the minimum, where it is the Karush-Kuhn-Tucker
    residual.
    """
    q_MM, b_M, unit = _within(quadratic_MM, linear_M, present_M)
    gradient_M = 2 * q_MM @ weight_M.double() + b_M
    # a common offset of the slopes must not meet the rounding of the weights' sum
    above_M = (gradient_M - _least(gradient_M, present_M)).masked_fill(~present_M, 0)
    return weight_M.double() @ above_M / unit


def _within(
    quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Q and the slopes above the least one, over the present domains, and their unit."""
    absent_MM = ~(present_M[:, None] & present_M)
    q_MM = quadratic_MM.double()
    q_MM = ((q_MM + q_MM.T) / 2).masked_fill(absent_MM, 0)  # the symmetric part
    b_M = linear_M.double()
    b_M = (b_M - _least(b_M, present_M)).masked_fill(~present_M, 0)
    unit = torch.maximum(q_MM.abs().amax(), 1e-12 * b_M.amax())
    return q_MM, b_M, unit.masked_fill(unit == 0, 1)


def _least(value_M: Tensor, present_M: Tensor) -> Tensor:
    return value_M.masked_fill(~present_M, torch.inf).amin()
