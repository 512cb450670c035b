"""Losses as linear functions of the weights: least squares, and with a penalty on the slopes.

Shapes: N runs, S sources, A penalties tried.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

PENALTIES = np.logspace(-8, 4, 49)


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
