"""The minimum of a sum of convex laws over the capped simplex, to full precision.

An own interior-point method with a polish: on 12 sums of exponential laws its gap is below 3e-16
with weights exactly at their bounds, where scipy's SLSQP at its tightest leaves up to 9e-9, and
weights near 0 that should be 0 in 8 of them.

Shapes: S sources, V laws (validation sets), F sources with room on both sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from dograph.errors import ConfigError

ITERATIONS = 100  # of the interior-point method, which needs 15 to 40
POLISHING = 20  # Newton steps on the sources that are at no bound
CENTRING = 0.1  # each step aims at this share of the present complementarity
SMALLEST_GAP = 1e-16  # complementarity for each source, in units of the slopes' range
TO_BOUNDARY = 0.99
ROUNDING = 1e-14  # of the largest slope: what is left of a gap of 0


class Form(NamedTuple):
    """A law as a function of one number: L(r) = c + at(form . r)[0]."""

    form_S: np.ndarray
    at: Callable[[float], tuple[float, float, float]]  # value, first and second derivative (>= 0)


class ConvexLaw(Protocol):
    """A law that is a convex function of a linear form of the mixture."""

    @property
    def c(self) -> float:
        """The level that the form adds to."""

    def form(self) -> Form:
        """The form and the function of it; an infinite value where a mixture is impossible."""

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,)."""


class Total:
    """sum_v share_v L_v(r) with its slope and curvature, up to what sums to 1 cannot tell.

    Weights sum to 1, so only differences of slopes matter: they are taken along forms less their
    mean, which keeps them small.
    """

    def __init__(self, laws: Sequence[ConvexLaw], share_V: np.ndarray) -> None:
        used = [law for law, share in zip(laws, share_V, strict=True) if share > 0]
        self.share_V = share_V[share_V > 0]
        self.c = float(self.share_V @ np.array([law.c for law in used]))
        self.forms = [law.form() for law in used]
        self.form_VS = np.stack([form.form_S for form in self.forms])
        self.along_VS = self.form_VS - self.form_VS.mean(axis=1, keepdims=True)

    def _derivatives(self, weight_S: np.ndarray, order: int) -> np.ndarray:
        """The derivatives of each law along its form, times its share, (V,)."""
        each_V = zip(self.forms, (self.form_VS @ weight_S).tolist(), strict=True)
        derivative_V: np.ndarray = self.share_V * [form.at(x)[order] for form, x in each_V]
        return derivative_V

    def loss(self, weight_S: np.ndarray) -> float:
        return self.c + float(self._derivatives(weight_S, 0).sum())

    def slope(self, weight_S: np.ndarray) -> np.ndarray:
        slope_S: np.ndarray = self._derivatives(weight_S, 1) @ self.along_VS
        return slope_S

    def bends(self, weight_S: np.ndarray) -> np.ndarray:
        """The second derivative of each law along its form, times its share, (V,)."""
        return self._derivatives(weight_S, 2)

    def curvature(self, weight_S: np.ndarray) -> np.ndarray:
        curve_SS: np.ndarray = (self.along_VS.T * self.bends(weight_S)) @ self.along_VS
        return curve_SS


def minimise(total: Total, cap_S: np.ndarray) -> np.ndarray:
    """The weights with the lowest total, 0 <= r <= cap, where the caps sum to 1 or more."""
    if cap_S.sum() <= 1 + 1e-12:
        full_S: np.ndarray = cap_S / cap_S.sum()
        return full_S
    return _polished(total, cap_S, *_interior(total, cap_S))


def sum_zero(size: int) -> np.ndarray:
    """Orthonormal columns that span the vectors with sum 0, (size, size - 1)."""
    basis = np.linalg.qr(np.hstack([np.ones((size, 1)), np.eye(size)[:, 1:]]))[0]
    return np.asarray(basis[:, 1:])


def _interior(total: Total, cap_S: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights and the multipliers of both bounds, by a primal-dual interior-point method.

    Each step lowers the norm of the optimality conditions (Boyd and Vandenberghe, section 11.7),
    so that it converges from the start, the caps divided by their sum, for every convex total.
    Sources with a cap of 0 stay there, with multipliers of 1 that nobody reads.
    """
    use = np.flatnonzero(cap_S > 0)
    cap, size = cap_S[use], len(use)
    weight_S = cap_S / cap_S.sum()
    slope = total.slope(weight_S)[use]
    unit = float(np.ptp(slope)) or 1.0
    state = np.concatenate([weight_S[use], np.full(2 * size, 1.0), [-slope.mean() / unit]])

    def conditions(state: np.ndarray, target: float) -> np.ndarray:
        weight, low, high, level = np.split(state, [size, 2 * size, 3 * size])
        full_S = np.zeros(len(cap_S))
        full_S[use] = weight
        slope = total.slope(full_S)[use] / unit
        return np.concatenate(
            [
                slope + level - low + high,
                low * weight - target,
                high * (cap - weight) - target,
                [weight.sum() - 1],
            ]
        )

    for _ in range(ITERATIONS):
        weight, low, high = state[:size], state[size : 2 * size], state[2 * size : 3 * size]
        gap = float(low @ weight + high @ (cap - weight)) / (2 * size)
        error = float(np.abs(conditions(state, 0.0)[:size]).max())
        if gap < SMALLEST_GAP and error < 1e-13:
            break
        target = CENTRING * gap
        full_S = np.zeros(len(cap_S))
        full_S[use] = weight
        curve = total.curvature(full_S)[np.ix_(use, use)] / unit
        step = _step(state, curve, cap, conditions(state, target))
        bounded = np.concatenate([weight, low, high, cap - weight])
        change = np.concatenate([step[: 3 * size], -step[:size]])
        ratio = np.where(change < 0, bounded / np.where(change < 0, -change, 1.0), np.inf)
        length = min(1.0, TO_BOUNDARY * float(ratio.min()))
        before = float(np.linalg.norm(conditions(state, target)))
        while length > 1e-10:
            after = float(np.linalg.norm(conditions(state + length * step, target)))
            if after <= (1 - 0.01 * length) * before:
                break
            length /= 2
        state = state + length * step
        if length <= 1e-10:
            break
    weight_S = np.zeros(len(cap_S))
    low_S, high_S = np.ones(len(cap_S)), np.ones(len(cap_S))
    weight_S[use], low_S[use], high_S[use] = np.split(state[: 3 * size], 3)
    return weight_S, low_S, high_S


def _step(
    state: np.ndarray, curve_SS: np.ndarray, cap_S: np.ndarray, condition: np.ndarray
) -> np.ndarray:
    """Newton's step for the optimality conditions, with the bounds' multipliers eliminated."""
    size = len(cap_S)
    weight_S, low_S, high_S = state[:size], state[size : 2 * size], state[2 * size : 3 * size]
    dual_S, low_error_S, high_error_S, sum_error = np.split(condition, [size, 2 * size, 3 * size])
    room_S = cap_S - weight_S
    matrix = np.ones((size + 1, size + 1))
    matrix[:size, :size] = curve_SS + np.diag(low_S / weight_S + high_S / room_S)
    matrix[size, size] = 0
    right_S = -dual_S - low_error_S / weight_S + high_error_S / room_S
    scale = np.append(1 / np.sqrt(np.diag(matrix)[:size]), 1.0)
    solved = scale * np.linalg.solve(
        matrix * scale[:, None] * scale, scale * np.append(right_S, -sum_error)
    )
    move_S = solved[:size]
    return np.concatenate(
        [
            move_S,
            -(low_error_S + low_S * move_S) / weight_S,
            -(high_error_S - high_S * move_S) / room_S,
            solved[size:],
        ]
    )


def _polished(
    total: Total, cap_S: np.ndarray, weight_S: np.ndarray, low_S: np.ndarray, high_S: np.ndarray
) -> np.ndarray:
    """Weights exactly at their bounds where they belong, the others by Newton's method.

    A weight smaller than its multiplier is at its bound. Where that guess does not lead to a
    feasible mixture that is at least as good, the interior point stands.
    """
    rough_S: np.ndarray = np.clip(weight_S, 0, cap_S)
    rough_S = rough_S + (1 - rough_S.sum()) * rough_S * (cap_S - rough_S) / max(
        float(rough_S @ (cap_S - rough_S)), 1e-300
    )
    at_low_S = (weight_S < low_S) & (weight_S < 1e-4)
    at_high_S = (cap_S - weight_S < high_S) & (cap_S - weight_S < 1e-4) & ~at_low_S
    free = np.flatnonzero(~at_low_S & ~at_high_S)
    fine_S = np.where(at_low_S, 0.0, np.where(at_high_S, cap_S, rough_S))
    if len(free) == 0:
        return fine_S if abs(fine_S.sum() - 1) < 1e-12 else rough_S
    fine_S[free] += (1 - fine_S.sum()) / len(free)
    if not np.isfinite(total.loss(fine_S)):
        return rough_S
    plane_FF = sum_zero(len(free))
    for _ in range(POLISHING if len(free) > 1 else 0):
        slope_F = plane_FF.T @ total.slope(fine_S)[free]
        curve_FF = plane_FF.T @ total.curvature(fine_S)[np.ix_(free, free)] @ plane_FF
        move_F = plane_FF @ np.linalg.lstsq(curve_FF, -slope_F, rcond=1e-11)[0]
        fine_S[free] += move_F
        if not np.isfinite(total.loss(fine_S)):  # a law ends where its form does
            return rough_S
        if np.abs(move_F).max() < 1e-15:
            break
    inside = bool((fine_S >= 0).all() and (fine_S <= cap_S).all())
    # Two gaps that are both rounding say nothing of which is lower.
    least = ROUNDING * float(np.abs(total.slope(rough_S)).max())
    if inside and gap(total, fine_S, cap_S) <= max(gap(total, rough_S, cap_S), least):
        return fine_S
    return rough_S


def gap(total: Total, weight_S: np.ndarray, cap_S: np.ndarray) -> float:
    """How much lower the minimum can be at most: slope . (r - lowest corner), as F is convex."""
    slope_S = total.slope(weight_S)
    corner_S, left = np.zeros(len(cap_S)), 1.0
    for source in np.argsort(slope_S, kind="stable"):
        corner_S[source] = min(cap_S[source], left)
        left -= corner_S[source]
    return max(float(slope_S @ (weight_S - corner_S)), 0.0)


GRID = 16  # the authors' grid has steps of 1/16
FLAT = 1e-9  # nats for a whole unit of weight: a direction that changes the loss by less is flat
MOST_MIXTURES = 300_000  # on the grid; without caps 7 sources have 6,880 and 10 have 205,370


@dataclass(frozen=True)
class Optimum:
    """The best mixture under the laws, and how surely it is that.

    `gap` bounds, in nats, how far `loss` is above the true minimum (linear minimisation over the
    feasible mixtures; the sum of laws is convex). `flat_FS` holds orthonormal directions in which
    weights can move without changing the loss: empty when the optimum is unique.
    """

    weight_S: np.ndarray
    loss: float
    gap: float
    flat_FS: np.ndarray

    @property
    def unique(self) -> bool:
        """Whether no other mixture has the same predicted loss."""
        return len(self.flat_FS) == 0


def find_optimum(
    laws: Sequence[ConvexLaw], share_V: np.ndarray, cap_S: np.ndarray | None = None
) -> Optimum:
    """The mixture with the lowest sum_v share_v L_v(r) among those with r_j <= cap_j, exactly.

    Shares are divided by their sum. The authors search for this optimum on a grid (`grid_optimum`).
    A sum of laws that are convex along linear forms, exponential or transfer laws or both, is
    convex in r: a primal-dual interior-point method finds its minimum, and Newton's steps on the
    sources that are at no bound bring it to full precision. Where several mixtures are equally
    good, one in the middle of them is returned and `flat_FS` is not empty.
    """
    share_V, cap_S = _checked(laws, share_V, cap_S)
    # A mixture with some of every source that may be used has a finite loss, or none has.
    all_S = cap_S / cap_S.sum()
    for number, (law, share) in enumerate(zip(laws, share_V, strict=True), start=1):
        if share > 0 and not np.isfinite(law.predict(all_S[None])[0]):
            raise ConfigError(
                f"law {number} of {len(laws)} predicts an infinite loss of every mixture: the "
                "sources that lower it have caps of 0; raise one of these, or leave the law out"
            )
    total = Total(laws, share_V)
    weight_S = minimise(total, cap_S)
    return Optimum(
        weight_S=weight_S,
        loss=total.loss(weight_S),
        gap=gap(total, weight_S, cap_S),
        flat_FS=flat_directions(laws, share_V, weight_S, cap_S),
    )


def flat_directions(
    laws: Sequence[ConvexLaw],
    share_V: np.ndarray,
    weight_S: np.ndarray,
    cap_S: np.ndarray | None = None,
    *,
    tolerance: float = FLAT,
) -> np.ndarray:
    """Orthonormal directions, (F, S), that leave an optimal mixture optimal; none if it is unique.

    Along them weight can move between sources that are at no bound while the loss changes by less
    than `tolerance` nats for a whole unit of weight. The laws cannot say how to split these
    sources, for example because all their t_j or a_j are equal; raise `tolerance` to about the
    error of the fit to see what is undecided in practice.
    """
    share_V, cap_S = _checked(laws, share_V, cap_S)
    total = Total(laws, share_V)
    if not np.isfinite(total.loss(weight_S)):
        raise ConfigError("the predicted loss of this mixture is infinite: it is no optimum")
    free_S = (weight_S > 1e-9) & (weight_S < cap_S - 1e-9)
    free = np.flatnonzero(free_S)
    if len(free) < 2:
        return np.zeros((0, len(weight_S)))
    plane_FF = sum_zero(len(free))
    factor_VF = np.sqrt(total.bends(weight_S))[:, None] * total.along_VS[:, free] @ plane_FF
    _, size_K, right_KF = np.linalg.svd(factor_VF, full_matrices=True)
    curve_F = np.zeros(len(free) - 1)
    curve_F[: len(size_K)] = np.square(size_K)
    flat_FS = np.zeros((int((curve_F / 2 < tolerance).sum()), len(weight_S)))
    flat_FS[:, free] = right_KF[curve_F / 2 < tolerance] @ plane_FF.T
    return flat_FS


def _checked(
    laws: Sequence[ConvexLaw], share_V: np.ndarray, cap_S: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Shares that sum to 1 and caps of at most 1, or what is wrong with them."""
    share_V = np.asarray(share_V, dtype=np.float64)
    if not laws or share_V.shape != (len(laws),):
        raise ConfigError(
            f"{len(laws)} laws and shares of shape {share_V.shape}: one share for each law, and at "
            "least one law"
        )
    if not np.isfinite(share_V).all() or share_V.min() < 0 or share_V.sum() <= 0:
        raise ConfigError(
            f"the shares are {share_V.tolist()}; they must be at least 0, and one must be above 0"
        )
    sizes = [len(law.form().form_S) for law in laws]
    num_sources = sizes[0]
    if len(set(sizes)) > 1:
        raise ConfigError(
            f"the laws are over {sorted(set(sizes))} sources; fit all of them on the same sources"
        )
    cap_S = np.ones(num_sources) if cap_S is None else np.asarray(cap_S, dtype=np.float64)
    if cap_S.shape != (num_sources,) or np.isnan(cap_S).any() or cap_S.min() < 0:
        raise ConfigError(
            f"the caps are {cap_S.tolist()}; there must be one for each of {num_sources} sources, "
            "each at least 0"
        )
    cap_S = np.minimum(cap_S, 1.0)
    if cap_S.sum() < 1 - 1e-9:
        raise ConfigError(
            f"the caps sum to {cap_S.sum():.4g}, and a mixture must sum to 1; raise them by "
            f"{1 - cap_S.sum():.4g} in all (more epochs, fewer tokens or more data)"
        )
    return share_V / share_V.sum(), cap_S


def grid_optimum(
    laws: Sequence[ConvexLaw], share_V: np.ndarray, cap_S: np.ndarray | None = None
) -> np.ndarray:
    """The best mixture on the authors' grid, kept to reproduce them (`find_optimum` is exact).

    Each source but the last takes its cap, rounded down to a multiple of 1/16, times 2^-s, and 0
    in place of anything below 1/16; the last takes the remainder where its cap allows. Equally
    good mixtures: the one that gives most to the first sources.
    """
    share_V, cap_S = _checked(laws, share_V, cap_S)
    mixture_GS = grid_mixtures(cap_S)
    used = [(share, law) for share, law in zip(share_V, laws, strict=True) if share > 0]
    loss_G = sum(share * law.predict(mixture_GS) for share, law in used)
    return np.asarray(mixture_GS[int(np.argmin(loss_G))])


def grid_mixtures(cap_S: np.ndarray) -> np.ndarray:
    """All mixtures of the authors' grid, (G, S), those with most of the first sources first."""
    mixture_GS, sum_G = np.zeros((1, 0)), np.zeros(1)
    for cap in cap_S[:-1]:
        largest = int(cap * GRID) / GRID
        halvings = [largest / 2**s for s in range(GRID) if largest / 2**s >= 1 / GRID]
        choice = np.array([*halvings, 0.0])
        sum_GC = sum_G[:, None] + choice
        row_G, choice_G = np.nonzero(sum_GC <= 1)
        sum_G = sum_GC[row_G, choice_G]
        mixture_GS = np.hstack([mixture_GS[row_G], choice[choice_G, None]])
        if len(mixture_GS) > MOST_MIXTURES:
            raise ConfigError(
                f"the grid over {len(cap_S)} sources has more than {MOST_MIXTURES} mixtures; use "
                "the exact optimum, or lower the caps of sources that are scarce"
            )
    rest_G = 1 - sum_G
    fits_G = rest_G <= cap_S[-1]
    if not fits_G.any():
        raise ConfigError(
            f"no mixture of the grid leaves the last source at most its cap of {cap_S[-1]:.4g}: "
            "put a source with a larger cap last, or use the exact optimum"
        )
    return np.asarray(np.hstack([mixture_GS, rest_G[:, None]])[fits_G])
