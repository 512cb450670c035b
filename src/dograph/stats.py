"""What a difference over seeds and over validation text is worth.

Over seeds: runs of two methods with the same seed are a pair (same first weights, same shuffles),
so the difference is taken within each seed and the t interval is that of N differences:
    mean +- t(1 - alpha / 2; N - 1) s / sqrt(N).
It speaks of other seeds, on this validation text.

Over items: validation blocks are resampled with replacement inside each source, the same blocks
for every run, and runs are kept as they are. It speaks of other text of these sources, for these
runs. Percentiles are taken of draws of n - 1 of a source's n blocks (Rao and Wu 1988): drawing n
gives intervals too narrow by sqrt((n - 1) / n), much at the few blocks of a short validation.
BCa would also mend skewness, which paired differences hardly have, but its acceleration is not
defined over strata of different sizes.

Shapes: N seeds, M methods, S sources, n blocks of a source, R resamples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dograph.errors import require
from dograph.rng import stream

CONFIDENCE = 0.95
LEAST_SEEDS = 5  # for a claim
RESAMPLES = 4000
METRICS = ("mean", "natural", "worst", "gap")


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences; no interval and no p of one seed, or of what is not finite."""

    mean: float
    num_seeds: int
    interval: Interval | None  # of this difference alone
    simultaneous: Interval | None  # of a family: all of its intervals hold at once (Bonferroni)
    p_value: float | None  # two-sided, of no difference


def paired_difference(difference_N: Sequence[float], family: int = 1) -> Difference:
    """The mean of differences taken seed by seed, with its 95 % t interval.

    `family` is how many differences a table tests; intervals at level 1 - 0.05 / family cover all
    of their true values at once in at least 95 % of tables. Where all differences are the same,
    the interval is that one number, and p is 0, or 1 for no difference at all.
    """
    value_N = np.asarray(difference_N, dtype=np.float64)
    num, mean = len(value_N), float(value_N.mean()) if len(value_N) else math.nan
    if num < 2 or not np.isfinite(value_N).all():
        return Difference(mean, num, None, None, None)
    error = float(value_N.std(ddof=1)) / math.sqrt(num)
    if np.all(value_N == value_N[0]):
        same = Interval(float(value_N[0]), float(value_N[0]))
        return Difference(mean, num, same, same, 1.0 if value_N[0] == 0 else 0.0)
    special: Any = require("scipy.special", "plan")  # Student's t: stdtr, and stdtrit its inverse

    def around(alpha: float) -> Interval:
        reach = float(special.stdtrit(num - 1, 1 - alpha / 2)) * error
        return Interval(mean - reach, mean + reach)

    alpha = 1 - CONFIDENCE
    p_value = 2 * float(special.stdtr(num - 1, -abs(mean) / error))
    return Difference(mean, num, around(alpha), around(alpha / max(family, 1)), p_value)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p values: at most 0.05 keeps the chance of any false claim below 5 %.

    In ascending order, adjusted p_(i) is the largest of min(1, (m - j + 1) p_(j)) over j <= i
    (Holm 1979). A test without a p value counts as one of the m, so that a run that failed makes
    no other claim easier.
    """
    number = len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * number
    largest = 0.0
    for rank, (p_value, index) in enumerate(known):
        largest = max(largest, min(1.0, (number - rank) * p_value))
        adjusted[index] = largest
    return adjusted


def claim(difference: Difference, adjusted: float | None) -> str:
    """What a table may say of a row: lower, higher, unclear, or that it may say nothing."""
    if difference.num_seeds < LEAST_SEEDS:
        return f"no claim: {difference.num_seeds} of {LEAST_SEEDS} seeds"
    if adjusted is None:
        return "no claim: a loss is not finite"
    if adjusted > 1 - CONFIDENCE:
        return "unclear"
    return "lower" if difference.mean < 0 else "higher"


def summaries(loss_S: np.ndarray, share_S: np.ndarray) -> dict[str, np.ndarray]:
    """The four figures of a run from its sources' losses, on the last axis.

    mean: every source alike; natural: by `share_S`, the training tokens; worst: the largest;
    gap: the largest less the smallest (best-worst).
    """
    worst = loss_S.max(axis=-1)
    return {
        "mean": loss_S.mean(axis=-1),
        "natural": (loss_S * share_S).sum(axis=-1) / share_S.sum(),
        "worst": worst,
        "gap": worst - loss_S.min(axis=-1),
    }


@dataclass(frozen=True, slots=True)
class Blocks:
    """Losses of one source's validation blocks in every run: the items of the bootstrap."""

    prediction_n: np.ndarray  # tokens predicted in each block
    loss_nMN: np.ndarray  # block, method, seed


@dataclass(frozen=True, slots=True)
class Resampled:
    """Losses of every source in every run, on resampled validation text."""

    loss_RMNS: np.ndarray
    sources: list[str]

    def interval(self, figure_RMN: np.ndarray, method: int, baseline: int) -> Interval | None:
        """Of the difference to the baseline, averaged over the seeds."""
        difference_R = (figure_RMN[:, method] - figure_RMN[:, baseline]).mean(axis=-1)
        if not np.isfinite(difference_R).all():
            return None
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(difference_R, [tail, 1 - tail])
        return Interval(float(low), float(high))


def resample(
    blocks_of: Mapping[str, Blocks], *, seed: int = 0, number: int = RESAMPLES
) -> Resampled | None:
    """Bootstrap the blocks inside each source, all runs on the same draws.

    None where a source has a single block: nothing tells how it would vary.
    """
    if not blocks_of or any(len(blocks.prediction_n) < 2 for blocks in blocks_of.values()):
        return None
    drawn = [
        _resampled(blocks, stream(seed, "compare", "bootstrap", source), number)
        for source, blocks in blocks_of.items()
    ]
    return Resampled(np.stack(drawn, axis=-1), list(blocks_of))


def _resampled(blocks: Blocks, draws: np.random.Generator, number: int) -> np.ndarray:
    """The source's loss in every resample and run: predictions of all drawn blocks alike."""
    num = len(blocks.prediction_n)
    flat_nX = (blocks.prediction_n[:, None, None] * blocks.loss_nMN).reshape(num, -1)
    found = []
    for first in range(0, number, 500):  # all at once would hold R n numbers
        size = min(500, number - first)
        count_Rn = draws.multinomial(num - 1, np.full(num, 1 / num), size=size).astype(np.float64)
        found.append((count_Rn @ flat_nX) / (count_Rn @ blocks.prediction_n)[:, None])
    return np.concatenate(found).reshape(number, *blocks.loss_nMN.shape[1:])
