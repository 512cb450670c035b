"""The mixing law of Ye et al. (Data Mixing Laws), and its fit by Huber's loss.

Shapes: N runs, S sources, R residuals (runs, then penalties), B starts, P parameters, K directions
in which the mixtures vary.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dograph.errors import ConfigError
from dograph.rng import stream

DELTA = 0.05  # nats: where Huber's loss turns linear (Data Mixing Laws, code)
CONSTANT = 1e-12  # of the losses: a spread below this is rounding
SAME_DIRECTION = 1e-8  # of the largest spread of the mixtures: below, they do not vary
RIDGE = 1e-5  # on |slopes of log(L - c)|^2 / 2 where runs are too few: 0.01 counts like a t of 3
LARGEST_EXPONENT = 60.0  # exp of more would overflow sums of squares; no loss is near it


# All starts take steps together: those that are lowest before them do not lead to the lowest
# minimum of the 32 proxies in benchmarks/results/plans. Steps are short, so that each start stays
# in its own valley: a law that is flat but for a spike at one run that went wrong can be lower.
FIRST_STEPS = 12  # after which the best
GO_ON = 6  # go on
LONGEST_STEP = 0.5  # of all parameters but c: a factor of 1.6 in L - c
MOST_STEPS = 300
MOST_RESTARTS = 20


def huber(error_BN: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Huber's sums, with the slopes and the weights of least squares that has the same slopes.

    h(e) = e^2 / 2 up to |e| = delta, then delta (|e| - delta / 2); its slope is e clipped to
    [-delta, delta], and its second derivative is 1 where the weight is 1 and 0 elsewhere.
    """
    slope_BN = np.clip(error_BN, -delta, delta)
    value_B = np.einsum("bn,bn->b", slope_BN, error_BN - slope_BN / 2)
    weight_BN = delta / np.maximum(np.abs(error_BN), delta)
    return value_B, slope_BN, weight_BN


def _descend_together(fit: "ExponentialFit", start_BP: np.ndarray) -> np.ndarray:
    """Levenberg-Marquardt steps within the bounds from every start; the ends, lowest first.

    Huber's loss enters by the weights of `huber`. Parameters at a bound that the slope pushes
    outward stay where they are for a step.
    """
    num_runs = len(fit.loss_N)

    def loss(at_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        residual_BR = fit.residual(at_BP)
        value_B, _, weight_BN = huber(residual_BR[:, :num_runs], fit.delta)
        penalty_BR = residual_BR[:, num_runs:]
        value_B = value_B + np.square(penalty_BR).sum(axis=1) / 2
        return value_B, residual_BR, np.hstack([weight_BN, np.ones_like(penalty_BR)])

    point_BP, damping_B = start_BP.copy(), np.full(len(start_BP), 1e-3)
    value_B, residual_BR, weight_BR = loss(point_BP)
    for _ in range(FIRST_STEPS):
        jacobian_BRP = fit.jacobian(point_BP)
        weighted_BPR = (weight_BR[:, :, None] * jacobian_BRP).swapaxes(1, 2)
        slope_BP = (weighted_BPR @ residual_BR[:, :, None])[:, :, 0]
        held_BP = (point_BP <= fit.low_P) & (slope_BP > 0)
        free_BP = np.where(held_BP, 0.0, 1.0)
        curve_BPP = weighted_BPR @ jacobian_BRP * (free_BP[:, :, None] * free_BP[:, None, :])
        size_BP = np.diagonal(curve_BPP, axis1=1, axis2=2)
        ridge_BP = damping_B[:, None] * size_BP + 1e-300 + held_BP
        curve_BPP = curve_BPP + ridge_BP[:, :, None] * np.eye(point_BP.shape[1])
        step_BP = np.linalg.solve(curve_BPP, (free_BP * slope_BP)[:, :, None])[:, :, 0]
        length_B1 = np.linalg.norm(step_BP[:, 1:], axis=1, keepdims=True)
        step_BP /= np.maximum(length_B1 / LONGEST_STEP, 1.0)
        trial_BP = np.maximum(point_BP - step_BP, fit.low_P)
        trial = (*loss(trial_BP), trial_BP)
        lower_B = trial[0] < value_B
        for kept, tried in zip((value_B, residual_BR, weight_BR, point_BP), trial, strict=True):
            kept[lower_B] = tried[lower_B]
        damping_B = np.clip(np.where(lower_B, damping_B / 5, damping_B * 4), 1e-12, 1e8)
    return point_BP[np.argsort(value_B, kind="stable")]


def lowest_huber(fit: "ExponentialFit", start_BP: np.ndarray) -> tuple[np.ndarray, bool]:
    """The lowest point that any start leads to, and whether its descent came to an end.

    Huber's loss counts for the residuals of runs, squares for the penalties after them. scipy's
    dogbox steps keep exact bounds (its trf only comes near them). It may stop where a first step
    ends at a bound, so the best point is started from again.
    """
    from scipy.optimize import least_squares

    def rho(z_R: np.ndarray) -> np.ndarray:
        """The loss of squared residuals in units of delta, and two derivatives, as scipy asks."""
        outside_R = z_R > 1
        outside_R[len(fit.loss_N) :] = False
        root_R = np.sqrt(np.where(outside_R, z_R, 1.0))
        value_R = np.where(outside_R, 2 * root_R - 1, z_R)
        return np.stack([value_R, 1 / root_R, np.where(outside_R, -0.5 / root_R**3, 0.0)])

    how: dict[str, Any] = {"method": "dogbox", "bounds": (fit.low_P, np.inf), "x_scale": "jac"}
    how |= {"loss": rho, "f_scale": fit.delta, "ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}
    how |= {"jac": fit.jacobian, "max_nfev": MOST_STEPS}
    descend = partial(least_squares, fit.residual, **how)
    # A trial step that is far too long may overflow: it is rejected, and its warnings are noise.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        chosen: list[np.ndarray] = []
        for point_P in _descend_together(fit, start_BP):
            near = 1e-4 * (1 + np.abs(point_P).max())
            if all(np.abs(point_P - other_P).max() > near for other_P in chosen):
                chosen.append(point_P)
        ends = [descend(point_P) for point_P in chosen[:GO_ON]]
        best = min(ends, key=lambda end: end.cost)
        for _ in range(MOST_RESTARTS):
            again = descend(best.x)
            if again.cost >= best.cost * (1 - 1e-12):
                break
            best = again
    # Of several descents to one minimum, some never converge in the last digits.
    lowest = [end for end in (*ends, again) if end.cost <= best.cost * (1 + 1e-9)]
    return best.x, any(end.status > 0 for end in lowest)


LEAST_C = 1e-12  # of the lowest loss: c is positive, and this is what a c of 0 becomes
C_STARTS = 12  # values of c from which each set of row weights starts
REWEIGHTINGS = 8  # random row weights beside the equal ones, at most,
ROWS = 25_000  # and as many as keep starts times runs below this, but at least two


@dataclass(frozen=True)
class ExponentialLaw:
    """L(r) = c + exp(log_k + t . r), convex in r (Data Mixing Laws, eq. of one validation set).

    On the simplex one parameter is redundant: t + a with log_k - a is the same law. Compare `c`
    and `at_sources` (log_k + t_j), or predictions; a fit returns the law with mean(t) = 0.
    """

    c: float  # the level that the exponential adds to
    log_k: float
    t_S: np.ndarray
    converged: bool = True
    notes: tuple[str, ...] = ()  # what the fitted runs leave open

    @property
    def at_sources(self) -> np.ndarray:
        """log_k + t_j: the logarithm of L - c where source j is all there is, free of the gauge."""
        return np.asarray(self.log_k + self.t_S)

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,); rows must sum to 1, as the law is defined on the simplex."""
        weight_NS = np.asarray(weight_NS, dtype=np.float64)
        with np.errstate(over="ignore"):  # far from all runs a loss may be infinite
            return np.asarray(self.c + np.exp(self.log_k + weight_NS @ self.t_S))


class ExponentialFit:
    """One table's residuals as a function of (c, log q, theta_K).

    Mixtures are taken in the coordinates in which they vary: t . (r - mean) = column . theta, so
    that L = c + q exp(column . theta), q being L - c at the mean mixture.
    """

    def __init__(self, weight_NS: np.ndarray, loss_N: np.ndarray, delta: float = DELTA) -> None:
        self.loss_N, self.mean_S, self.delta = loss_N, weight_NS.mean(axis=0), delta
        left_NK, spread_K, right_KS = np.linalg.svd(weight_NS - self.mean_S, full_matrices=False)
        varies_K = spread_K > SAME_DIRECTION * max(spread_K[0], SAME_DIRECTION)
        self.rank, root = int(varies_K.sum()), np.sqrt(len(loss_N))
        # columns of mean 0 and mean square 1, orthogonal; t, like every direction, sums to 0
        self.column_NK = left_NK[:, varies_K] * root
        self.to_t_SK = right_KS[varies_K].T * (root / spread_K[varies_K])
        self.low_P = np.append(LEAST_C * float(loss_N.min()), np.full(self.rank + 1, -np.inf))
        few = len(loss_N) < self.rank + 3
        self.ridge_K = few * RIDGE * np.square(self.to_t_SK).sum(axis=0)

    def starts(self, draws: np.random.Generator) -> np.ndarray:
        """A grid of c that thickens towards the lowest loss and passes it; the rest is linear.

        The error of log(L - c) is that of L divided by L - c, hence the weights.
        """
        low, high = self.loss_N.min(), self.loss_N.max()
        below = low * (1 - np.geomspace(1, 1e-4, C_STARTS - 3))
        c_C = np.concatenate([below, low + (high - low) * np.array([0.02, 0.1, 0.3])])
        above_CN = np.maximum(self.loss_N - c_C[:, None], 1e-3 * (high - low))
        affordable = ROWS // (C_STARTS * len(self.loss_N)) - 1
        reweightings = min(REWEIGHTINGS, max(affordable, 2))
        weight_RN = draws.exponential(size=(1 + reweightings, len(self.loss_N)))
        weight_RN[0] = 1
        each_BN = np.repeat(above_CN, len(weight_RN), axis=0)
        weight_BN = np.square(each_BN) * np.tile(weight_RN, (len(c_C), 1))
        weight_BN /= weight_BN.mean(axis=1, keepdims=True)
        line_NK = np.hstack([np.ones((len(self.loss_N), 1)), self.column_NK])
        gram_BKK = line_NK.T @ (weight_BN[:, :, None] * line_NK)
        gram_BKK += 1e-9 * len(self.loss_N) * np.eye(line_NK.shape[1])
        right_BK = (weight_BN * np.log(each_BN)) @ line_NK
        theta_BK = np.linalg.solve(gram_BKK, right_BK[:, :, None])[:, :, 0]
        c_B = np.maximum(np.repeat(c_C, len(weight_RN)), self.low_P[0])
        return np.column_stack([c_B, theta_BK])

    def _grown(self, point_BP: np.ndarray) -> np.ndarray:
        """L - c of the runs, (..., N)."""
        log_BN = point_BP[..., 1:2] + point_BP[..., 2:] @ self.column_NK.T
        return np.asarray(np.exp(np.minimum(log_BN, LARGEST_EXPONENT)))

    def residual(self, point_BP: np.ndarray) -> np.ndarray:
        """Of one point (P,), or of several at once (B, P)."""
        error_BN = point_BP[..., :1] + self._grown(point_BP) - self.loss_N
        return np.concatenate([error_BN, np.sqrt(self.ridge_K) * point_BP[..., 2:]], axis=-1)

    def jacobian(self, point_BP: np.ndarray) -> np.ndarray:
        grown_BN1 = self._grown(point_BP)[..., None]
        by_run = [np.ones_like(grown_BN1), grown_BN1, grown_BN1 * self.column_NK]
        by_ridge_KP = np.pad(np.diag(np.sqrt(self.ridge_K)), ((0, 0), (2, 0)))
        by_ridge_BKP = np.broadcast_to(by_ridge_KP, (*point_BP.shape[:-1], *by_ridge_KP.shape))
        return np.concatenate([np.concatenate(by_run, axis=-1), by_ridge_BKP], axis=-2)


def fit_exponential(
    weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0, delta: float = DELTA
) -> ExponentialLaw:
    """The exponential law with the lowest Huber loss over the runs; the same for the same seed.

    The authors start torch's L-BFGS from 6000 points. Here every start takes c from a grid; for a
    given c the law is linear in log(L - c), so log k and t start at their weighted least squares,
    for equal row weights and for several random ones. scipy's bounded Gauss-Newton steps follow.
    Directions in which the mixtures do not vary get no slope: a source that no run has used counts
    like the mean of the others. With fewer runs than sources + 2 small slopes are preferred.
    """
    if loss_N.min() <= 0:
        raise ConfigError(
            f"the lowest loss is {loss_N.min():.4g}; a law of two positive terms needs positive "
            "losses (nats): use the surrogate ridge or linear for other measures"
        )
    weight_NS = weight_NS / weight_NS.sum(axis=1)[:, None]  # sums of rounded weights differ from 1
    num_runs, num_sources = weight_NS.shape
    if np.ptp(loss_N) <= CONSTANT * loss_N.max():
        half = float(loss_N.mean()) / 2
        note = "all losses are equal: no source matters, and c is a convention"
        return ExponentialLaw(half, float(np.log(half)), np.zeros(num_sources), notes=(note,))
    fit = ExponentialFit(weight_NS, loss_N, delta)
    draws = stream(seed, "exponential", num_runs, num_sources)
    point_P, converged = lowest_huber(fit, fit.starts(draws))
    notes, directions = [], f"{fit.rank} of {num_sources - 1} directions"
    if fit.rank < num_sources - 1:
        still = "along the others the law is flat by convention"
        notes.append(f"the mixtures vary in {directions}: {still}")
    if num_runs <= (free := fit.rank + 2):
        what = "the smallest slopes that fit are preferred"
        notes.append(f"{num_runs} runs for {free} free parameters: {what}")
    if point_P[0] <= fit.low_P[0]:
        notes.append("c is at its lower bound of 0: the runs show no level that losses tend to")
    t_S = fit.to_t_SK @ point_P[2:]
    return ExponentialLaw(
        c=float(point_P[0]),
        log_k=float(point_P[1] - fit.mean_S @ t_S),
        t_S=t_S,
        converged=converged,
        notes=tuple(notes),
    )
