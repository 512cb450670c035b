"""95 % intervals that need no extra: Student's t by a table, and over validation blocks.

Shapes: N values, n blocks of a source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dograph.report.reading import read_rows

Spread = TypeVar("Spread", float, np.ndarray)

# The 0.975 quantile of Student's t for 1 to 30 degrees of freedom.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_NORMAL = 1.959964


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t; beyond the table by Cornish and Fisher's expansion."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = _NORMAL
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


def t_reach(deviation: Spread, num: int) -> Spread:
    """How far the interval of a mean of `num` values reaches to either side: t s / sqrt(num).

    `deviation` is that of a sample (num - 1 in its denominator), one or an array of them.
    """
    return deviation * (t_quantile(num - 1) / math.sqrt(num))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, with its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def of_mean(mean: float, deviation: float | None, num: int) -> Estimate:
    """A mean of `num` values with its t interval; a single one has none."""
    if deviation is None or num < 2:
        return Estimate(mean)
    reach = t_reach(deviation, num)
    return Estimate(mean, mean - reach, mean + reach)


def over_seeds(values: Sequence[float]) -> Estimate:
    """A mean over runs that differ in their seed, with its t interval."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return of_mean(math.fsum(values) / len(values), deviation, len(values))


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """A source's last validation: loss per prediction, and the variance of that mean."""

    mean: float
    variance: float
    blocks: int


def block_losses(file: Path) -> dict[str, BlockLoss]:
    """By source, from validation.jsonl; sources with one block have no variance and are left out.

    The mean is a ratio of sums over blocks, sum p l / sum p, and its variance that of a ratio:
    sum p^2 (l - mean)^2 / (sum p)^2 times n / (n - 1). Blocks are taken as independent.
    """
    found: dict[str, BlockLoss] = {}
    for row in read_rows(file):
        size_n, loss_n = np.array(row["predictions"], float), np.array(row["loss_nats"], float)
        num, total = len(size_n), size_n.sum()
        if num < 2 or not total or not np.isfinite(loss_n).all():
            continue
        mean = float((size_n * loss_n).sum() / total)
        square = float((size_n**2 * (loss_n - mean) ** 2).sum()) / total**2
        found[row["source"]] = BlockLoss(mean, square * num / (num - 1), num)
    return found


def of_blocks(loss: BlockLoss) -> Estimate:
    """The interval of one source's loss over other text of it."""
    reach = t_quantile(loss.blocks - 1) * math.sqrt(loss.variance)
    return Estimate(loss.mean, loss.mean - reach, loss.mean + reach)


def of_weighted(value: float, parts: Sequence[tuple[float, BlockLoss]]) -> Estimate:
    """The interval of a weighted mean of sources; their text is independent."""
    variance = math.fsum(weight**2 * loss.variance for weight, loss in parts)
    freedom = max(1, sum(loss.blocks - 1 for _, loss in parts))
    reach = t_quantile(freedom) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach)
