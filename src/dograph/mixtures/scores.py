"""How well predicted losses agree with measured ones.

Shapes: N runs.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Scores:
    """Agreement of predictions with N losses; what is undefined is None."""

    runs: int
    spearman: float | None
    pearson: float | None
    mean_error: float | None  # mean absolute error, in the losses' unit
    bias: float | None  # mean of predicted minus measured
    note: str | None = None  # why something is undefined

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def is_constant(value_N: np.ndarray) -> bool:
    """Whether all values are the same, up to rounding."""
    if not np.isfinite(value_N).all():
        return bool((value_N == value_N[0]).all())
    scale = max(1.0, float(np.abs(value_N).max(initial=0)))
    return value_N.size == 0 or float(np.ptp(value_N)) <= 1e-12 * scale


def ranks(value_N: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse_N, count_U = np.unique(value_N, return_inverse=True, return_counts=True)
    last_U = np.cumsum(count_U)
    rank_U: np.ndarray = last_U - (count_U - 1) / 2
    return rank_U[inverse_N]


def correlation(left_N: np.ndarray, right_N: np.ndarray) -> float | None:
    """Pearson's correlation; None where one side is constant or has infinite values."""
    if left_N.size < 2 or is_constant(left_N) or is_constant(right_N):
        return None
    if not (np.isfinite(left_N).all() and np.isfinite(right_N).all()):
        return None
    left_N, right_N = left_N - left_N.mean(), right_N - right_N.mean()
    scale = float(np.linalg.norm(left_N) * np.linalg.norm(right_N))
    return float(np.clip(left_N @ right_N / scale, -1, 1))


def rank_correlation(left_N: np.ndarray, right_N: np.ndarray) -> float | None:
    """Spearman's: Pearson's on the ranks. None where one side is constant."""
    if is_constant(left_N) or is_constant(right_N):
        return None
    return correlation(ranks(left_N), ranks(right_N))


def score(predicted_N: np.ndarray, loss_N: np.ndarray) -> Scores:
    """Spearman, Pearson, mean absolute error and bias over the runs whose loss is known."""
    known_N = ~np.isnan(loss_N)
    predicted_N, loss_N = predicted_N[known_N], loss_N[known_N]
    if not loss_N.size:
        return Scores(0, None, None, None, None, "no loss is known")
    note = None
    if loss_N.size < 2:
        note = "one run has no order"
    elif is_constant(loss_N):
        note = "constant losses"
    elif is_constant(predicted_N):
        note = "constant"
    infinite = int(np.isinf(predicted_N).sum())
    if infinite:
        note = f"an infinite loss is predicted of {infinite} of {loss_N.size} runs"
    return Scores(
        int(loss_N.size),
        rank_correlation(predicted_N, loss_N),
        correlation(predicted_N, loss_N),
        None if infinite else float(np.abs(predicted_N - loss_N).mean()),
        None if infinite else float((predicted_N - loss_N).mean()),
        note,
    )
