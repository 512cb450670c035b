"""Optimisation on the simplex: projection, and a convex quadratic to full precision.

Shapes: B numbers, M domains. Nothing here waits for the device, and float running sums avoid
torch.cumsum, which CUDA refuses in deterministic mode.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 16  # of the interior-point method, which converges in 8 to 14
CONVERGED = 1e-12  # complementarity, in units of the largest curvature, at which steps stop
CENTRING = 0.05  # each step aims at this fraction of the present complementarity
TO_BOUNDARY = 0.995  # fraction of the way to the nearest bound
RIDGE = 1e-6  # added curvature: a Gram rounded to float32 is indefinite by nearly this much
NEGLIGIBLE = 1e-9  # a weight below this is a zero that the interior-point method came close to


def running_sum(value_B: Tensor) -> Tensor:
    """Inclusive running sum by two triangular products: repeatable on every device."""
    side = math.isqrt(max(value_B.numel() - 1, 0)) + 1
    grid = F.pad(value_B, (0, side * side - value_B.numel())).view(side, side)
    upper = torch.ones(side, side, dtype=value_B.dtype, device=value_B.device).triu()
    inside = grid @ upper
    before = inside[:, -1] @ upper.triu(1)
    return (inside + before[:, None]).view(-1)[: value_B.numel()]


def project_simplex(value_M: Tensor) -> Tensor:
    """The nearest point of the simplex: max(v - theta, 0) with theta such that it sums to 1.

    theta is the largest of (v_(1) + ... + v_(k) - 1) / k over the k largest entries.
    """
    sorted_M = value_M.double().sort(descending=True, stable=True).values
    rank_M = torch.arange(1, len(value_M) + 1, dtype=torch.float64, device=value_M.device)
    theta = ((running_sum(sorted_M) - 1) / rank_M).amax()
    weight_M = (value_M.double() - theta).clamp_min(0)
    return (weight_M / weight_M.sum()).to(value_M.dtype)


def solve_qp(quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor) -> Tensor:
    """Weights on the simplex that minimise w'Qw + b'w, exactly 0 where `present_M` is False.

    A primal-dual interior-point method in float64 that starts feasible on both sides, w = 1/m and
    y = min(gradient) - 1, so that w'z is the duality gap at every step. Q is positive semidefinite
    up to the rounding of float32. A small ridge makes the minimum unique: among many, the weights
    nearest to equal ones; it leaves a relative gap of at most a quarter of the ridge.
    Without any present domain all weights are 0; numbers that are not finite give weights that
    are not.
    """
    curvature_MM, slope_M, _ = _scaled(quadratic_MM, linear_M, present_M)
    present_MF = present_M.double()
    num_present = present_MF.sum().clamp_min(1)
    w_M = present_MF / num_present
    gradient_M = curvature_MM @ w_M + slope_M
    z_M = torch.where(present_M, gradient_M - _least(gradient_M, present_M) + 1, 1.0)
    identity_MM = torch.eye(len(w_M), dtype=torch.float64, device=w_M.device)
    curvature_MM = curvature_MM + RIDGE * identity_MM
    for _ in range(ITERATIONS):
        mu = (w_M * z_M).sum() / num_present
        root_M = (w_M / z_M).sqrt()  # 0 where absent, which takes the domain out of the system
        system_MM = identity_MM + root_M[:, None] * curvature_MM * root_M
        target_M = (CENTRING * mu - w_M * z_M) / (w_M * z_M).clamp_min(1e-300).sqrt()
        right_M2 = torch.stack((target_M * present_MF, root_M), dim=1)
        solved_M2 = torch.linalg.solve_ex(system_MM, right_M2, check_errors=False).result
        toward_M, along_M = (root_M[:, None] * solved_M2).unbind(1)
        dy = -toward_M.sum() / along_M.sum().clamp_min(1e-300)
        dw_M = toward_M + dy * along_M
        dz_M = (curvature_MM @ dw_M - dy) * present_MF
        length = _step(w_M, dw_M, z_M, dz_M)
        next_w_M, next_z_M = w_M + length * dw_M, z_M + length * dz_M
        better = (mu > CONVERGED) & ((next_w_M * next_z_M).sum() < mu * num_present)
        w_M, z_M = torch.where(better, next_w_M, w_M), torch.where(better, next_z_M, z_M)
    finite = torch.isfinite(curvature_MM.sum() + slope_M.sum())
    w_M = torch.where(finite, torch.where(w_M < NEGLIGIBLE, 0.0, w_M), torch.nan)
    total = w_M.sum()
    return (w_M / torch.where(total == 0, 1.0, total)).to(quadratic_MM.dtype)


def gap(quadratic_MM: Tensor, linear_M: Tensor, weight_M: Tensor, present_M: Tensor) -> Tensor:
    """How far weights are from the minimum of w'Qw + b'w, at most: w'g - min_j g_j, g = 2Qw + b.

    The Frank-Wolfe gap over the present domains; 0 exactly at the minimum, where it is the
    Karush-Kuhn-Tucker residual.
    """
    q_MM = torch.where(present_M[:, None] & present_M, quadratic_MM.double(), 0.0)
    w_M = weight_M.double()
    gradient_M = (q_MM + q_MM.T) @ w_M + torch.where(present_M, linear_M.double(), 0.0)
    return (w_M @ gradient_M - _least(gradient_M, present_M)).clamp_min(0)


def relative_gap(
    quadratic_MM: Tensor, linear_M: Tensor, weight_M: Tensor, present_M: Tensor
) -> Tensor:
    """The gap in units of the problem's largest curvature, the scale that `solve_qp` works in."""
    *_, scale = _scaled(quadratic_MM, linear_M, present_M)
    return gap(quadratic_MM, linear_M, weight_M, present_M) / scale


def _scaled(
    quadratic_MM: Tensor, linear_M: Tensor, present_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Hessian and slope over the present domains in units of the largest entry of Q; that unit.

    A domain whose slope exceeds the least one by more than four such units has weight 0 in every
    minimum, so slopes are cut at eight: no outlier sets the precision of the rest.
    """
    both_MM = present_M[:, None] & present_M
    q_MM = torch.where(both_MM, (quadratic_MM.double() + quadratic_MM.double().T) / 2, 0.0)
    b_M = torch.where(present_M, linear_M.double() - _least(linear_M.double(), present_M), 0.0)
    unit = torch.maximum(q_MM.abs().amax(), 1e-12 * b_M.amax())
    unit = torch.where(unit == 0, 1.0, unit)
    return 2 * q_MM / unit, torch.where(b_M > 8 * unit, 8.0, b_M / unit), unit


def _least(value_M: Tensor, present_M: Tensor) -> Tensor:
    return torch.where(present_M, value_M, torch.inf).amin()


def _step(w_M: Tensor, dw_M: Tensor, z_M: Tensor, dz_M: Tensor) -> Tensor:
    """The longest step, at most 1, that keeps both sides strictly positive."""
    value_2M, change_2M = torch.stack((w_M, z_M)), torch.stack((dw_M, dz_M))
    reach_2M = torch.where(change_2M < 0, -value_2M / change_2M, torch.inf)
    return (TO_BOUNDARY * reach_2M.amin()).clamp_max(1.0)
