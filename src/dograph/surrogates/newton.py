"""Damped Newton steps from many starts at once: what the laws' fits share.

Shapes: B starts (or curves), N runs (or points), P parameters.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

FIRST_DAMPING = 1e-3
WEAKEST_DAMPING = 1e-12  # below this a step is Newton's own
STRONGEST_DAMPING = 1e12  # above this no step that lowers the value is left
PRECISION = 1e-14  # a step that promises less than this share of the value ends the search
NOTHING = 1e-26  # a value below this is 0: squares of rounding errors
RIDGE = 1e-13  # keeps the majorant invertible where a parameter has no effect at all


class Local(NamedTuple):
    """What is known of the functions at one point each."""

    value_B: np.ndarray
    slope_BP: np.ndarray
    hessian_BPP: np.ndarray
    majorant_BPP: np.ndarray  # Gauss-Newton's matrix: positive semidefinite, the metric of damping


def huber(error_BN: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Huber's sums, with the slopes and the weights of least squares that has the same slopes.

    h(e) = e^2 / 2 up to |e| = delta, then delta (|e| - delta / 2); its slope is e clipped to
    [-delta, delta], and its second derivative is 1 where the weight is 1 and 0 elsewhere.
    """
    slope_BN = np.clip(error_BN, -delta, delta)
    value_B = np.einsum("bn,bn->b", slope_BN, error_BN - slope_BN / 2)
    weight_BN = delta / np.maximum(np.abs(error_BN), delta)
    return value_B, slope_BN, weight_BN


def damped_newton(
    at: Callable[[np.ndarray, np.ndarray], Local],
    start_BP: np.ndarray,
    *,
    iterations: int,
    floor: float = -np.inf,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each start's descent ends: parameters, values, and whether it converged.

    `at(point, which)` evaluates at points of the starts numbered `which`, which may each have a
    function of their own.
    Each step solves (|H| + damping A) step = -slope, where A is the majorant and |H| the Hessian
    with its negative eigenvalues (in the metric of A) turned positive, so that saddles repel. It
    is taken if the value falls; the damping follows. Parameter 0 stays at or above `floor`: a
    step that would cross ends there, and the others are solved again with it fixed.
    """
    point_BP = start_BP.copy()
    local = at(point_BP, np.arange(len(point_BP)))
    damping_B = np.full(len(point_BP), FIRST_DAMPING)
    done_B = np.zeros(len(point_BP), dtype=bool)
    for _ in range(iterations):
        going = np.flatnonzero(~done_B & np.isfinite(local.value_B))
        if not going.size:
            break
        step_BP, promise_B = _steps(
            Local(*(part[going] for part in local)), damping_B[going], floor - point_BP[going, 0]
        )
        trial_BP = point_BP[going] + step_BP
        trial_BP[:, 0] = np.maximum(trial_BP[:, 0], floor)
        after = at(trial_BP, going)
        better_B = after.value_B < local.value_B[going]
        point_BP[going[better_B]] = trial_BP[better_B]
        ends_B = promise_B <= np.maximum(PRECISION * local.value_B[going], NOTHING)
        for old, new in zip(local, after, strict=True):
            old[going[better_B]] = new[better_B]
        damping_B[going] *= np.where(better_B, 1 / 8, 4.0)
        damping_B = np.maximum(damping_B, WEAKEST_DAMPING)
        done_B[going] = ends_B | (damping_B[going] > STRONGEST_DAMPING)
    return point_BP, local.value_B, done_B


def _steps(
    local: Local, damping_B: np.ndarray, room_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The damped steps, with parameter 0 held at its floor where they would cross it."""
    size = local.slope_BP.shape[1]
    scale_BP = np.sqrt(np.maximum(np.einsum("bpp->bp", local.majorant_BPP), 1e-200))
    outer_BPP = scale_BP[:, :, None] * scale_BP[:, None, :]
    factor_BPP = np.linalg.cholesky(local.majorant_BPP / outer_BPP + RIDGE * size * np.eye(size))
    half_BPP = np.linalg.solve(factor_BPP, local.hessian_BPP / outer_BPP)
    inner_BPP = np.linalg.solve(factor_BPP, half_BPP.swapaxes(1, 2))
    value_BP, vector_BPP = np.linalg.eigh((inner_BPP + inner_BPP.swapaxes(1, 2)) / 2)
    basis_BPP = factor_BPP @ vector_BPP
    curve_BP = np.maximum(np.abs(value_BP), 1e-10) + damping_B[:, None]
    matrix_BPP = (basis_BPP * curve_BP[:, None, :]) @ basis_BPP.swapaxes(1, 2)
    slope_BP = local.slope_BP / scale_BP
    step_BP = -np.linalg.solve(matrix_BPP, slope_BP[:, :, None])[:, :, 0]
    first_B = room_B * scale_BP[:, 0]
    held = np.flatnonzero(step_BP[:, 0] < first_B)
    if held.size:
        step_BP[held, 0] = first_B[held]
        rest_BP = slope_BP[held, 1:] + matrix_BPP[held, 1:, 0] * first_B[held, None]
        rest_BPP = matrix_BPP[held, 1:, 1:]
        step_BP[held, 1:] = -np.linalg.solve(rest_BPP, rest_BP[:, :, None])[:, :, 0]
    promise_B = -np.einsum("bp,bp->b", step_BP, slope_BP)
    return step_BP / scale_BP, promise_B
