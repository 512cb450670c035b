"""The exponential mixing law: a loss as a function of the mixture (Ye et al., Data Mixing Laws).

Shapes: N runs, S sources, B starts, K directions in which the mixtures vary.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.convex import Form
from dograph.mixtures.newton import Local, damped_newton, distinct, huber
from dograph.rng import stream

# How the exponential mixing law is fitted: coordinates, starts and exact derivatives.


LEAST_C = 1e-12  # of the lowest loss: c is positive, and this is what a c of 0 becomes
RIDGE = 1e-5  # on |t|^2 / 2 where runs are too few: an error of 0.01 counts like a t of 3
SAME_DIRECTION = 1e-8  # of the largest spread of the mixtures: below, they do not vary
LARGEST_EXPONENT = 60.0  # exp of more would overflow sums of squares; no loss is near it
C_STARTS = 12  # values of c from which each set of row weights starts
REWEIGHTINGS = 8  # random row weights beside the equal ones, at most,
ROWS = 25_000  # and as many as keep starts times runs below this, but at least two
FIRST_STEPS = 5  # of every start, after which the best go on
GO_ON = 10
MOST_STEPS = 100


class Design(NamedTuple):
    """Mixtures in the coordinates in which they vary: t . (r - mean) = column . theta."""

    column_NK: np.ndarray  # mean 0, mean square 1, orthogonal
    to_t_SK: np.ndarray  # t = to_t_SK . theta, whose sum is 0 like that of every direction
    mean_S: np.ndarray
    ridge_K: np.ndarray


def design_of(weight_NS: np.ndarray) -> tuple[Design, tuple[str, ...]]:
    """Coordinates of the directions in which the mixtures vary, and what the runs leave open."""
    num_runs, num_sources = weight_NS.shape
    mean_S = weight_NS.mean(axis=0)
    left_NK, spread_K, right_KS = np.linalg.svd(weight_NS - mean_S, full_matrices=False)
    varies_K = spread_K > SAME_DIRECTION * max(spread_K[0], SAME_DIRECTION)
    rank = int(varies_K.sum())
    to_t_SK = right_KS[varies_K].T * (np.sqrt(num_runs) / spread_K[varies_K])
    few = num_runs < rank + 3
    notes: tuple[str, ...] = ()
    if rank < num_sources - 1:
        notes += (
            f"the mixtures vary in {rank} of {num_sources - 1} directions: along the others the "
            "law is flat by convention",
        )
    if few:
        notes += (
            f"{num_runs} runs for {rank + 2} free parameters: the smallest slopes that fit are "
            "preferred",
        )
    design = Design(
        column_NK=left_NK[:, varies_K] * np.sqrt(num_runs),
        to_t_SK=to_t_SK,
        mean_S=mean_S,
        ridge_K=few * RIDGE * np.square(to_t_SK).sum(axis=0),
    )
    return design, notes


class Fit:
    """One table's Huber loss as a function of (c, m, s), with its derivatives, for many starts.

    L = c + q exp(u), q = m - c, u = column . s / q: m is the loss at the mean mixture and s its
    slopes there. Where the runs hardly fix c, the best log_k and t for each c lie on a curve; the
    best m and s hardly move, so that Newton's steps can be long.
    """

    def __init__(self, design: Design, loss_N: np.ndarray, delta: float) -> None:
        self.design, self.loss_N, self.delta = design, loss_N, delta
        self.least_c = LEAST_C * float(loss_N.min())

    def starts(self, draws: np.random.Generator) -> np.ndarray:
        """A grid of c that thickens towards the lowest loss and passes it; m, s by least squares.

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
        line_NK = np.hstack([np.ones((len(self.loss_N), 1)), self.design.column_NK])
        gram_BKK = line_NK.T @ (weight_BN[:, :, None] * line_NK)
        gram_BKK += 1e-9 * len(self.loss_N) * np.eye(line_NK.shape[1])
        right_BK = (weight_BN * np.log(each_BN)) @ line_NK
        theta_BK = np.linalg.solve(gram_BKK, right_BK[:, :, None])[:, :, 0]
        c_B1 = np.maximum(np.repeat(c_C, len(weight_RN)), self.least_c)[:, None]
        q_B1 = np.exp(theta_BK[:, :1])
        return np.hstack([c_B1, c_B1 + q_B1, q_B1 * theta_BK[:, 1:]])

    def best(self, draws: np.random.Generator) -> tuple[np.ndarray, bool]:
        """The lowest point that any start leads to, and whether its descent came to an end."""
        point_BP, value_B, _ = self._descend(self.starts(draws), FIRST_STEPS)
        go_on_B = distinct(point_BP, value_B, GO_ON)
        point_BP, value_B, done_B = self._descend(point_BP[go_on_B], MOST_STEPS)
        lowest = int(np.argmin(value_B))
        return point_BP[lowest], bool(done_B[lowest])

    def _descend(
        self, start_BP: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low_P = np.full(start_BP.shape[1], -np.inf)
        low_P[0] = self.least_c
        return damped_newton(self.at, start_BP, iterations=steps, low_P=low_P)

    def at(self, point_BP: np.ndarray, _which: np.ndarray) -> Local:
        """Value, slope, Hessian and Gauss-Newton matrix.

        dL = (1 - e(1 - u), e(1 - u), e column) with e = exp(u), and the second derivative of L is
        of rank one: (e / q) v v' with v = (u, -u, column).
        """
        c_B, s_BK = point_BP[:, 0], point_BP[:, 2:]
        column_NK = self.design.column_NK
        possible_B = point_BP[:, 1] > c_B
        q_B1 = np.where(possible_B, point_BP[:, 1] - c_B, 1.0)[:, None]
        u_BN = np.minimum((s_BK @ column_NK.T) / q_B1, LARGEST_EXPONENT)
        e_BN = np.exp(u_BN)
        value_B, slope_BN, weight_BN = huber(c_B[:, None] + q_B1 * e_BN - self.loss_N, self.delta)
        dm_BN = e_BN * (1 - u_BN)
        first = (1 - dm_BN, dm_BN, e_BN)
        second = (u_BN, -u_BN, np.ones_like(u_BN))
        inside_BN = (weight_BN >= 1).astype(np.float64)
        majorant_BPP = self._products(weight_BN, first)
        hessian_BPP = self._products(inside_BN, first)
        hessian_BPP += self._products(slope_BN * e_BN / q_B1, second)
        slope_BP = np.hstack(
            [
                np.einsum("bn,bn->b", slope_BN, first[0])[:, None],
                np.einsum("bn,bn->b", slope_BN, dm_BN)[:, None],
                (slope_BN * e_BN) @ column_NK,
            ]
        )
        local = Local(value_B, slope_BP, hessian_BPP, majorant_BPP)
        if self.design.ridge_K.any():
            self._add_ridge(local, s_BK, q_B1)
        local.value_B[~possible_B] = np.inf
        return local

    def _products(
        self, row_BN: np.ndarray, part: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """Sum over rows of row_n d_n d_n' with d = (part 0, part 1, part 2 times column)."""
        column_NK = self.design.column_NK
        zero_BN, one_BN, rest_BN = part
        size = 2 + column_NK.shape[1]
        sum_BPP = np.empty((len(row_BN), size, size))
        sum_BPP[:, 0, 0] = np.einsum("bn,bn,bn->b", row_BN, zero_BN, zero_BN)
        sum_BPP[:, 1, 1] = np.einsum("bn,bn,bn->b", row_BN, one_BN, one_BN)
        sum_BPP[:, 0, 1] = sum_BPP[:, 1, 0] = np.einsum("bn,bn,bn->b", row_BN, zero_BN, one_BN)
        scaled_BN = row_BN * rest_BN
        sum_BPP[:, 0, 2:] = sum_BPP[:, 2:, 0] = (scaled_BN * zero_BN) @ column_NK
        sum_BPP[:, 1, 2:] = sum_BPP[:, 2:, 1] = (scaled_BN * one_BN) @ column_NK
        scaled_BN *= rest_BN
        sum_BPP[:, 2:, 2:] = column_NK.T @ (scaled_BN[:, :, None] * column_NK)
        return sum_BPP

    def _add_ridge(self, local: Local, s_BK: np.ndarray, q_B1: np.ndarray) -> None:
        """Add sum_k ridge_k theta_k^2 / 2, theta = s / q, to the value and its derivatives."""
        ridge_K = self.design.ridge_K
        theta_BK = s_BK / q_B1
        pull_BK = ridge_K * theta_BK / q_B1  # the slope in s; minus theta times it is that in q
        along_B = np.einsum("bk,bk->b", theta_BK, pull_BK)
        local.value_B[:] += np.square(theta_BK) @ ridge_K / 2
        local.slope_BP[:, 2:] += pull_BK
        for q_sign, index in ((-1.0, 0), (1.0, 1)):
            local.slope_BP[:, index] -= q_sign * along_B
            for matrix_BPP, cross, square in (
                (local.hessian_BPP, 2.0, 3.0),
                (local.majorant_BPP, 1.0, 1.0),
            ):
                matrix_BPP[:, index, 2:] -= q_sign * cross * pull_BK / q_B1
                matrix_BPP[:, 2:, index] -= q_sign * cross * pull_BK / q_B1
                matrix_BPP[:, index, index] += square * along_B / q_B1[:, 0]
                matrix_BPP[:, index, 1 - index] -= square * along_B / q_B1[:, 0]
        diagonal = np.arange(2, 2 + len(ridge_K))
        for matrix_BPP in (local.hessian_BPP, local.majorant_BPP):
            matrix_BPP[:, diagonal, diagonal] += ridge_K / np.square(q_B1)


DELTA = 0.05  # nats: where Huber's loss turns linear (the authors' code; 0.02 for two sources)
DELTA_TWO_SOURCES = 0.02
CONSTANT = 1e-12  # of the losses: a spread below this is rounding
SUM_TOLERANCE = 0.02  # rows further from 1 than rounding explains are refused


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


@dataclass(frozen=True)
class Exponential:
    """Fits the exponential law by Huber's loss on the loss scale (Data Mixing Laws, code).

    The authors start torch's L-BFGS from 6000 points (log c in [-2, 1.5], log k in [-10, 1],
    t in U(0, 0.1)). Here every start takes c from a grid over [0, lowest loss], and beyond, which
    contains that range; for a given c the law is linear in log(L - c), so log k and t start at
    their weighted least squares, for equal row weights and for several random ones. Damped Newton
    steps with exact second derivatives follow. `delta` is in nats.
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
        num_sources = weight_NS.shape[1]
        if np.ptp(loss_N) <= CONSTANT * loss_N.max():
            half = float(loss_N.mean()) / 2
            note = "all losses are equal: no source matters, and c is a convention"
            return ExponentialLaw(half, float(np.log(half)), np.zeros(num_sources), notes=(note,))
        design, notes = design_of(weight_NS)
        fit = Fit(design, loss_N, self.delta)
        point_P, converged = fit.best(stream(seed, "exponential", len(loss_N), num_sources))
        c, q = point_P[0], point_P[1] - point_P[0]
        theta_K = point_P[2:] / q
        if c <= fit.least_c:
            notes += ("c is at its lower bound of 0: the runs show no level that losses tend to",)
        t_S = design.to_t_SK @ theta_K
        error_N = (c + q * np.exp(design.column_NK @ theta_K) - loss_N)[None]
        return ExponentialLaw(
            c=float(c),
            log_k=float(np.log(q) - design.mean_S @ t_S),
            t_S=t_S,
            huber=float(huber(error_N, self.delta)[0][0]),
            converged=converged,
            notes=notes,
        )


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


# The authors' own recipe for the mixing law of two sources.


C_POINTS = 1000  # on [0, lowest loss], ends included


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
