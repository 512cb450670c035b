"""The transfer law: a loss as a power of the tokens that a mixture is worth to it.

Shapes: N runs, S sources.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.convex import Form
from dograph.mixtures.exponential import CONSTANT, DELTA, checked
from dograph.mixtures.newton import huber
from dograph.mixtures.transfer_fit import ALPHA_RANGE, Fit

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
