"""Mixtures to try in proxies, as RegMix draws them.

Shapes: N draws, S sources.
"""

import math
from collections.abc import Mapping

import numpy as np

from dograph.errors import ConfigError
from dograph.rng import stream
from dograph.types import Mixture

# The authors' constants.
TEMPERATURE = 0.5  # of the prior
STRENGTHS = np.geomspace(0.1, 5.0, 15)  # of a Dirichlet
MINIMUM = 2e-4  # a weight below this becomes 0, and others are multiples of it
OVERSAMPLE = 100  # draws for each mixture asked for
SAME = 1e-5  # L1 distance up to which two mixtures are one


def generate_mixtures(
    prior: Mapping[str, float],
    number: int,
    *,
    seed: int = 42,
    max_usage: float = 15.0,
) -> list[Mixture]:
    """Diverse mixtures around a prior (RegMix, mixture synthesis).

    `100 * number` times: a strength s, one of 15 spaced evenly in logarithm from 0.1 to 5, and a
    draw from Dirichlet(s q), q being proportional to prior^0.5. Draws in which a source passes
    min(max_usage * prior, 1) are refused; weights below 2e-4 become 0, the rest is scaled to sum
    to 1 and rounded to multiples of 2e-4; equal mixtures are counted once (sorted, neighbours
    within an L1 distance of 1e-5), and `number` of what remains are drawn.

    Deviations: the authors draw at every strength and then choose one of the draws, which is the
    same distribution; their rows sum to 1 only within the rounding, ours are divided by their sum
    (so weights are near multiples of 2e-4, and may pass a cap by as much). A source without
    prior keeps its name and the weight 0.
    """
    prior_S, total = np.array(list(prior.values()), dtype=np.float64), math.fsum(prior.values())
    if not (np.isfinite(prior_S).all() and (prior_S >= 0).all() and total > 0):
        raise ConfigError(f"the prior needs weights >= 0 with a sum above 0, got {dict(prior)}")
    if number < 1:
        raise ConfigError(f"the number of mixtures must be at least 1, got {number}")
    prior_S /= total
    draws = stream(seed, "plans", "generate")
    weight_NS = draw_mixtures(
        draws,
        prior_S[prior_S > 0],
        number * OVERSAMPLE,
        temperature=TEMPERATURE,
        strengths=STRENGTHS,
    )
    kept_NS = rounded(weight_NS, max_usage * prior_S[prior_S > 0], MINIMUM)
    distinct_NS = distinct(kept_NS)
    if len(distinct_NS) < number:
        raise ConfigError(
            f"{number} mixtures were asked for: of {len(weight_NS)} draws {len(kept_NS)} keep "
            f"every source at or below {max_usage:g} times its share of the prior, and "
            f"{len(distinct_NS)} of these differ; ask for fewer (num_proxies), or raise max_usage"
        )
    chosen_NS = np.zeros((number, len(prior_S)))
    order = draws.choice(len(distinct_NS), size=number, replace=False)
    chosen_NS[:, prior_S > 0] = distinct_NS[order]
    return [Mixture.normalised(dict(zip(prior, row, strict=True))) for row in chosen_NS.tolist()]


def draw_mixtures(
    draws: np.random.Generator,
    prior_S: np.ndarray,
    number: int,
    *,
    temperature: float,
    strengths: np.ndarray,
) -> np.ndarray:
    """Draws from Dirichlet(s q), each with an s drawn from `strengths`."""
    flat_S = prior_S**temperature
    flat_S /= flat_S.sum()
    strength_N = draws.integers(len(strengths), size=number)
    weight_NS = np.empty((number, len(prior_S)))
    for index, strength in enumerate(strengths):
        mine_N = strength_N == index
        weight_NS[mine_N] = draws.dirichlet(strength * flat_S, size=int(mine_N.sum()))
    return weight_NS


def rounded(weight_NS: np.ndarray, cap_S: np.ndarray, minimum: float) -> np.ndarray:
    """Draws within the caps, small weights set to 0, the rest on the grid of `minimum`."""
    weight_NS = weight_NS[(weight_NS <= np.minimum(cap_S, 1)).all(1)]
    weight_NS = np.where(weight_NS < minimum, 0, weight_NS)
    weight_NS = weight_NS / weight_NS.sum(1, keepdims=True)
    grid_NS: np.ndarray = np.round(weight_NS / minimum) * minimum
    return grid_NS


def distinct(weight_NS: np.ndarray) -> np.ndarray:
    """Mixtures in lexicographic order (the last source leads), each one once."""
    if not len(weight_NS):
        return weight_NS
    weight_NS = weight_NS[np.lexsort(weight_NS.T)]
    step_N = np.abs(np.diff(weight_NS, axis=0)).sum(1)
    distinct_NS: np.ndarray = weight_NS[np.concatenate([[True], step_N > SAME])]
    return distinct_NS
