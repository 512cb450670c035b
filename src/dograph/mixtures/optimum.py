"""The mixture that the laws say is best: exactly, and by the authors' grid.

Shapes: S sources, V laws (validation sets), F sources with room on both sides, G mixtures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.convex import ConvexLaw, Total, gap, minimise, sum_zero

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
    _check_possible(laws, share_V, cap_S)
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


def _check_possible(laws: Sequence[ConvexLaw], share_V: np.ndarray, cap_S: np.ndarray) -> None:
    """A mixture with some of every source that may be used has a finite loss, or none has."""
    all_S = cap_S / cap_S.sum()
    for number, (law, share) in enumerate(zip(laws, share_V, strict=True), start=1):
        if share > 0 and not np.isfinite(law.predict(all_S[None])[0]):
            raise ConfigError(
                f"law {number} of {len(laws)} predicts an infinite loss of every mixture: the "
                "sources that lower it have caps of 0; raise one of these, or leave the law out"
            )


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
