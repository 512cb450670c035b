"""Mixtures under usage caps: no source above its own.

Shapes: N mixtures, S sources.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.checks import listed
from dograph.mixtures.targets import known_name


def cap_vector(
    caps: Mapping[str, float] | None,
    prior_S: np.ndarray,
    sources: Sequence[str],
    aliases: Mapping[str, str],
) -> np.ndarray:
    """Highest weight of each source: its cap, else 1; 0 where the prior has none of it."""
    cap_S = np.where(prior_S > 0, 1.0, 0.0)
    for name, cap in (caps or {}).items():
        own = known_name(name, sources, aliases, "source")
        if not cap >= 0:
            raise ConfigError(f'the cap of source "{name}" must be >= 0, got {cap}')
        column = list(sources).index(own)
        cap_S[column] = min(cap_S[column], cap)
    if cap_S.sum() < 1 - 1e-9:
        tight = [f"{s} {c:.4g}" for s, c in zip(sources, cap_S, strict=True) if c < 1]
        raise ConfigError(
            f"the caps allow {cap_S.sum():.4g} of a mixture, which needs 1: {listed(tight)}; "
            "raise some of them"
        )
    return cap_S


def capped(
    weight_NS: np.ndarray,
    cap_S: np.ndarray,
    prior_S: np.ndarray | None = None,
    *,
    low_S: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Mixtures cut to the caps; what is cut off goes to the other sources in proportion.

    That is a * weight, clipped to [low, cap], with the one `a` for which a mixture sums to 1. It is
    found by fixing sources at a bound that they pass until none is new: at the caps while these
    cut off more than the lower bounds add, for then the true `a` is larger still, else at the lower
    bounds (Bitran and Hax, 1981). Proportions outlast the cut, so that draws stay as varied as they
    were; draws within the bounds do not change. Where sources with weight cannot fill a mixture up,
    the prior does, and without one it sums to less than 1.
    """
    out_N = ((weight_NS > cap_S) | (weight_NS < low_S)).any(1)
    if not out_N.any():
        return weight_NS
    result_NS = weight_NS.copy()
    # a draw with nothing but underflow beside its large weights is filled up by the prior
    weight_NS = np.maximum(weight_NS[out_N], 0.0 if prior_S is None else 1e-12 * prior_S)
    fixed_NS = np.broadcast_to(cap_S <= low_S, weight_NS.shape)
    bound_NS = np.broadcast_to(cap_S, weight_NS.shape)
    for _ in range(2 * len(cap_S) + 1):
        room_N = 1 - np.where(fixed_NS, bound_NS, 0).sum(1)
        free_NS = np.where(fixed_NS, 0, weight_NS)
        total_N = free_NS.sum(1)
        scale_N = np.divide(room_N, total_N, out=np.zeros_like(room_N), where=total_N > 0)
        cut_NS = np.where(fixed_NS, bound_NS, free_NS * scale_N[:, None])
        over_NS, under_NS = np.maximum(cut_NS - cap_S, 0), np.maximum(low_S - cut_NS, 0)
        from_above_N1 = (over_NS.sum(1) >= under_NS.sum(1))[:, None]
        new_NS = np.where(from_above_N1, over_NS, under_NS) > 0
        if not new_NS.any():
            break
        bound_NS = np.where(new_NS & ~from_above_N1, low_S, bound_NS)
        fixed_NS = fixed_NS | new_NS
    result_NS[out_N] = np.clip(cut_NS, low_S, cap_S)
    return result_NS
