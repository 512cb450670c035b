"""The mixing law of Ye et al. (Data Mixing Laws), and its fit by Huber's loss.

Shapes: N runs, S sources, R residuals (runs, then penalties), B starts, P parameters, K directions
in which the mixtures vary, L latent validation sets.
"""

from dataclasses import dataclass
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


def _descend_together(fit: "ExponentialFit", point_BP: np.ndarray) -> np.ndarray:
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

    damping_B = np.full(len(point_BP), 1e-3)
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
        trial_B, trial_residual_BR, trial_weight_BR = loss(trial_BP)
        lower_B = trial_B < value_B
        point_BP = np.where(lower_B[:, None], trial_BP, point_BP)
        residual_BR = np.where(lower_B[:, None], trial_residual_BR, residual_BR)
        weight_BR = np.where(lower_B[:, None], trial_weight_BR, weight_BR)
        value_B = np.where(lower_B, trial_B, value_B)
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

    def descend(start_P: np.ndarray) -> Any:
        return least_squares(fit.residual, start_P, fit.jacobian, max_nfev=MOST_STEPS, **how)

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


@dataclass(frozen=True)
class ImplicitLaw:
    """The mean of the laws of latent validation sets: L(r) = c + sum_l exp(a_l + t_l . r).

    The implicit form (Data Mixing Laws): sets and their shares are unknown, only L is measured.
    """

    laws: tuple[ExponentialLaw, ...]  # of equal c

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        return np.asarray(np.mean([law.predict(weight_NS) for law in self.laws], axis=0))


class ExponentialFit:
    """One table's residuals as a function of c, and of (log q, theta_K) of each of `latent` sets.

    Mixtures are taken in the coordinates in which they vary: t . (r - mean) = column . theta, so
    that L = c + sum of q exp(column . theta), q being its part of L - c at the mean mixture.
    """

    def __init__(
        self, weight_NS: np.ndarray, loss_N: np.ndarray, delta: float = DELTA, latent: int = 1
    ) -> None:
        self.loss_N, self.mean_S, self.delta = loss_N, weight_NS.mean(axis=0), delta
        self.latent = latent
        left_NK, spread_K, right_KS = np.linalg.svd(weight_NS - self.mean_S, full_matrices=False)
        varies_K = spread_K > SAME_DIRECTION * max(spread_K[0], SAME_DIRECTION)
        self.rank, root = int(varies_K.sum()), np.sqrt(len(loss_N))
        # columns of mean 0 and mean square 1, orthogonal; t, like every direction, sums to 0
        self.column_NK = left_NK[:, varies_K] * root
        self.to_t_SK = right_KS[varies_K].T * (root / spread_K[varies_K])
        free = latent * (self.rank + 1)
        self.low_P = np.append(LEAST_C * float(loss_N.min()), np.full(free, -np.inf))
        few = latent > 1 or len(loss_N) < self.rank + 3
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
        length_B = (self.latent > 1) * np.linalg.norm(theta_BK[:, 1:], axis=1)
        theta_BK[:, 0] -= np.log(self.latent)
        apart_BLK = draws.normal(size=(len(c_B), self.latent, theta_BK.shape[1]))
        set_BLK = theta_BK[:, None] + length_B[:, None, None] * apart_BLK
        return np.column_stack([c_B, set_BLK.reshape(len(c_B), -1)])

    def sets(self, point_BP: np.ndarray) -> np.ndarray:
        """(log q, theta_K) of each latent set, (..., L, 1 + K)."""
        return point_BP[..., 1:].reshape(*point_BP.shape[:-1], self.latent, -1)

    def _grown(self, point_BP: np.ndarray) -> np.ndarray:
        """The latent sets' parts of L - c of the runs, (..., L, N)."""
        set_BLP = self.sets(point_BP)
        log_BLN = set_BLP[..., :1] + set_BLP[..., 1:] @ self.column_NK.T
        return np.asarray(np.exp(np.minimum(log_BLN, LARGEST_EXPONENT)))

    def residual(self, point_BP: np.ndarray) -> np.ndarray:
        """Of one point (P,), or of several at once (B, P)."""
        error_BN = point_BP[..., :1] + self._grown(point_BP).sum(axis=-2) - self.loss_N
        slope_BLK = np.sqrt(self.ridge_K) * self.sets(point_BP)[..., 1:]
        return np.concatenate([error_BN, slope_BLK.reshape(*point_BP.shape[:-1], -1)], axis=-1)

    def jacobian(self, point_BP: np.ndarray) -> np.ndarray:
        line_N1K = np.pad(self.column_NK, ((0, 0), (1, 0)), constant_values=1.0)
        each_BNLK = np.moveaxis(self._grown(point_BP)[..., None] * line_N1K, -3, -2)
        by_set = each_BNLK.reshape(*each_BNLK.shape[:-2], -1)
        by_run_BNP = np.concatenate([np.ones_like(by_set[..., :1]), by_set], axis=-1)
        by_slope = np.pad(np.diag(np.sqrt(self.ridge_K)), ((0, 0), (1, 0)))
        by_ridge = np.pad(np.kron(np.eye(self.latent), by_slope), ((0, 0), (1, 0)))
        by_ridge_BRP = np.broadcast_to(by_ridge, (*point_BP.shape[:-1], *by_ridge.shape))
        return np.concatenate([by_run_BNP, by_ridge_BRP], axis=-2)


def fit_exponential(
    weight_NS: np.ndarray,
    loss_N: np.ndarray,
    *,
    seed: int = 0,
    delta: float = DELTA,
    latent: int = 1,
) -> ExponentialLaw | ImplicitLaw:
    """The exponential law with the lowest Huber loss over the runs; the same for the same seed.

    With several `latent` sets it is the implicit law, whose starts differ at random in their sets.

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
    fit = ExponentialFit(weight_NS, loss_N, delta, latent)
    draws = stream(seed, "exponential", num_runs, num_sources)
    point_P, converged = lowest_huber(fit, fit.starts(draws))
    notes, directions = [], f"{fit.rank} of {num_sources - 1} directions"
    if fit.rank < num_sources - 1:
        still = "along the others the law is flat by convention"
        notes.append(f"the mixtures vary in {directions}: {still}")
    if num_runs <= (free := latent * (fit.rank + 1) + 1):
        what = "the smallest slopes that fit are preferred"
        notes.append(f"{num_runs} runs for {free} free parameters: {what}")
    if point_P[0] <= fit.low_P[0]:
        notes.append("c is at its lower bound of 0: the runs show no level that losses tend to")
    laws = []
    for log_q, *theta_K in fit.sets(point_P):
        t_S = fit.to_t_SK @ theta_K
        log_k = float(log_q - fit.mean_S @ t_S + np.log(latent))
        laws.append(ExponentialLaw(float(point_P[0]), log_k, t_S, converged, tuple(notes)))
    return laws[0] if latent == 1 else ImplicitLaw(tuple(laws))
