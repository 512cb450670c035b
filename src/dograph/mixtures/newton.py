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
RIDGE = 1e-13  # keeps matrices invertible where a parameter has no effect at all


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
    low_P: np.ndarray | float = -np.inf,
    high_P: np.ndarray | float = np.inf,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each start's descent ends: parameters, values, and whether it converged.

    `at(point, which)` evaluates at points of the starts numbered `which`, which may each have a
    function of their own.
    Each step solves (|H| + damping A) step = -slope, where A is the majorant and |H| the Hessian
    with its negative eigenvalues (in the metric of A) turned positive, so that saddles repel. It
    is taken if the value falls; the damping follows. Parameters stay within `low_P` and `high_P`:
    one that is at a bound and would fall beyond it stays, one whose step would cross ends there,
    and the others are solved again with it fixed.
    """
    point_BP = start_BP.copy()
    local = at(point_BP, np.arange(len(point_BP)))
    damping_B = np.full(len(point_BP), FIRST_DAMPING)
    done_B = np.zeros(len(point_BP), dtype=bool)
    for _ in range(iterations):
        going = np.flatnonzero(~done_B & np.isfinite(local.value_B))
        if not going.size:
            break
        from_BP = point_BP[going]
        step_BP, promise_B = _steps(
            Local(*(part[going] for part in local)),
            damping_B[going],
            low_P - from_BP,
            high_P - from_BP,
        )
        trial_BP = np.clip(from_BP + step_BP, low_P, high_P)
        after = at(trial_BP, going)
        better_B = after.value_B < local.value_B[going]
        point_BP[going[better_B]] = trial_BP[better_B]
        # A step cut short at a bound may promise a rise: it is refused, and that is no end.
        ends_B = np.abs(promise_B) <= np.maximum(PRECISION * local.value_B[going], NOTHING)
        for old, new in zip(local, after, strict=True):
            old[going[better_B]] = new[better_B]
        damping_B[going] *= np.where(better_B, 1 / 8, 4.0)
        damping_B = np.maximum(damping_B, WEAKEST_DAMPING)
        done_B[going] = ends_B | (damping_B[going] > STRONGEST_DAMPING)
    return point_BP, local.value_B, done_B


def distinct(point_BP: np.ndarray, value_B: np.ndarray, number: int) -> np.ndarray:
    """The best starts, leaving out those that have come to the same point as a better one."""
    kept: list[int] = []
    for start in np.argsort(value_B, kind="stable"):
        near = 1e-6 * (1 + np.abs(point_BP[start]).max())
        if all(np.abs(point_BP[start] - point_BP[other]).max() > near for other in kept):
            kept.append(int(start))
        if len(kept) == number:
            break
    return np.array(kept)


def _steps(
    local: Local, damping_B: np.ndarray, low_BP: np.ndarray, high_BP: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The damped steps, none below `low_BP` or above `high_BP`, and the falls that they promise."""
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
    step_BP = _bounded(matrix_BPP, slope_BP, low_BP * scale_BP, high_BP * scale_BP)
    promise_B = -np.einsum("bp,bp->b", step_BP, slope_BP)
    return step_BP / scale_BP, promise_B


def _bounded(
    matrix_BPP: np.ndarray, slope_BP: np.ndarray, low_BP: np.ndarray, high_BP: np.ndarray
) -> np.ndarray:
    """Solve matrix . step = -slope, holding at its bound each parameter that would cross it.

    Those already at a bound that the slope pushes against are held from the first solution on:
    solved with the others they could drag them, and end the descent where it is not yet optimal.
    """
    held_BP = ((low_BP >= 0) & (slope_BP > 0)) | ((high_BP <= 0) & (slope_BP < 0))
    step_BP = np.zeros_like(slope_BP)
    left = np.arange(len(slope_BP))
    while left.size:
        solved_BP = _solved(matrix_BPP[left], slope_BP[left], step_BP[left], held_BP[left])
        step_BP[left] = np.clip(solved_BP, low_BP[left], high_BP[left])
        crossed_BP = (step_BP[left] != solved_BP) & ~held_BP[left]
        held_BP[left] |= crossed_BP
        left = left[crossed_BP.any(axis=1)]
    return step_BP


def _solved(
    matrix_BPP: np.ndarray, slope_BP: np.ndarray, step_BP: np.ndarray, held_BP: np.ndarray
) -> np.ndarray:
    """Solve for the parameters that are not held, those that are moving by `step_BP`."""
    right_BP = -slope_BP
    if held_BP.any():
        fixed_BP = np.where(held_BP, step_BP, 0.0)
        right_BP = right_BP - (matrix_BPP @ fixed_BP[:, :, None])[:, :, 0]
        right_BP = np.where(held_BP, fixed_BP, right_BP)
        any_BPP = held_BP[:, :, None] | held_BP[:, None, :]
        matrix_BPP = np.where(any_BPP, np.eye(len(slope_BP[0])), matrix_BPP)
    # With ones on its diagonal, no rounding of large entries makes the matrix singular.
    scale_BP = 1 / np.sqrt(np.einsum("bpp->bp", matrix_BPP))
    unit_BPP = matrix_BPP * scale_BP[:, :, None] * scale_BP[:, None, :]
    unit_BPP += RIDGE * np.eye(len(slope_BP[0]))
    step_BP = scale_BP * np.linalg.solve(unit_BPP, (scale_BP * right_BP)[:, :, None])[:, :, 0]
    return np.where(held_BP, right_BP, step_BP)
