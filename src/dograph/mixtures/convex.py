"""The minimum of a sum of exponential laws over the capped simplex, to full precision.

Olmix adds kl * KL(r || prior), which keeps the minimum away from corners.

Without it, the minimum with a tiny KL term is refined by Newton steps: on 1500 random sums of laws,
some very steep, the gap is 0 to rounding with weights exactly at their bounds. scipy's
SLSQP at its tightest tolerance leaves up to 9e-9 on 12 sums, and weights near 0 that should be 0.

Shapes: S sources, V laws (validation sets), F sources strictly between their bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.mixing_laws import ExponentialLaw

ITERATIONS = 100  # of Newton's method for each kl, which needs 5 to 20; the rest is rounding
POLISHING = 20  # Newton steps on the sources that are not at a bound
TINY_KL = 1e-9  # of the laws' slopes: what is near the minimum without a KL term
TO_BOUNDARY = 0.99
ROUNDING = 1e-14  # of the largest slope: rounding error of a gap of 0
TINY = 1e-300  # instead of a weight of 0, where a logarithm is taken


class Total:
    """sum_v share_v L_v(r) + kl * sum_j r_j log(r_j / prior_j) with its slope.

    Weights sum to 1, so only differences of slopes matter: t is used minus its mean, which keeps
    slopes small. An exponential is its own derivative, along t.
    """

    def __init__(
        self,
        laws: Sequence[ExponentialLaw],
        share_V: np.ndarray,
        kl: float = 0.0,
        prior_S: np.ndarray | None = None,
    ) -> None:
        self.kl = kl
        self.log_prior_S = np.log(1.0 if prior_S is None else np.maximum(prior_S, TINY))
        used = [law for law, share in zip(laws, share_V, strict=True) if share > 0]
        self.share_V = share_V[share_V > 0]
        self.c = float(self.share_V @ np.array([law.c for law in used]))
        t_VS = np.stack([law.t_S for law in used])
        mean_V = t_VS.mean(axis=1)
        self.log_k_V = np.array([law.log_k for law in used]) + mean_V
        self.t_VS = t_VS - mean_V[:, None]
        self.along_VS = self.t_VS - self.t_VS.mean(axis=1, keepdims=True)  # less rounding

    def grown(self, weight_S: np.ndarray) -> np.ndarray:
        """share_v (L_v - c_v) of each law, (V,)."""
        with np.errstate(over="ignore"):  # of a step far too long, whose loss is not finite
            return np.asarray(self.share_V * np.exp(self.log_k_V + self.t_VS @ weight_S))

    def log_ratio(self, weight_S: np.ndarray) -> np.ndarray:
        """log(r / prior), the slope of the KL term but for a constant."""
        return np.asarray(np.log(np.maximum(weight_S, TINY)) - self.log_prior_S)

    def loss(self, weight_S: np.ndarray) -> float:
        penalty = self.kl * float(weight_S @ self.log_ratio(weight_S))
        return self.c + float(self.grown(weight_S).sum()) + penalty

    def slope(self, weight_S: np.ndarray) -> np.ndarray:
        slope_S = self.grown(weight_S) @ self.along_VS
        return np.asarray(slope_S + self.kl * self.log_ratio(weight_S) if self.kl else slope_S)

    def steepness(self, weight_S: np.ndarray) -> float:
        """The range of slopes of the laws, without what they cancel of each other."""
        return float(self.grown(weight_S) @ np.ptp(self.along_VS, axis=1))

    def bend(self, weight_S: np.ndarray, free: np.ndarray) -> np.ndarray:
        """A square root of the curvature without the KL term, (V, F).

        bend.T @ bend is the second derivative in the sources `free` where their sum is kept, and
        bend.T @ sqrt(grown) the first: every row sums to 0.
        """
        bend_VF = np.sqrt(self.grown(weight_S))[:, None] * self.along_VS[:, free]
        return np.asarray(bend_VF - bend_VF.mean(axis=1, keepdims=True))


def _polished(total: Total, cap_S: np.ndarray, rough_S: np.ndarray) -> np.ndarray:
    """Weights next to a bound set exactly to it, the others refined by Newton's method.

    A weight is at its bound if it is nearer to it than its slope is to that of the weights between
    the bounds. If the result is not feasible or is worse, the rough mixture is returned.
    """
    slope_S, between_S = total.slope(rough_S), np.maximum(rough_S * (cap_S - rough_S), TINY)
    low_S = slope_S - between_S @ slope_S / between_S.sum()
    at_low_S = (rough_S <= low_S) & (rough_S < 1e-4)
    at_high_S = (cap_S - rough_S <= -low_S) & (cap_S - rough_S < 1e-4) & ~at_low_S
    free = np.flatnonzero(~at_low_S & ~at_high_S)
    fine_S = np.where(at_low_S, 0.0, np.where(at_high_S, cap_S, rough_S))
    if len(free) == 0:
        return fine_S if abs(fine_S.sum() - 1) < 1e-12 else rough_S
    fine_S[free] += (1 - fine_S.sum()) / len(free)
    for _ in range(POLISHING if len(free) > 1 else 0):
        root_V = np.sqrt(total.grown(fine_S))
        move_F = np.linalg.lstsq(total.bend(fine_S, free), -root_V, rcond=3e-6)[0]
        fine_S[free] += move_F
        if not np.isfinite(total.loss(fine_S)):  # a step far too long overflows
            return rough_S
        if np.abs(move_F).max() < 1e-15:
            break
    inside = bool((fine_S >= 0).all() and (fine_S <= cap_S).all())
    # Gaps below `least` are rounding errors: either mixture may be the lower one.
    least = ROUNDING * float(np.abs(total.slope(rough_S)).max())
    if inside and gap(total, fine_S, cap_S) <= max(gap(total, rough_S, cap_S), least):
        return fine_S
    return rough_S


def _near_prior(log_weight_S: np.ndarray, cap_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(log_weight + level) cut to the caps, with the level at which it sums to 1; what is uncut.

    Cutting a source raises the level, so a source that is cut stays so. Logarithms cannot
    underflow, whatever the caps leave over.
    """
    free_S = cap_S > 0
    while True:
        room, high = 1 - cap_S[~free_S].sum(), log_weight_S[free_S].max()
        grown_S = np.exp(np.minimum(log_weight_S - high, 700.0))
        weight_S = np.where(free_S, grown_S * (room / grown_S[free_S].sum()), cap_S)
        over_S = weight_S > cap_S
        if not over_S.any() or (over_S | ~free_S).all():
            return np.minimum(weight_S, cap_S), free_S
        free_S = free_S & ~over_S


def _with_prior(total: Total, cap_S: np.ndarray) -> np.ndarray:
    """The minimum with a KL term, by Newton's method on the dual problem.

    With y_v = share_v k_v exp(t_v . r) fixed, the best r_j is proportional to
    prior_j exp(-(y t)_j / kl), cut to its cap: exact however small r_j is. The dual problem in y is
    smooth and convex; its slope is log(y_v / (share_v k_v)) - t_v . r. kl starts at the laws'
    slopes and falls to its value by factors of 10, each solved from the last.
    """
    log_a_V, t_VS = np.log(total.share_V) + total.log_k_V, total.t_VS

    def dual(log_y_V: np.ndarray, kl: float) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        along_S = np.exp(log_y_V) @ t_VS
        weight_S, free_S = _near_prior(total.log_prior_S - along_S / kl, cap_S)
        slope_V = log_y_V - log_a_V - t_VS @ weight_S
        best = float(along_S @ weight_S + kl * (weight_S @ total.log_ratio(weight_S)))
        return float(np.exp(log_y_V) @ (log_y_V - log_a_V - 1)) - best, weight_S, free_S, slope_V

    weight_S: np.ndarray = cap_S / cap_S.sum()
    falls = np.ceil(np.log10(max(1.0, total.steepness(weight_S)) / total.kl))
    for kl in total.kl * 10.0 ** np.arange(max(0, falls), -1, -1):
        log_y_V = log_a_V + t_VS @ weight_S
        for _ in range(ITERATIONS):
            value, weight_S, free_S, slope_V = dual(log_y_V, kl)
            y_V, free = np.exp(log_y_V), np.where(free_S, weight_S, 0.0)
            mean_V = t_VS @ free / max(float(free.sum()), TINY)
            root_VS = np.sqrt(y_V)[:, None] * (t_VS - mean_V[:, None]) * np.sqrt(free / kl)
            matrix = np.eye(len(y_V)) + root_VS @ root_VS.T
            step_V = -np.linalg.solve(matrix, np.sqrt(y_V) * slope_V) * np.sqrt(y_V)
            fall = float(step_V @ slope_V)
            if fall > -1e-30 * max(1.0, abs(value)):
                break
            shrink = float(np.max(-step_V / y_V))
            length = 1.0 if shrink < TO_BOUNDARY else TO_BOUNDARY / shrink
            while length > 1e-12:
                trial_V = np.log(y_V + length * step_V)
                if dual(trial_V, kl)[0] <= value + 0.1 * length * fall + 1e-15 * abs(value):
                    break
                length /= 2
            log_y_V = trial_V
    return weight_S


def gap(total: Total, weight_S: np.ndarray, cap_S: np.ndarray) -> float:
    """Upper bound on loss - minimum, by convexity: slope . (r - best corner)."""
    slope_S = total.slope(weight_S)
    corner_S, order_S = np.zeros(len(cap_S)), np.argsort(slope_S, kind="stable")
    corner_S[order_S] = np.diff(np.minimum(np.cumsum(cap_S[order_S]), 1.0), prepend=0.0)
    return max(float(slope_S @ (weight_S - corner_S)), 0.0)


FLAT = 1e-9  # nats per unit of weight: directions that change the loss by less are flat


@dataclass(frozen=True)
class Optimum:
    """The best mixture under the laws.

    `gap` bounds, in nats, how far `loss` (with the KL term) is above the true minimum.
    """

    weight_S: np.ndarray
    loss: float
    gap: float
    unique: bool


def find_optimum(
    laws: Sequence[ExponentialLaw],
    share_V: np.ndarray,
    cap_S: np.ndarray | None = None,
    *,
    kl: float = 0.0,
    prior_S: np.ndarray | None = None,
) -> Optimum:
    """The mixture with the lowest sum_v share_v L_v(r) among those with r_j <= cap_j, exactly.

    With `kl`, of that plus kl * KL(r || prior). Shares are divided by their sum. A sum of
    exponentials is convex in r: a KL term that is tiny beside its slopes leads next to its minimum,
    and Newton steps on the sources between their bounds bring it to full precision. Of several
    equally good mixtures one in their middle is returned. A kl below `FLAT` counts as 0.
    """
    share_V = np.asarray(share_V, dtype=np.float64)
    share_V = share_V / share_V.sum()
    cap_S = np.minimum(np.ones(len(laws[0].t_S)) if cap_S is None else cap_S, 1.0)
    assert share_V.min() >= 0, f"shares that no plan has: {share_V}"
    assert cap_S.min() >= 0, f"caps that no plan has: {cap_S}"
    assert cap_S.sum() >= 1 - 1e-9, f"caps that leave no mixture: {cap_S}"
    all_S = cap_S / cap_S.sum()
    for number, (law, share) in enumerate(zip(laws, share_V, strict=True), start=1):
        if share > 0 and not np.isfinite(law.predict(all_S[None])[0]):
            raise ConfigError(
                f"law {number} of {len(laws)} predicts an infinite loss within the caps, with "
                f"slopes up to {np.ptp(law.t_S):.3g}: raise caps of sources that lower it, or "
                "leave the law out"
            )
    kl = kl if kl > FLAT else 0.0
    total = Total(laws, share_V, kl, prior_S)
    weight_S = all_S  # the only mixture where the caps sum to 1
    if cap_S.sum() > 1 + 1e-12:
        if kl:
            weight_S = _with_prior(total, cap_S)
        else:
            tiny_kl = np.inf
            while 0 < (least := TINY_KL * total.steepness(weight_S)) < tiny_kl / 10:
                tiny_kl = least
                weight_S = _with_prior(Total(laws, share_V, tiny_kl, all_S), cap_S)
            weight_S = _polished(total, cap_S, weight_S)
    loss, above = total.loss(weight_S), gap(total, weight_S, cap_S)
    if above > 1e-6 * (1 + abs(loss)):  # seen with slopes of 30 and more
        raise ConfigError(
            f"the laws are too steep to minimize: the mixture found may be {above:.3g} nats above "
            f"the best; slopes differ by up to {np.ptp(total.t_VS):.3g}: set caps, or add runs"
        )
    return Optimum(weight_S, loss, above, is_unique(total, weight_S, cap_S))


def is_unique(total: Total, weight_S: np.ndarray, cap_S: np.ndarray) -> bool:
    """Whether no other mixture is as good as an optimal one.

    Another one is if weight can move between sources that are not at a bound while the loss changes
    by less than `FLAT` nats per unit of weight, for example because their t_j are equal.
    """
    free = np.flatnonzero((weight_S > 1e-9) & (weight_S < cap_S - 1e-9))
    if len(free) < 2 or total.kl:  # a KL term is strictly convex
        return True
    # the last row keeps the direction in which the sum changes from being flat
    rows = np.vstack([total.bend(weight_S, free), np.ones(len(free))])
    size_K = np.linalg.svd(rows, compute_uv=False)
    return len(size_K) == len(free) and bool(size_K[-1] ** 2 / 2 >= FLAT)
