"""The exponential mixing law: a loss as a function of the mixture (Ye et al., Data Mixing Laws).

Shapes: N runs, S sources, B starts, K directions in which the mixtures vary.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.convex import Form
from dograph.mixtures.exponential_fit import Fit, design_of
from dograph.mixtures.newton import huber
from dograph.rng import stream

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
