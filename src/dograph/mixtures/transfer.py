"""The transfer law: a loss as a power of the tokens that a mixture is worth to it.

Shapes: N runs, S sources.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.convex import Form
from dograph.mixtures.exponential import CONSTANT, DELTA, checked
from dograph.mixtures.newton import Local, damped_newton, distinct, huber

# How the transfer law is fitted: coordinates, starts and exact derivatives.


ALPHA_RANGE = (
    0.05,
    4.0,
)  # of tokens: 0.095 in Kaplan et al. (2020), 0.28 in Hoffmann et al. (2022)
RIDGE = 1e-5  # on |slopes of log(L - c)|^2 / 2 where runs are too few, as for the exponential law
LARGEST_EXPONENT = 60.0  # exp of more would overflow sums of squares; no loss is near it
LEAST_WORTH = 1e-100  # of a run's mixture, relative to the mean one: with less its loss is infinite
START_ALPHAS = (0.1, 0.3, 1.0, 3.0)
START_C = (0.0, 0.5, 0.8, 0.95)  # of the lowest loss
SWEEPS = 20  # of coordinate descent, for starts alone
STAGES = ((12, 8), (20, 3), (200, 1))  # steps, and how many of the best are kept after them
WEAK_ALPHA = 1e-6  # alpha's least share in the metric of damping: a flat law hides its effect


class Fit:
    """One table's Huber loss as a function of (c, tau, p_S), with its derivatives; tau = 1 / alpha.

    L = c + y (x / y)^-alpha with x = p . r and y = p . mean mixture: y is L - c at the mean
    mixture, whatever alpha is, and p_j / y is what a token of source j is worth there. Runs that
    hardly fix alpha and c fix the loss m, the slopes -s_j and a curvature 1 / h at the mean
    mixture; laws with these have p_j = h + tau (h + s_j), s less its mean, and c = m - h - tau h:
    a straight valley, along which Newton's steps can be long.
    """

    def __init__(self, weight_NS: np.ndarray, loss_N: np.ndarray, delta: float, few: bool) -> None:
        self.weight_NS, self.loss_N, self.delta = weight_NS, loss_N, delta
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
        low, spread = self.loss_N.min(), np.ptp(self.loss_N)
        c_B, alpha_B = (grid.ravel() for grid in np.meshgrid(low * np.array(START_C), START_ALPHAS))
        above_BN = np.maximum(self.loss_N - c_B[:, None], 1e-3 * spread)
        centre_B1 = np.log(above_BN).mean(axis=1, keepdims=True)
        z_BN = np.exp((centre_B1 - np.log(above_BN)) / alpha_B[:, None])
        weight_BN = np.square(above_BN / z_BN)
        weight_BN /= weight_BN.mean(axis=1, keepdims=True)
        gram_BSS = self.weight_NS.T @ (weight_BN[:, :, None] * self.weight_NS)
        right_BS = (weight_BN * z_BN) @ self.weight_NS
        size_BS = np.einsum("bss->bs", gram_BSS)
        mean_B1 = z_BN.mean(axis=1, keepdims=True)
        p_BS = np.repeat(mean_B1, len(self.mean_S), axis=1)
        for source in np.tile(np.arange(len(self.mean_S)), SWEEPS):
            excess_B = np.einsum("bs,bs->b", gram_BSS[:, source], p_BS) - right_BS[:, source]
            moved_B = p_BS[:, source] - excess_B / np.maximum(size_BS[:, source], 1e-300)
            p_BS[:, source] = np.maximum(moved_B, 0)
        p_BS += 1e-3 * mean_B1  # a run of one source that starts at 0 would have an infinite loss
        y_B = p_BS @ self.mean_S
        level_B = np.exp(centre_B1[:, 0] - alpha_B * np.log(y_B))
        return np.column_stack([c_B, 1 / alpha_B, p_BS * (level_B / y_B)[:, None]])

    def best(self) -> tuple[np.ndarray, bool]:
        """The lowest point that any start leads to, and whether its descent came to an end."""
        point_BP = self.starts()
        for steps, number in STAGES:
            point_BP, value_B, done_B = self._descend(point_BP, steps)
            kept_B = distinct(point_BP, value_B, number)
            point_BP, done_B = point_BP[kept_B], done_B[kept_B]
        return point_BP[0], bool(done_B[0])

    def _descend(
        self, start_BP: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return damped_newton(
            self.at, start_BP, iterations=steps, low_P=self.low_P, high_P=self.high_P
        )

    def at(self, point_BP: np.ndarray, _which: np.ndarray) -> Local:
        """Value, slope, Hessian and Gauss-Newton matrix.

        With f = L - c: log f = log y + bend, bend = alpha log(y / x). Its slopes g in (tau, p) are
        -alpha bend and (1 + alpha) mean / y - alpha r / x, and f's second derivative is
        f (g g' + that of log f).
        """
        c_B1, alpha_B1, p_BS = point_BP[:, :1], 1 / point_BP[:, 1:2], point_BP[:, 2:]
        x_BN, y_B1 = p_BS @ self.weight_NS.T, (p_BS @ self.mean_S)[:, None]
        possible_B = (x_BN > LEAST_WORTH * y_B1).all(axis=1)
        x_BN, y_B1 = (np.where(possible_B[:, None], part, 1.0) for part in (x_BN, y_B1))
        bend_BN = alpha_B1 * np.log(y_B1 / x_BN)
        f_BN = np.exp(np.minimum(np.log(y_B1) + bend_BN, LARGEST_EXPONENT))
        value_B, slope_BN, weight_BN = huber(c_B1 + f_BN - self.loss_N, self.delta)
        g_BNP = np.empty((*x_BN.shape, 1 + len(self.mean_S)))
        g_BNP[:, :, 0] = -alpha_B1 * bend_BN
        g_BNP[:, :, 1:] = ((1 + alpha_B1) / y_B1)[:, :, None] * self.mean_S
        g_BNP[:, :, 1:] -= (alpha_B1 / x_BN)[:, :, None] * self.weight_NS
        pull_BN = slope_BN * f_BN
        majorant_BPP = _products(weight_BN, f_BN, g_BNP, 0.0)
        majorant_BPP[:, 1, 1] += WEAK_ALPHA * (weight_BN * np.square(alpha_B1 * f_BN)).sum(axis=1)
        hessian_BPP = _products((weight_BN >= 1).astype(np.float64), f_BN, g_BNP, pull_BN)
        self._add_bends(hessian_BPP, pull_BN, bend_BN, alpha_B1, x_BN, y_B1)
        slope_BP = np.hstack(
            [slope_BN.sum(axis=1, keepdims=True), (pull_BN[:, None] @ g_BNP)[:, 0]]
        )
        local = Local(value_B, slope_BP, hessian_BPP, majorant_BPP)
        if self.ridge:
            self._add_ridge(local, alpha_B1, p_BS, y_B1)
        local.value_B[~possible_B] = np.inf
        return local

    def _add_bends(
        self,
        hessian_BPP: np.ndarray,
        pull_BN: np.ndarray,
        bend_BN: np.ndarray,
        alpha_B1: np.ndarray,
        x_BN: np.ndarray,
        y_B1: np.ndarray,
    ) -> None:
        """Add the rows' pull times the second derivatives of log f."""
        pull_B1 = pull_BN.sum(axis=1, keepdims=True)
        cross_BS = (pull_BN / x_BN) @ self.weight_NS - pull_B1 / y_B1 * self.mean_S
        cross_BS *= np.square(alpha_B1)
        hessian_BPP[:, 1, 1] += (2 * np.square(alpha_B1) * pull_BN * bend_BN).sum(axis=1)
        hessian_BPP[:, 1, 2:] += cross_BS
        hessian_BPP[:, 2:, 1] += cross_BS
        row_BN = pull_BN * alpha_B1 / np.square(x_BN)
        hessian_BPP[:, 2:, 2:] += self.weight_NS.T @ (row_BN[:, :, None] * self.weight_NS)
        mean_B1 = (1 + alpha_B1) * pull_B1 / np.square(y_B1)
        hessian_BPP[:, 2:, 2:] -= mean_B1[:, :, None] * np.outer(self.mean_S, self.mean_S)

    def _add_ridge(
        self, local: Local, alpha_B1: np.ndarray, p_BS: np.ndarray, y_B1: np.ndarray
    ) -> None:
        """Add ridge |u|^2 / 2, u = alpha (p / y - 1), to the value and its derivatives.

        Minus u are the slopes of log(L - c) at the mean mixture, beyond their mean there.
        """
        worth_BS, to_B1, mean_S = p_BS / y_B1, alpha_B1 / y_B1, self.mean_S
        u_BS = alpha_B1 * (worth_BS - 1)
        d_BSP = np.empty((*u_BS.shape, 1 + len(mean_S)))  # du by tau, and by p
        d_BSP[:, :, 0] = -alpha_B1 * u_BS
        d_BSP[:, :, 1:] = np.eye(len(mean_S)) - worth_BS[:, :, None] * mean_S
        d_BSP[:, :, 1:] *= to_B1[:, :, None]
        slope_BP = (u_BS[:, None] @ d_BSP)[:, 0]
        local.value_B[:] += self.ridge * np.square(u_BS).sum(axis=1) / 2
        local.slope_BP[:, 1:] += self.ridge * slope_BP
        product_BPP = self.ridge * (d_BSP.swapaxes(1, 2) @ d_BSP)
        local.majorant_BPP[:, 1:, 1:] += product_BPP
        local.hessian_BPP[:, 1:, 1:] += product_BPP
        cross_BP = -self.ridge * alpha_B1 * slope_BP
        local.hessian_BPP[:, 1, 1] += 2 * cross_BP[:, 0]
        local.hessian_BPP[:, 1, 2:] += cross_BP[:, 1:]
        local.hessian_BPP[:, 2:, 1] += cross_BP[:, 1:]
        along_B1 = (u_BS * worth_BS).sum(axis=1, keepdims=True)
        half_BSS = (along_B1 * mean_S - u_BS)[:, :, None] * mean_S
        local.hessian_BPP[:, 2:, 2:] += (self.ridge * to_B1 / y_B1)[:, :, None] * (
            half_BSS + half_BSS.swapaxes(1, 2)
        )


def _products(
    row_BN: np.ndarray, f_BN: np.ndarray, g_BNP: np.ndarray, more_BN: np.ndarray | float
) -> np.ndarray:
    """Sum over rows of row_n d_n d_n' with d = (1, f g), and of more_n g_n g_n' beside it."""
    size = 1 + g_BNP.shape[2]
    sum_BPP = np.empty((len(row_BN), size, size))
    sum_BPP[:, 0, 0] = row_BN.sum(axis=1)
    sum_BPP[:, 0, 1:] = sum_BPP[:, 1:, 0] = ((row_BN * f_BN)[:, None] @ g_BNP)[:, 0]
    scaled_BNP = (row_BN * np.square(f_BN) + more_BN)[:, :, None] * g_BNP
    sum_BPP[:, 1:, 1:] = g_BNP.swapaxes(1, 2) @ scaled_BNP
    return sum_BPP


LEAST_LEVEL = 1e-15  # of L - c at the mean mixture: a of a law flatter than this overflows
SAME_DIRECTION = 1e-8  # of the largest spread of the mixtures: below, they do not vary


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


@dataclass(frozen=True)
class Transfer:
    """Fits the transfer law by Huber's loss on the loss scale, like the exponential one.

    For given c and alpha, (L - c)^(-1 / alpha) is linear in r: every start takes both from a grid
    and a from non-negative least squares. Damped Newton steps with exact second derivatives,
    kept within c >= 0, a >= 0 and 0.05 <= alpha <= 4, follow. Nothing is drawn at random.
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
        still_KS = _unvaried(weight_NS)
        rank = num_sources - 1 - len(still_KS)
        used_S = weight_NS.any(axis=0)
        fit = Fit(weight_NS[:, used_S], loss_N, self.delta, few=num_runs < rank + 4)
        point_P, converged = fit.best()
        c, alpha, y = float(point_P[0]), float(1 / point_P[1]), point_P[2:] @ fit.mean_S
        worth_S = np.ones(num_sources)  # in units of the mean mixture's
        worth_S[used_S] = point_P[2:] / y
        worth_S = _nearest_one(worth_S, still_KS)
        a_S = worth_S * np.exp(-np.log(max(y, LEAST_LEVEL)) / alpha)
        law = TransferLaw(c, alpha, a_S, converged=converged)
        error_N = law.predict(weight_NS) - loss_N
        return TransferLaw(
            c,
            alpha,
            a_S,
            huber=float(huber(error_N[None], self.delta)[0][0]),
            converged=converged,
            notes=_notes(law, num_runs, rank),
        )


def _unvaried(weight_NS: np.ndarray) -> np.ndarray:
    """Orthonormal directions, (K, S), along which no run's mixture has any weight."""
    few = len(weight_NS) < weight_NS.shape[1]
    _, spread_K, right_SS = np.linalg.svd(weight_NS, full_matrices=few)
    return np.asarray(right_SS[int((spread_K > SAME_DIRECTION * spread_K[0]).sum()) :])


def _nearest_one(worth_S: np.ndarray, still_KS: np.ndarray) -> np.ndarray:
    """Worths moved towards 1 along directions that no run decides, as far as none falls below 0."""
    move_S = ((1 - worth_S) @ still_KS.T) @ still_KS
    falls_S = move_S < 0
    room_S = np.where(falls_S, worth_S / np.where(falls_S, -move_S, 1.0), np.inf)
    moved_S: np.ndarray = np.maximum(worth_S + min(1.0, float(room_S.min())) * move_S, 0)
    return moved_S


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
