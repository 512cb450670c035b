"""Boosted trees: RegMix's own surrogate, through LightGBM."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dograph.errors import require

ROUNDS = 1000
LEARNING_RATE = 0.01


@dataclass(frozen=True, slots=True)
class Trees:
    """A fitted ensemble."""

    booster: Any  # lightgbm.Booster

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        # callers spread their work over threads themselves
        return np.asarray(self.booster.predict(weight_NS, num_threads=1), dtype=np.float64)


class Boosted:
    """Gradient boosting of the squared error: 1000 rounds at a learning rate of 0.01.

    The authors' recipe (RegMix, regression notebook) with one thing left out: they stop early by
    the error on their test rows, which here would leak what is to be judged. All else has
    LightGBM's defaults, among them at least 20 runs in a leaf: with fewer than 40 runs there is no
    split and the prediction is a constant.
    """

    name: ClassVar[str] = "lightgbm"

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> Trees:
        lightgbm = require("lightgbm", "plan")
        settings = {
            "boosting": "gbdt",
            "objective": "regression",
            "learning_rate": LEARNING_RATE,
            "seed": seed & 0x7FFFFFFF,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }
        runs = lightgbm.Dataset(weight_NS, label=loss_N, params=settings)
        booster = lightgbm.Booster(settings, runs)
        for _ in range(ROUNDS):
            if booster.update():  # it cannot split any more
                break
        return Trees(booster.free_dataset())
