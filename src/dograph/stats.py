"""Estimates with intervals: over seeds, over rows and over validation text.

Over seeds: runs of two methods with the same seed are a pair (same initial weights, same shuffles),
so the difference is taken within each seed and the t interval is that of N differences:
    mean +- t(1 - alpha / 2; N - 1) s / sqrt(N).
It generalizes to other seeds, on this validation text.

Over items: validation blocks are resampled with replacement within each source, the same blocks
for every run, with the runs fixed. It generalizes to other text of these sources, for these runs.
Percentiles are over draws of n - 1 of a source's n blocks (Rao and Wu 1988): drawing n would make
intervals too narrow by sqrt((n - 1) / n), which matters for short validation texts. BCa would also
correct skewness, which paired differences hardly have, but its acceleration is not defined over
strata of different sizes.

Shapes: N seeds, M methods, S sources, n blocks of a source, R resamples.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from dograph.rng import stream

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
LEAST_SEEDS = 5  # that a claim needs
RESAMPLES = 4000
METRICS = ("mean", "natural", "worst", "gap")

# The range of a quantity. A t interval over few seeds can reach impossible values, such as an NMI
# of 1.2. Cutting it to the range loses no coverage, since no true value lies outside.
Range = tuple[float, float]
SHARE: Range = (0.0, 1.0)  # NMI, purity
SHARE_CHANGE: Range = (-1.0, 1.0)  # a difference of two
PER_CENT: Range = (0.0, 100.0)
PER_CENT_CHANGE: Range = (-100.0, 100.0)
ABOVE_ZERO: Range = (0.0, math.inf)  # losses, spreads, seconds
ANY: Range = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    @property
    def side(self) -> Literal[-1, 0, 1]:
        """The side of zero on which the whole interval lies; 0 if it contains zero."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def cut(self, ends: Range) -> "Interval":
        """The part that lies between `ends`."""
        return Interval(*np.clip((self.low, self.high), *ends).tolist())

    def text(self, shape: str, gap: str = "") -> str:
        """`[-0.015,-0.009]` for the shape `+.3f`."""
        return f"[{self.low:{shape}},{gap}{self.high:{shape}}]"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval; None if the variation of the value is unknown."""

    value: float
    interval: Interval | None = None  # of this value alone, at `level`
    num: int = 1  # of values it is made of: seeds, runs, blocks
    simultaneous: Interval | None = None  # of a family: all of its intervals hold at once
    p_value: float | None = None  # two-sided, of a true value of zero
    level: float = CONFIDENCE

    @property
    def low(self) -> float | None:
        return None if self.interval is None else self.interval.low

    @property
    def high(self) -> float | None:
        return None if self.interval is None else self.interval.high

    def within(self, ends: Range) -> "Estimate":
        """With intervals cut to the range of the quantity; the value does not change."""
        own, family = (i and i.cut(ends) for i in (self.interval, self.simultaneous))
        return replace(self, interval=own, simultaneous=family)

    def plain(self, shape: str) -> str:
        """The value alone, or a dash if there is none."""
        return f"{self.value:{shape}}" if self.num else "-"

    def text(self, shape: str, gap: str = "") -> str:
        """`-0.0123 [-0.0150,-0.0096]` for the shape `+.4f`."""
        ends = "" if self.interval is None else self.interval.text(shape, gap)
        return f"{self.plain(shape)} {ends}".strip()

    def plus_minus(self, shape: str) -> str:
        """`5.1234 ± 0.0034`, half the interval's width; both ends if one is cut off."""
        if self.interval is None:
            return self.plain(shape)
        below, above = self.value - self.interval.low, self.interval.high - self.value
        if not math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-9):
            return self.text(shape)
        return f"{self.plain(shape)} ± {above:{shape}}"

    def record(self) -> dict[str, Any]:
        """JSON of a mean over seeds, as comparisons and reproductions write it."""
        own, family = (i and asdict(i) for i in (self.interval, self.simultaneous))
        return {"mean": self.value, "seeds": self.num, "interval": own, "simultaneous": family}


def t_quantile(freedom: float, alpha: float = ALPHA) -> float:
    """t(1 - alpha / 2; freedom): how many standard errors an interval reaches to either side."""
    from scipy.special import stdtrit  # the inverse of Student's distribution function

    return float(stdtrit(freedom, 1 - alpha / 2))


def t_interval(value: float, error: float, freedom: float, alpha: float = ALPHA) -> Interval:
    """`value` +- t(1 - alpha / 2; freedom) `error`."""
    reach = t_quantile(freedom, alpha) * error
    return Interval(value - reach, value + reach)


def mean_estimate(value_N: Sequence[float] | np.ndarray, family: int = 1) -> Estimate:
    """A mean with its 95 % t interval; no interval and no p for one value or a value not finite.

    `family` is the number of means that a table tests; intervals at level 1 - 0.05 / family cover
    all of their true values at once in at least 95 % of tables (Bonferroni). If all values are the
    same, the interval is that one number, and p is 0, or 1 if the number is 0.
    """
    value_N = np.asarray(value_N, dtype=np.float64)
    num, mean = len(value_N), float(value_N.mean()) if len(value_N) else math.nan
    if num < 2 or not np.isfinite(value_N).all():
        return Estimate(mean, None, num)
    if np.all(value_N == value_N[0]):
        same = Interval(float(value_N[0]), float(value_N[0]))
        return Estimate(mean, same, num, same, 1.0 if value_N[0] == 0 else 0.0)
    error = float(value_N.std(ddof=1)) / math.sqrt(num)
    return t_estimate(mean, error, num - 1, num, family)


def t_estimate(value: float, error: float, freedom: float, num: int, family: int) -> Estimate:
    """Of `num` values, with the t distribution's intervals and p for this standard error."""
    from scipy.special import stdtr

    own, at_once = (t_interval(value, error, freedom, ALPHA / n) for n in (1, max(family, 1)))
    return Estimate(value, own, num, at_once, 2 * float(stdtr(freedom, -abs(value) / error)))


def with_shared_error(
    value_N: Sequence[float], other: float, freedom: float, family: int
) -> Estimate:
    """The mean of values that all contain one and the same error, besides their own.

    `other` is its standard error, with its degrees of freedom. The variances of the mean and of the
    shared error are added; the smaller of the two degrees of freedom makes the interval wide enough
    whichever error is the larger one.
    """
    mean = mean_estimate(value_N, family)
    if mean.interval is None or other == 0:
        return mean
    error = math.hypot(statistics.stdev(value_N) / math.sqrt(mean.num), other)
    return t_estimate(mean.value, error, min(mean.num - 1, freedom), mean.num, family)


def paired_difference(
    own: Mapping[int, float], other: Mapping[int, float], family: int = 1
) -> Estimate:
    """The mean of own minus other, paired over the seeds that both have."""
    return mean_estimate([own[seed] - other[seed] for seed in own if seed in other], family)


def median_estimate(values: Sequence[float], level: float = CONFIDENCE) -> Estimate:
    """The median and its exact distribution-free interval, from order statistics.

    Between the k-th smallest and the k-th largest of n values lies the true median with
    probability 1 - 2 P(Bin(n, 1/2) < k), for any distribution; k is the largest for which that is
    at least `level`. With too few values the interval spans all of them; the estimate has the
    level that it reaches.
    """
    from scipy.special import bdtr

    ordered, n = sorted(values), len(values)
    outside = 2 * bdtr(np.arange(n), n, 0.5)  # 2 P(Bin <= k): outside the k-th from either end
    k = max(int((outside <= 1 - level).sum()) - 1, 0)
    interval = Interval(float(ordered[k]), float(ordered[n - 1 - k]))
    covered = round(max(1 - float(outside[k]), 0.0), 4)
    return Estimate(float(statistics.median(ordered)), interval, n, level=covered)


def median_record(estimate: Estimate) -> dict[str, Any]:
    """JSON of a median, as measurements of time write it."""
    median = {"median": estimate.value, "low": estimate.low, "high": estimate.high}
    return median | {"confidence": estimate.level, "blocks": estimate.num}


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p values: at most 0.05 keeps the chance of any false claim below 5 %.

    In ascending order, adjusted p_(i) is the largest of min(1, (m - j + 1) p_(j)) over j <= i
    (Holm 1979). A test without a p value counts as one of the m, so that a failed run makes no
    other claim easier.
    """
    if wrong := [p for p in p_values if p is not None and not 0 <= p <= 1]:
        raise ValueError(f"p values lie between 0 and 1, got {wrong}; leave one out as None")
    number = len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * number
    largest = 0.0
    for rank, (p_value, index) in enumerate(known):
        largest = max(largest, min(1.0, (number - rank) * p_value))
        adjusted[index] = largest
    return adjusted


def claim(difference: Estimate, adjusted: float | None) -> str:
    """The claim of a row: lower, higher, unclear, or why no claim is made."""
    if difference.num < LEAST_SEEDS:
        return f"no claim: {difference.num} of {LEAST_SEEDS} seeds"
    if adjusted is None:
        return "no claim: a loss is not finite"
    if adjusted > ALPHA:
        return "unclear"
    return "lower" if difference.value < 0 else "higher"


def summaries(loss_S: np.ndarray, share_S: np.ndarray) -> dict[str, np.ndarray]:
    """The four summaries of a run from its sources' losses, on the last axis.

    mean: over sources; natural: weighted by `share_S`, the training tokens; worst: the largest;
    gap: the largest minus the smallest.
    """
    worst = loss_S.max(axis=-1)
    return {
        "mean": loss_S.mean(axis=-1),
        "natural": (loss_S * share_S).sum(axis=-1) / share_S.sum(),
        "worst": worst,
        "gap": worst - loss_S.min(axis=-1),
    }


def resample(
    blocks_of: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    seed: int = 0,
    number: int = RESAMPLES,
) -> np.ndarray | None:
    """Losses on resampled validation text, (R, M, N, S): blocks are drawn within each source.

    `blocks_of`: by source, predictions in each block (n) and losses (n, M, N). All runs use the
    same draws, and all predictions of a source count equally. None if a source has a single block:
    its variation is unknown.
    """
    if not blocks_of or any(len(prediction_n) < 2 for prediction_n, _ in blocks_of.values()):
        return None
    loss_by_source = []
    for source, (prediction_n, loss_nMN) in blocks_of.items():
        draws, num = stream(seed, "compare", "bootstrap", source), len(prediction_n)
        flat_nX = (prediction_n[:, None, None] * loss_nMN).reshape(num, -1)
        parts = []
        for first in range(0, number, 500):  # in parts, to save memory
            size = min(500, number - first)
            count_Rn = draws.multinomial(num - 1, np.full(num, 1 / num), size=size).astype(float)
            parts.append((count_Rn @ flat_nX) / (count_Rn @ prediction_n)[:, None])
        loss_by_source.append(np.concatenate(parts).reshape(number, *loss_nMN.shape[1:]))
    return np.stack(loss_by_source, axis=-1)


def percentile_interval(figure_RMN: np.ndarray, method: int, baseline: int) -> Interval | None:
    """Of a resampled metric's difference to the baseline, averaged over the seeds."""
    difference_R = (figure_RMN[:, method] - figure_RMN[:, baseline]).mean(axis=-1)
    if not np.isfinite(difference_R).all():
        return None
    low, high = np.quantile(difference_R, [ALPHA / 2, 1 - ALPHA / 2])
    return Interval(float(low), float(high))
