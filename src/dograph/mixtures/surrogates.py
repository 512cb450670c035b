"""Surrogates: functions from mixtures to one loss, fitted on runs, by name.

Shapes: N runs, S sources, A penalties.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from dograph.errors import require
from dograph.mixtures.exponential import Exponential
from dograph.mixtures.transfer import Transfer

ROUNDS = 1000
LEARNING_RATE = 0.01
PENALTIES = np.logspace(-8, 4, 49)  # of Ridge


class Fitted(Protocol):
    """A surrogate that has seen its runs."""

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,), in the unit they were fitted in."""


class Surrogate(Protocol):
    """A family of functions from mixtures to one loss."""

    name: ClassVar[str]

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> Fitted:
        """The member of the family that fits the runs best."""


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


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """loss = intercept + weights . slope."""

    intercept: float
    slope_S: np.ndarray
    penalty: float = 0.0

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        loss_N: np.ndarray = self.intercept + weight_NS @ self.slope_S
        return loss_N


class Linear:
    """Ordinary least squares; the shortest slope where weights that sum to 1 leave a choice."""

    name: ClassVar[str] = "linear"

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> LinearLaw:
        mean_S, mean = weight_NS.mean(0), float(loss_N.mean())
        slope_S = np.linalg.lstsq(weight_NS - mean_S, loss_N - mean, rcond=None)[0]
        return LinearLaw(mean - float(mean_S @ slope_S), slope_S)


class Ridge:
    """Least squares with a squared penalty on the slopes, none on the intercept.

    The penalty is the one of 49 (1e-8 to 1e4) with the smallest mean squared error when each run
    is predicted without it, which needs no refitting: with the singular values s and left vectors
    u of the centred weights, run n's leverage is h_n = 1/N + sum_j u_nj^2 s_j^2 / (s_j^2 + a) and
    its error without it is its residual over 1 - h_n.
    """

    name: ClassVar[str] = "ridge"

    def fit(self, weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> LinearLaw:
        mean_S, mean = weight_NS.mean(0), float(loss_N.mean())
        left_NS, singular_S, right_SS = np.linalg.svd(weight_NS - mean_S, full_matrices=False)
        kept_AS = singular_S**2 / (singular_S**2 + PENALTIES[:, None])
        along_S = left_NS.T @ (loss_N - mean)
        residual_AN = (loss_N - mean) - (kept_AS * along_S) @ left_NS.T
        leverage_AN = 1 / len(loss_N) + kept_AS @ (left_NS**2).T
        # a run that decides its own prediction alone has leverage 1: then nothing predicts it
        left_out_AN = residual_AN / np.maximum(1 - leverage_AN, 1e-12)
        best = int((left_out_AN**2).mean(1).argmin())
        penalty = float(PENALTIES[best])
        slope_S = right_SS.T @ (along_S * singular_S / (singular_S**2 + penalty))
        return LinearLaw(mean - float(mean_S @ slope_S), slope_S, penalty)


# Those with an exact optimum, as convex functions of the mixture; first the mixing law's authors'.
LAWS = (Exponential.name, Transfer.name)

SURROGATES: dict[str, Surrogate] = {
    surrogate.name: surrogate
    for surrogate in (Boosted(), Exponential(), Transfer(), Ridge(), Linear())
}
