"""The transfer law: a loss as a power of the tokens that a mixture is worth to it.

Shapes: N runs, S sources, B starts, P parameters.
"""

from dataclasses import dataclass, replace
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

# alpha of tokens: 0.095 in Kaplan et al. (2020), 0.28 in Hoffmann et al. (2022)
ALPHA_RANGE = (0.05, 4.0)
LEAST_WORTH = 1e-100  # of a run's mixture, relative to the mean one: with less its loss is infinite
LEAST_LEVEL = 1e-15  # of L - c at the mean mixture: a of a law flatter than this overflows
START_ALPHAS = (0.1, 0.3, 1.0, 3.0)
START_C = (0.0, 0.5, 0.8, 0.95)  # of the lowest loss


@dataclass(frozen=True)
class TransferLaw:
    """L(r) = c + (a . r)^-alpha, a_j >= 0: a power law in effective tokens, convex in r.

    a_j says how much a token of source j is worth for this loss, so a . r is proportional to the
    tokens of a run that count (compare the data term of scaling laws, (D0 / D)^alpha). Sources
    with a_j = 0 help nothing: a mixture of them alone has an infinite loss. a has no gauge, but
    its unit depends on alpha: read `worth_S`. For a large alpha the law comes near an exponential
    one. `huber` and `notes` as for the exponential law.
    """

    c: float
    alpha: float
    a_S: np.ndarray
    huber: float = 0.0
    converged: bool = True
    notes: tuple[str, ...] = ()

    @property
    def worth_S(self) -> np.ndarray:
        """a_j / max a: a token of source j in tokens of the source that helps most."""
        worth_S: np.ndarray = self.a_S / self.a_S.max()
        return worth_S

    @property
    def log_k(self) -> float:
        """log(L - c) at the source that helps most: L = c + exp(log_k) (worth . r)^-alpha."""
        return float(-self.alpha * np.log(self.a_S.max()))

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,), infinite where a . r = 0; rows must sum to 1."""
        x_N = np.asarray(weight_NS, dtype=np.float64) @ self.worth_S
        with np.errstate(divide="ignore"):
            loss_N: np.ndarray = self.c + np.exp(self.log_k - self.alpha * np.log(x_N))
        return loss_N

    def form(self) -> Form:
        """L - c as a function of worth . r."""
        log_k, alpha = self.log_k, self.alpha

        def at(x: float) -> tuple[float, float, float]:
            if not x > 0:
                return np.inf, -np.inf, np.inf
            value = float(np.exp(log_k - alpha * np.log(x)))
            return value, -alpha * value / x, alpha * (alpha + 1) * value / x**2

        return Form(self.worth_S, at)


class TransferFit:
    """One table's residuals as a function of (c, tau, p_S); tau = 1 / alpha.

    L = c + y (x / y)^-alpha with x = p . r and y = p . mean mixture: y is L - c at the mean
    mixture, whatever alpha is, and p_j / y is what a token of source j is worth there. Runs that
    hardly fix alpha and c fix the loss m, the slopes -s_j and a curvature 1 / h at the mean
    mixture; laws with these have p_j = h + tau (h + s_j), s less its mean, and c = m - h - tau h:
    a straight valley, along which steps can be long.
    """

    def __init__(self, weight_NS: np.ndarray, loss_N: np.ndarray, few: bool) -> None:
        self.weight_NS, self.loss_N = weight_NS, loss_N
        self.mean_S = weight_NS.mean(axis=0)
        self.ridge = few * RIDGE
        zero_S = np.zeros(len(self.mean_S))
        self.low_P = np.concatenate([[0.0, 1 / ALPHA_RANGE[1]], zero_S])
        self.high_P = np.concatenate([[np.inf, 1 / ALPHA_RANGE[0]], zero_S + np.inf])

    def starts(self) -> np.ndarray:
        """A grid of c and alpha, (L - c)^(-1 / alpha) being linear in r for the right ones.

        p by non-negative least squares; the error of (L - c)^(-1 / alpha) is that of L times
        (L - c)^(-1 / alpha) / (alpha (L - c)), hence the weights.
        """
        from scipy.optimize import lsq_linear

        points = []
        for c in self.loss_N.min() * np.array(START_C):
            log_N = np.log(np.maximum(self.loss_N - c, 1e-3 * np.ptp(self.loss_N)))
            for alpha in START_ALPHAS:
                z_N = np.exp((log_N.mean() - log_N) / alpha)
                root_N = np.exp(log_N - log_N.max()) / z_N
                left_NS = root_N[:, None] * self.weight_NS
                p_S = lsq_linear(left_NS, root_N * z_N, (0, np.inf), method="bvls").x
                # a run of one source that starts at 0 would have an infinite loss
                p_S = np.maximum(p_S, 0) + 1e-3 * z_N.mean()
                y = float(p_S @ self.mean_S)
                level = np.exp(log_N.mean() - alpha * np.log(y))
                points.append([c, 1 / alpha, *(p_S * (level / y))])
        return np.array(points)

    def _parts(self, point_P: np.ndarray) -> tuple[float, np.ndarray, float, np.ndarray]:
        """alpha, x_N, y and bend_N = alpha log(y / x), which is log(L - c) - log(y)."""
        alpha, p_S = 1 / float(point_P[1]), point_P[2:]
        y = max(float(p_S @ self.mean_S), LEAST_WORTH)
        x_N = np.maximum(self.weight_NS @ p_S, LEAST_WORTH * y)
        bend_N = np.minimum(alpha * np.log(y / x_N), LARGEST_EXPONENT - np.log(y))
        return alpha, x_N, y, bend_N

    def residual(self, point_P: np.ndarray) -> np.ndarray:
        """Errors, and where runs are few sqrt(ridge) u_S, u = alpha (p / y - 1).

        Minus u are the slopes of log(L - c) at the mean mixture, beyond their mean there.
        """
        alpha, _, y, bend_N = self._parts(point_P)
        error_N = point_P[0] + y * np.exp(bend_N) - self.loss_N
        if not self.ridge:
            return np.asarray(error_N)
        return np.concatenate([error_N, self.ridge**0.5 * alpha * (point_P[2:] / y - 1)])

    def jacobian(self, point_P: np.ndarray) -> np.ndarray:
        """The slopes of log(L - c): -alpha bend in tau, (1 + alpha) mean / y - alpha r / x in p."""
        alpha, x_N, y, bend_N = self._parts(point_P)
        f_N = y * np.exp(bend_N)
        by_p_NS = (1 + alpha) / y * self.mean_S - (alpha / x_N)[:, None] * self.weight_NS
        by_run_NP = np.column_stack(
            [np.ones_like(f_N), -alpha * bend_N * f_N, f_N[:, None] * by_p_NS]
        )
        if not self.ridge:
            return by_run_NP
        worth_S = point_P[2:] / y
        by_tau_S = -(alpha**2) * (worth_S - 1)
        by_p_SS = alpha / y * (np.eye(len(worth_S)) - np.outer(worth_S, self.mean_S))
        by_ridge_SP = np.column_stack([np.zeros_like(worth_S), by_tau_S, by_p_SS])
        return np.vstack([by_run_NP, self.ridge**0.5 * by_ridge_SP])


@dataclass(frozen=True)
class Transfer:
    """Fits the transfer law by Huber's loss on the loss scale, like the exponential one.

    For given c and alpha, (L - c)^(-1 / alpha) is linear in r: every start takes both from a grid
    and a from non-negative least squares. scipy's bounded Gauss-Newton steps, within c >= 0,
    a >= 0 and 0.05 <= alpha <= 4, follow. Nothing is drawn at random.
    """

    name: ClassVar[str] = "transfer"
    delta: float = DELTA

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> TransferLaw:
        """The law with the lowest Huber loss over the runs; `seed` changes nothing.

        Rows are divided by their sums. A source that no run has used counts like a token of the
        runs' mean mixture, and so does what sources always in one proportion leave open. With
        fewer runs than sources + 3 the smallest differences between sources are preferred.
        """
        weight_NS, loss_N = checked(weight_NS, loss_N)
        if not self.delta > 0:
            raise ConfigError(f"delta is {self.delta}; it must be above 0 (default: {DELTA})")
        num_runs, num_sources = weight_NS.shape
        if np.ptp(loss_N) <= CONSTANT * loss_N.max():
            half = float(loss_N.mean()) / 2
            note = "all losses are equal: no source matters, and c and alpha are a convention"
            return TransferLaw(half, 1.0, np.full(num_sources, 1 / half), notes=(note,))
        # orthonormal directions along which no run's mixture has any weight, (K, S)
        _, spread_K, right_SS = np.linalg.svd(weight_NS, full_matrices=num_runs < num_sources)
        still_KS = right_SS[int((spread_K > SAME_DIRECTION * spread_K[0]).sum()) :]
        rank = num_sources - 1 - len(still_KS)
        used_S = weight_NS.any(axis=0)
        fit = TransferFit(weight_NS[:, used_S], loss_N, few=num_runs < rank + 4)
        point_P, converged = lowest_huber(
            fit.residual,
            fit.jacobian,
            fit.starts(),
            bounds=(fit.low_P, fit.high_P),
            delta=self.delta,
            num_runs=num_runs,
        )
        c, alpha, y = float(point_P[0]), float(1 / point_P[1]), point_P[2:] @ fit.mean_S
        worth_S = np.ones(num_sources)  # in units of the mean mixture's
        worth_S[used_S] = point_P[2:] / y
        # towards 1 along directions that no run decides, as far as none falls below 0
        move_S = ((1 - worth_S) @ still_KS.T) @ still_KS
        falls_S = move_S < 0
        room_S = np.where(falls_S, worth_S / np.where(falls_S, -move_S, 1.0), np.inf)
        worth_S = np.maximum(worth_S + min(1.0, float(room_S.min())) * move_S, 0)
        law = TransferLaw(c, alpha, worth_S * np.exp(-np.log(max(y, LEAST_LEVEL)) / alpha))
        error_N = law.predict(weight_NS) - loss_N
        return replace(
            law,
            huber=float(huber(error_N[None], self.delta)[0][0]),
            converged=converged,
            notes=_notes(law, num_runs, rank),
        )


def _notes(law: TransferLaw, num_runs: int, rank: int) -> tuple[str, ...]:
    """What the runs leave open, and which parameters are at a bound."""
    num_sources = len(law.a_S)
    notes = []
    if rank < num_sources - 1:
        notes.append(
            f"the mixtures vary in {rank} of {num_sources - 1} directions: along the others a "
            "token counts like one of the mean mixture, by convention"
        )
    if num_runs < rank + 4:
        notes.append(
            f"{num_runs} runs for {rank + 3} free parameters: the smallest differences between "
            "sources that fit are preferred"
        )
    if law.c <= 0:
        notes.append("c is at its lower bound of 0: the runs show no level that losses tend to")
    low, high = ALPHA_RANGE
    if law.alpha <= low * (1 + 1e-9):
        notes.append(f"alpha is at its lower bound of {low:g}: the runs hardly fix it, nor c")
    if law.alpha >= high * (1 - 1e-9):
        notes.append(
            f"alpha is at its upper bound of {high:g}: the losses bend like an exponential law "
            "rather than a power"
        )
    if (worthless := int((law.a_S <= 0).sum())) > 0:
        are = "is" if worthless == 1 else "are"
        notes.append(
            f"{worthless} of {num_sources} sources {are} worth nothing (a = 0): without the others "
            "the law predicts an infinite loss"
        )
    return tuple(notes)
