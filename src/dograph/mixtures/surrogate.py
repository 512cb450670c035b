"""The shape of a surrogate: fitted on mixtures and losses, it predicts losses of other mixtures.

Shapes: N runs, S sources.
"""

from typing import ClassVar, Protocol

import numpy as np


class Fitted(Protocol):
    """A surrogate that has seen its runs."""

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,), in the unit they were fitted in."""


class Surrogate(Protocol):
    """A family of functions from mixtures to one loss."""

    name: ClassVar[str]

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> Fitted:
        """The member of the family that fits the runs best."""
