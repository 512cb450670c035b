"""Surrogates of several targets as one: the predicted loss of what a plan is to lower.

Shapes: N mixtures, S sources, V targets.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np

from dograph.mixtures.surrogate import Fitted, Surrogate

CHUNK = 20_000  # mixtures predicted at once

# (pieces of work done, of how many, what they are)
Progress = Callable[[int, int, str], None]


def num_workers() -> int:
    """Threads worth having."""
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Objective:
    """The sum of share_v L_v(mixture), each L_v predicted by a surrogate of its own."""

    fitted_V: list[Fitted]
    share_V: np.ndarray

    def each(self, weight_NS: np.ndarray) -> np.ndarray:
        """Predicted losses of all targets, (N, V)."""
        starts = range(0, len(weight_NS), CHUNK)
        with ThreadPoolExecutor(num_workers()) as pool:
            parts = pool.map(
                lambda work: work[0].predict(weight_NS[work[1] : work[1] + CHUNK]),
                product(self.fitted_V, starts),
            )
            flat = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
        return flat.reshape(len(self.fitted_V), len(weight_NS)).T

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Predicted losses of the objective, (N,)."""
        loss_N: np.ndarray = self.each(weight_NS) @ self.share_V
        return loss_N


def fit_objective(
    surrogate: Surrogate,
    weight_NS: np.ndarray,
    loss_NV: np.ndarray,
    share_V: Sequence[float] | np.ndarray,
    *,
    seed: int,
) -> Objective:
    """One surrogate for each target, fitted on the runs that have its loss."""

    def fit(loss_N: np.ndarray) -> Fitted:
        known_N = ~np.isnan(loss_N)
        return surrogate.fit(weight_NS[known_N], loss_N[known_N], seed=seed)

    with ThreadPoolExecutor(num_workers()) as pool:
        return Objective(list(pool.map(fit, loss_NV.T)), np.asarray(share_V, dtype=np.float64))
