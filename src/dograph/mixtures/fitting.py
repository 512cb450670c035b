"""What the fits of the mixing laws share: runs that can be fitted, and Huber's loss at its lowest.

Shapes: N runs, S sources, R residuals (runs, then penalties), B starts, P parameters.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dograph.errors import ConfigError

DELTA = 0.05  # nats: where Huber's loss turns linear (Data Mixing Laws, code)
CONSTANT = 1e-12  # of the losses: a spread below this is rounding
SUM_TOLERANCE = 0.02  # rows further from 1 than rounding explains are refused
SAME_DIRECTION = 1e-8  # of the largest spread of the mixtures: below, they do not vary
RIDGE = 1e-5  # on |slopes of log(L - c)|^2 / 2 where runs are too few: 0.01 counts like a t of 3
LARGEST_EXPONENT = 60.0  # exp of more would overflow sums of squares; no loss is near it

# All starts take first steps: those that are lowest before them do not lead to the lowest minimum
# of the 32 proxies in benchmarks/results/plans.
FIRST_STEPS = 5  # after which the best
GO_ON = 10  # go on
MOST_STEPS = 300


def checked(weight_NS: np.ndarray, loss_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mixtures and losses in float64, rows divided by their sums, or what is wrong with them."""
    weight_NS = np.asarray(weight_NS, dtype=np.float64)
    loss_N = np.asarray(loss_N, dtype=np.float64)
    if weight_NS.ndim != 2 or loss_N.shape != weight_NS.shape[:1] or not loss_N.size:
        raise ConfigError(
            f"the mixing law got mixtures of shape {weight_NS.shape} and losses of shape "
            f"{loss_N.shape}; it needs (runs, sources) and (runs,), with at least one run"
        )
    bad_N = ~(np.isfinite(weight_NS).all(axis=1) & np.isfinite(loss_N))
    if bad_N.any():
        raise ConfigError(
            f"{bad_N.sum()} of {len(bad_N)} runs have a weight or a loss that is not a number "
            f"(first: row {np.flatnonzero(bad_N)[0]}); leave these rows out of the fit"
        )
    sum_N = weight_NS.sum(axis=1)
    bad_N = (weight_NS < 0).any(axis=1) | (np.abs(sum_N - 1) > SUM_TOLERANCE)
    if bad_N.any():
        row = np.flatnonzero(bad_N)[0]
        raise ConfigError(
            f"row {row} is not a mixture: it sums to {sum_N[row]:.4g} and its lowest weight is "
            f"{weight_NS[row].min():.4g}; weights must be at least 0 and sum to 1"
        )
    if loss_N.min() <= 0:
        raise ConfigError(
            f"the lowest loss is {loss_N.min():.4g}; a law whose c and all that is added to it are "
            "positive needs positive losses (nats): use the surrogate ridge or linear for other "
            "measures"
        )
    return weight_NS / sum_N[:, None], loss_N


def huber(error_BN: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Huber's sums, with the slopes and the weights of least squares that has the same slopes.

    h(e) = e^2 / 2 up to |e| = delta, then delta (|e| - delta / 2); its slope is e clipped to
    [-delta, delta], and its second derivative is 1 where the weight is 1 and 0 elsewhere.
    """
    slope_BN = np.clip(error_BN, -delta, delta)
    value_B = np.einsum("bn,bn->b", slope_BN, error_BN - slope_BN / 2)
    weight_BN = delta / np.maximum(np.abs(error_BN), delta)
    return value_B, slope_BN, weight_BN


def lowest_huber(
    residual: Callable[[np.ndarray], np.ndarray],
    jacobian: Callable[[np.ndarray], np.ndarray],
    start_BP: np.ndarray,
    *,
    bounds: tuple[np.ndarray, np.ndarray],
    delta: float,
    num_runs: int,
) -> tuple[np.ndarray, bool]:
    """The lowest point that any start leads to, and whether its descent came to an end.

    Huber's loss counts for the first `num_runs` residuals; those after them are penalties, whose
    squares count. scipy's dogbox steps keep exact bounds (its trf only comes near them). It may
    stop where a first step ends at a bound, so the best point is started from again.
    """
    from scipy.optimize import least_squares

    def rho(z_R: np.ndarray) -> np.ndarray:
        """The loss of squared residuals in units of delta, and two derivatives, as scipy asks."""
        outside_R = z_R > 1
        outside_R[num_runs:] = False
        root_R = np.sqrt(np.where(outside_R, z_R, 1.0))
        value_R = np.where(outside_R, 2 * root_R - 1, z_R)
        return np.stack([value_R, 1 / root_R, np.where(outside_R, -0.5 / root_R**3, 0.0)])

    def descend(start_P: np.ndarray, steps: int) -> Any:
        # a trial step beyond all sense overflows, is refused, and says nothing to a user
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return least_squares(
                residual,
                start_P,
                jacobian,
                bounds=bounds,
                method="dogbox",
                ftol=1e-15,
                xtol=1e-15,
                gtol=1e-15,
                x_scale="jac",
                loss=rho,
                f_scale=delta,
                max_nfev=steps,
            )

    ends: list[Any] = []
    for end in sorted((descend(s, FIRST_STEPS) for s in start_BP), key=lambda end: end.cost):
        near = 1e-6 * (1 + np.abs(end.x).max())
        if all(np.abs(end.x - other.x).max() > near for other in ends):
            ends.append(end)
    best = min((descend(end.x, MOST_STEPS) for end in ends[:GO_ON]), key=lambda end: end.cost)
    while (again := descend(best.x, MOST_STEPS)).cost < best.cost * (1 - 1e-12):
        best = again
    return best.x, best.status > 0
