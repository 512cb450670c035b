"""RegMix's draws: mixtures for proxies, for later rounds of them, and the simulated optimum.

Shapes: N draws, S sources.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.surrogates import is_constant
from dograph.rng import stream
from dograph.types import Mixture


def capped(
    weight_NS: np.ndarray,
    cap_S: np.ndarray,
    prior_S: np.ndarray | None = None,
    *,
    low_S: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Mixtures cut to the caps; the excess goes to the other sources in proportion.

    That is a * weight, clipped to [low, cap], with the `a` for which a mixture sums to 1. Sources
    that pass a bound are fixed at it until none is new: at the caps while these cut off more than
    the lower bounds add, because the true `a` is then larger, else at the lower bounds (Bitran and
    Hax, 1981). If the sources with weight cannot fill a mixture, the prior fills it; without a
    prior it sums to less than 1.
    """
    out_N = ((weight_NS > cap_S) | (weight_NS < low_S)).any(1)
    if not out_N.any():
        return weight_NS
    result_NS = weight_NS.copy()
    # the prior fills draws whose other weights have all underflowed to 0
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


NEGLIGIBLE = 1e-12  # shares below this are counts that have decayed, and become 0


def bounded(share_S: np.ndarray, *, low_S: np.ndarray, high_S: np.ndarray) -> np.ndarray:
    """Shares scaled by one factor and clipped to their bounds, so that they sum to 1.

    If the upper bounds sum to less than 1 (a corpus too small for the run), they are scaled up.
    """
    high_S = np.maximum(high_S, low_S)
    if high_S.sum() < 1:
        high_S = high_S / high_S.sum()
    share_S = np.where(share_S < NEGLIGIBLE, 0.0, share_S)
    clipped_S = capped(share_S[None], high_S, low_S=low_S)[0]
    missing = 1 - clipped_S.sum()  # if all others are at their bound, it goes to the rest
    room_S = high_S - clipped_S
    if missing > 1e-9 and room_S.sum() > 0:
        clipped_S = clipped_S + missing * room_S / room_S.sum()
    return np.asarray(clipped_S / clipped_S.sum())


DRAWS = 100_000
TOP = 128


def simulate(
    predict: Callable[[np.ndarray], np.ndarray],
    prior_S: np.ndarray,
    cap_S: np.ndarray,
    *,
    seed: int = 42,
    draws: int = DRAWS,
    top: int = TOP,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Average the `top` of `draws` mixtures from Dirichlet(prior) by predicted loss.

    That is RegMix's optimum (regression notebook: 100,000 draws with the plain prior, concentration
    1, the 128 lowest), except that draws above a cap are cut to it, as theirs ignores the usage
    cap. Ties: the earlier draw. If all predictions are equal, the result is the prior, cut to the
    caps.
    """
    raw_NS = draw_around(stream(seed, "plans", "simulate"), prior_S, draws)
    weight_NS = capped(raw_NS, cap_S, prior_S)
    cut = float((raw_NS > cap_S).any(1).mean())
    loss_N = predict(weight_NS)
    constant = is_constant(loss_N)
    top = draws if constant else min(top, draws)
    findings = {"draws": draws, "top": top, "constant": constant, "cut_to_caps": cut}
    if constant:
        return capped(prior_S[None], cap_S, prior_S)[0], findings
    mean_S = weight_NS[np.argsort(loss_N, kind="stable")[:top]].mean(0)
    return np.minimum(mean_S / mean_S.sum(), cap_S), findings


def draw_around(draws: np.random.Generator, prior_S: np.ndarray, number: int) -> np.ndarray:
    """Draws from Dirichlet(prior); a source without prior has the weight 0."""
    weight_NS, there_S = np.zeros((number, len(prior_S))), prior_S > 0
    weight_NS[:, there_S] = draws.dirichlet(prior_S[there_S], size=number)
    return weight_NS


# RegMix's constants for the mixtures of proxies.
TEMPERATURE = 0.5  # of the prior
STRENGTHS = np.geomspace(0.1, 5.0, 15)  # of a Dirichlet
MINIMUM = 2e-4  # a weight below this becomes 0, and others are multiples of it
OVERSAMPLE = 100  # draws for each requested mixture
SAME = 1e-5  # mixtures within this L1 distance are equal


def generate_mixtures(
    prior: Mapping[str, float], number: int, *, seed: int = 42, max_usage: float = 15.0
) -> list[Mixture]:
    """Diverse mixtures around a prior (RegMix, mixture synthesis).

    `100 * number` times: a strength s, one of 15 spaced evenly in logarithm from 0.1 to 5, and a
    draw from Dirichlet(s q), q proportional to prior^0.5. Draws in which a source is above
    min(max_usage * prior, 1) are rejected; weights below 2e-4 become 0, the rest is scaled to sum
    to 1 and rounded to multiples of 2e-4; duplicates are removed, and `number` of the remaining
    mixtures are sampled. Unlike the authors' rows, ours are divided by their sum after rounding
    (and may exceed a cap by as much). A source without prior keeps its name and the weight 0.
    """
    prior_S, total = np.array(list(prior.values()), dtype=np.float64), math.fsum(prior.values())
    if not (np.isfinite(prior_S).all() and (prior_S >= 0).all() and total > 0):
        raise ConfigError(f"the prior needs weights >= 0 with a sum above 0, got {dict(prior)}")
    prior_S /= total
    there_S = prior_S > 0
    draws = stream(seed, "plans", "generate")
    weight_NS = draw_mixtures(draws, prior_S[there_S], number * OVERSAMPLE)
    kept_NS = rounded(weight_NS, max_usage * prior_S[there_S])
    distinct_NS = distinct(kept_NS)
    if len(distinct_NS) < number:
        raise ConfigError(
            f"{number} mixtures are needed: of {len(weight_NS)} draws {len(kept_NS)} keep "
            f"every source at or below {max_usage:g} times its share of the prior, and "
            f"{len(distinct_NS)} of these differ; ask for fewer (num_proxies), or raise max_usage"
        )
    chosen_NS = np.zeros((number, len(prior_S)))
    order = draws.choice(len(distinct_NS), size=number, replace=False)
    chosen_NS[:, there_S] = distinct_NS[order]
    return [Mixture.normalised(dict(zip(prior, row, strict=True))) for row in chosen_NS.tolist()]


APART = 0.1  # L1 distance of a later round's mixtures from others, if there are enough


def promising_mixtures(
    predict: Callable[[np.ndarray], np.ndarray],
    prior_S: np.ndarray,
    cap_S: np.ndarray,
    made_NS: np.ndarray,
    number: int,
    *,
    draws: np.random.Generator,
    num_draws: int = DRAWS,
) -> np.ndarray:
    """Mixtures for another round of proxies, (number, S).

    Of `num_draws` from Dirichlet(prior), cut to the caps and rounded as in `generate_mixtures`,
    those with the lowest predicted loss that are not within `APART` of one made or already taken;
    where none is left, the distance is halved.
    """
    weight_NS = capped(draw_around(draws, prior_S, num_draws), cap_S, prior_S)
    weight_NS = rounded(weight_NS, cap_S)
    weight_NS = weight_NS / weight_NS.sum(1, keepdims=True)
    weight_NS = weight_NS[np.argsort(predict(weight_NS), kind="stable")]
    away_N, distance = np.full(len(weight_NS), np.inf), APART
    for made_S in made_NS:
        away_N = np.minimum(away_N, np.abs(weight_NS - made_S).sum(1))
    taken: list[np.ndarray] = []
    while len(taken) < number:
        far_N = away_N > distance
        if far_N.any():
            taken.append(weight_NS[far_N.argmax()])
            away_N = np.minimum(away_N, np.abs(weight_NS - taken[-1]).sum(1))
        elif distance > SAME:
            distance /= 2
        else:
            raise ConfigError(
                f"a round needs {number} new mixtures; of {num_draws:,} draws within the caps "
                f"{len(taken)} are new: ask for fewer in mixer.rounds, or raise the caps"
            )
    return np.array(taken)


def draw_mixtures(draws: np.random.Generator, prior_S: np.ndarray, number: int) -> np.ndarray:
    """Draws from Dirichlet(s q), each with an s drawn from `STRENGTHS`; q from prior^0.5."""
    flat_S = prior_S**TEMPERATURE
    flat_S /= flat_S.sum()
    strength_N = draws.integers(len(STRENGTHS), size=number)
    weight_NS = np.empty((number, len(prior_S)))
    for index, strength in enumerate(STRENGTHS):
        mine_N = strength_N == index
        weight_NS[mine_N] = draws.dirichlet(strength * flat_S, size=int(mine_N.sum()))
    return weight_NS


def rounded(weight_NS: np.ndarray, cap_S: np.ndarray) -> np.ndarray:
    """Draws within the caps, small weights set to 0, the rest on the grid of `MINIMUM`."""
    weight_NS = weight_NS[(weight_NS <= np.minimum(cap_S, 1)).all(1)]
    weight_NS = np.where(weight_NS < MINIMUM, 0, weight_NS)
    weight_NS = weight_NS / weight_NS.sum(1, keepdims=True)
    return np.asarray(np.round(weight_NS / MINIMUM) * MINIMUM)


def distinct(weight_NS: np.ndarray) -> np.ndarray:
    """Mixtures without duplicates, in lexicographic order (the last source first)."""
    weight_NS = weight_NS[np.lexsort(weight_NS.T)]
    step_N = np.abs(np.diff(weight_NS, axis=0, prepend=-1)).sum(1)  # the first is always kept
    return np.asarray(weight_NS[step_N > SAME])
