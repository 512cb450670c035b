"""Mixtures under usage caps: no source above its own.

Shapes: N mixtures, S sources.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dograph.errors import ConfigError
from dograph.plans.checks import listed
from dograph.plans.targets import known_name


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


def capped(weight_NS: np.ndarray, cap_S: np.ndarray, prior_S: np.ndarray) -> np.ndarray:
    """Mixtures cut to the caps; what is cut off goes to the other sources in proportion.

    That is min(cap, a * weight) with the one `a` for which a mixture sums to 1, found by fixing
    the sources that reach their cap until none is new. Proportions outlast the cut, so that draws
    stay as varied as they were; draws within the caps do not change.
    """
    over_N = (weight_NS > cap_S).any(1)
    if not over_N.any():
        return weight_NS
    result_NS = weight_NS.copy()
    # a draw with nothing but underflow beside its large weights is filled up by the prior
    weight_NS = np.maximum(weight_NS[over_N], 1e-12 * prior_S)
    fixed_NS = np.broadcast_to(cap_S <= 0, weight_NS.shape)
    for _ in range(len(cap_S) + 1):
        room_N = 1 - np.where(fixed_NS, cap_S, 0).sum(1)
        free_NS = np.where(fixed_NS, 0, weight_NS)
        total_N = free_NS.sum(1)
        scale_N = np.divide(room_N, total_N, out=np.zeros_like(room_N), where=total_N > 0)
        cut_NS = np.where(fixed_NS, cap_S, free_NS * scale_N[:, None])
        new_NS = cut_NS > cap_S
        if not new_NS.any():
            break
        fixed_NS = fixed_NS | new_NS
    result_NS[over_N] = np.minimum(cut_NS, cap_S)
    return result_NS
