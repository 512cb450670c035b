"""The exponential mixing law: a loss as a function of the mixture (Ye et al., Data Mixing Laws).

Shapes: N runs, S sources, B starts, K directions in which the mixtures vary, P parameters.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.convex import Form
from dograph.mixtures.fitting import (
    CONSTANT,
    DELTA,
    LARGEST_EXPONENT,
    RIDGE,
    SAME_DIRECTION,
    checked,
    huber,
    lowest_huber,
)
from dograph.rng import stream

DELTA_TWO_SOURCES = 0.02  # nats (the authors' code)
LEAST_C = 1e-12  # of the lowest loss: c is positive, and this is what a c of 0 becomes
C_STARTS = 12  # values of c from which each set of row weights starts
REWEIGHTINGS = 8  # random row weights beside the equal ones, at most,
ROWS = 25_000  # and as many as keep starts times runs below this, but at least two
C_POINTS = 1000  # of the recipe for two sources, on [0, lowest loss], ends included


@dataclass(frozen=True)
class ExponentialLaw:
    """L(r) = c + exp(log_k + t . r), convex in r (Data Mixing Laws, eq. of one validation set).

    On the simplex one parameter is redundant: t + a with log_k - a is the same law. Compare `c`
    and `at_sources` (log_k + t_j), or predictions; a fit returns the law with mean(t) = 0.
    `huber` is the sum of Huber's loss over the runs fitted; `notes` say what they could not fix.
    """

    c: float
    log_k: float
    t_S: np.ndarray
    huber: float = 0.0
    converged: bool = True
    notes: tuple[str, ...] = ()

    @property
    def at_sources(self) -> np.ndarray:
        """log_k + t_j: the logarithm of L - c where source j is all there is, free of the gauge."""
        at_S: np.ndarray = self.log_k + self.t_S
        return at_S

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,); rows must sum to 1, as the law is defined on the simplex."""
        weight_NS = np.asarray(weight_NS, dtype=np.float64)
        loss_N: np.ndarray = self.c + np.exp(self.log_k + weight_NS @ self.t_S)
        return loss_N

    def form(self) -> Form:
        """L - c as a function of t . r, in the gauge with mean(t) = 0."""
        mean = float(self.t_S.mean())
        log_k = self.log_k + mean

        def at(x: float) -> tuple[float, float, float]:
            grown = float(np.exp(log_k + x))
            return grown, grown, grown

        return Form(self.t_S - mean, at)


class ExponentialFit:
    """One table's residuals as a function of (c, log q, theta_K).

    Mixtures are taken in the coordinates in which they vary: t . (r - mean) = column . theta, so
    that L = c + q exp(column . theta), q being L - c at the mean mixture.
    """

    def __init__(self, weight_NS: np.ndarray, loss_N: np.ndarray) -> None:
        num_runs, num_sources = weight_NS.shape
        self.loss_N, self.mean_S = loss_N, weight_NS.mean(axis=0)
        self.least_c = LEAST_C * float(loss_N.min())
        left_NK, spread_K, right_KS = np.linalg.svd(weight_NS - self.mean_S, full_matrices=False)
        varies_K = spread_K > SAME_DIRECTION * max(spread_K[0], SAME_DIRECTION)
        rank = int(varies_K.sum())
        few = num_runs < rank + 3
        # columns of mean 0 and mean square 1, orthogonal; t, like every direction, sums to 0
        self.column_NK = left_NK[:, varies_K] * np.sqrt(num_runs)
        self.to_t_SK = right_KS[varies_K].T * (np.sqrt(num_runs) / spread_K[varies_K])
        self.ridge_K = few * RIDGE * np.square(self.to_t_SK).sum(axis=0)
        self.notes: tuple[str, ...] = ()
        if rank < num_sources - 1:
            self.notes += (
                f"the mixtures vary in {rank} of {num_sources - 1} directions: along the others "
                "the law is flat by convention",
            )
        if few:
            self.notes += (
                f"{num_runs} runs for {rank + 2} free parameters: the smallest slopes that fit are "
                "preferred",
            )

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
        c_B = np.maximum(np.repeat(c_C, len(weight_RN)), self.least_c)
        return np.column_stack([c_B, theta_BK])

    def _grown(self, point_P: np.ndarray) -> np.ndarray:
        """L - c of the runs, (N,)."""
        log_N = point_P[1] + self.column_NK @ point_P[2:]
        grown_N: np.ndarray = np.exp(np.minimum(log_N, LARGEST_EXPONENT))
        return grown_N

    def residual(self, point_P: np.ndarray) -> np.ndarray:
        error_N = point_P[0] + self._grown(point_P) - self.loss_N
        return np.concatenate([error_N, np.sqrt(self.ridge_K) * point_P[2:]])

    def jacobian(self, point_P: np.ndarray) -> np.ndarray:
        grown_N = self._grown(point_P)
        ones_N = np.ones_like(grown_N)
        by_run_NP = np.column_stack([ones_N, grown_N, grown_N[:, None] * self.column_NK])
        by_ridge_KP = np.pad(np.diag(np.sqrt(self.ridge_K)), ((0, 0), (2, 0)))
        return np.vstack([by_run_NP, by_ridge_KP])


@dataclass(frozen=True)
class Exponential:
    """Fits the exponential law by Huber's loss on the loss scale (Data Mixing Laws, code).

    The authors start torch's L-BFGS from 6000 points (log c in [-2, 1.5], log k in [-10, 1],
    t in U(0, 0.1)). Here every start takes c from a grid over [0, lowest loss], and beyond, which
    contains that range; for a given c the law is linear in log(L - c), so log k and t start at
    their weighted least squares, for equal row weights and for several random ones. scipy's
    bounded Gauss-Newton steps follow. `delta` is in nats.
    """

    name: ClassVar[str] = "exponential"
    delta: float = DELTA

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> ExponentialLaw:
        """The law with the lowest Huber loss over the runs; the same for the same seed.

        Rows are divided by their sums, which rounding may have moved from 1. Directions in which
        the mixtures do not vary get no slope: a source that no run has used counts like the mean
        of the others. With fewer runs than sources + 2 the smallest slopes are preferred.
        """
        weight_NS, loss_N = checked(weight_NS, loss_N)
        if not self.delta > 0:
            raise ConfigError(f"delta is {self.delta}; it must be above 0 (the authors: 0.05)")
        num_runs, num_sources = weight_NS.shape
        if np.ptp(loss_N) <= CONSTANT * loss_N.max():
            half = float(loss_N.mean()) / 2
            note = "all losses are equal: no source matters, and c is a convention"
            return ExponentialLaw(half, float(np.log(half)), np.zeros(num_sources), notes=(note,))
        fit = ExponentialFit(weight_NS, loss_N)
        start_BP = fit.starts(stream(seed, "exponential", num_runs, num_sources))
        low_P = np.full(start_BP.shape[1], -np.inf)
        low_P[0] = fit.least_c
        point_P, converged = lowest_huber(
            fit.residual,
            fit.jacobian,
            start_BP,
            bounds=(low_P, np.full_like(low_P, np.inf)),
            delta=self.delta,
            num_runs=num_runs,
        )
        notes = fit.notes
        if point_P[0] <= fit.least_c:
            notes += ("c is at its lower bound of 0: the runs show no level that losses tend to",)
        t_S = fit.to_t_SK @ point_P[2:]
        return ExponentialLaw(
            c=float(point_P[0]),
            log_k=float(point_P[1] - fit.mean_S @ t_S),
            t_S=t_S,
            huber=float(huber(fit.residual(point_P)[None, :num_runs], self.delta)[0][0]),
            converged=converged,
            notes=notes,
        )


def two_source_law(weight_NS: np.ndarray, loss_N: np.ndarray) -> ExponentialLaw:
    """The law with the c for which log(L - c) is most nearly linear in the share (Ye et al., code).

    c is the one of 1000 equally spaced points of [0, lowest loss] with the largest
    |corr(r, log(L - c))|, the lowest such c; then slope and intercept of log(L - c) by least
    squares. No loss is minimised on the loss scale: `Exponential(delta=0.02)` does that.
    """
    weight_NS, loss_N = checked(weight_NS, loss_N)
    if weight_NS.shape[1] != 2:
        raise ConfigError(
            f"the two-source recipe got {weight_NS.shape[1]} sources; use Exponential for others"
        )
    share_N = weight_NS[:, 0] - weight_NS[:, 0].mean()
    if len(loss_N) < 3 or not np.ptp(share_N) > 0 or not np.ptp(loss_N) > 0:
        raise ConfigError(
            f"{len(loss_N)} runs with {len(np.unique(weight_NS[:, 0]))} different mixtures and "
            f"{len(np.unique(loss_N))} different losses; the recipe needs 3 runs that differ"
        )
    # At the last point the lowest run has log(0), whose correlation is not a number.
    c_C = np.linspace(0, loss_N.min(), C_POINTS)[:-1]
    log_CN = np.log(loss_N - c_C[:, None])
    log_CN -= log_CN.mean(axis=1, keepdims=True)
    covariance_C = log_CN @ share_N
    best = int(np.argmax(np.abs(covariance_C) / np.linalg.norm(log_CN, axis=1)))
    c = float(c_C[best])
    slope = float(covariance_C[best] / (share_N @ share_N))
    at_mean = float(np.log(loss_N - c).mean())
    error_N = c + np.exp(at_mean + slope * share_N) - loss_N
    return ExponentialLaw(
        c=c,
        log_k=at_mean + slope * (0.5 - float(weight_NS[:, 0].mean())),
        t_S=np.array([slope / 2, -slope / 2]),
        huber=float(huber(error_N[None], DELTA_TWO_SOURCES)[0][0]),
    )
