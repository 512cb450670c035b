"""Medians, their exact intervals, and ratios of steps that took turns."""

import math
import statistics
from collections.abc import Sequence
from typing import Any


def median_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, Any]:
    """The median and its exact distribution-free interval, from order statistics.

    Between the k-th smallest and the k-th largest of n values lies the true median with
    probability 1 - 2 P(Bin(n, 1/2) < k), whatever the distribution; k is the largest for which
    that is at least `confidence`. Of too few values all are taken, and what they cover is said.
    """
    ordered, n = sorted(values), len(values)
    below = [math.comb(n, k) / 2**n for k in range(n + 1)]
    low, tail = 0, below[0]  # tail: P(Bin <= low)
    while 2 * (tail + below[low + 1]) <= 1 - confidence:
        low += 1
        tail += below[low]
    return {
        "median": float(statistics.median(ordered)),
        "low": float(ordered[low]),
        "high": float(ordered[n - 1 - low]),
        "confidence": round(max(1 - 2 * tail, 0.0), 4),
        "blocks": n,
    }


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    """Median of the ratios of pairs, with its interval."""
    return median_interval([a / b for a, b in zip(over, under, strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and the least of some values."""
    if len(values) > 1:
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    else:
        first = third = values[0]
    return {
        "median": float(statistics.median(values)),
        "first_quartile": float(first),
        "third_quartile": float(third),
        "least": float(min(values)),
        "steps": len(values),
    }
