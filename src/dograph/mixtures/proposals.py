"""The mixture whose predicted loss is low: RegMix's simulation, kept within usage caps.

Shapes: N draws, S sources.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dograph.mixtures.capping import capped
from dograph.mixtures.scores import is_constant
from dograph.rng import stream

DRAWS = 100_000
TOP = 128
SENSITIVITY = (1, 16, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of the `top` draws with the lowest predicted loss."""

    top: int
    weight_S: np.ndarray
    loss: float  # predicted
    distance: float  # L1, to the mixture that was chosen


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came of it; `chosen` is also among `averages` where its top is one of theirs."""

    chosen: Average
    averages: list[Average]
    cut: float  # share of the draws that passed a cap and were cut to it
    constant: bool  # the surrogate told no two draws apart; the prior was chosen


def simulate(
    predict: Callable[[np.ndarray], np.ndarray],
    prior_S: np.ndarray,
    cap_S: np.ndarray,
    *,
    seed: int = 42,
    draws: int = DRAWS,
    top: int = TOP,
) -> Simulation:
    """Average the `top` of `draws` mixtures from Dirichlet(prior) by predicted loss.

    That is RegMix's optimum (regression notebook: 100,000 draws with the plain prior, concentration
    1, the 128 lowest), with two additions: draws that pass a cap are cut to it, as theirs ignores
    the usage cap; and the averages for other numbers than `top` say how much hangs on that number.
    At concentration 1 most draws lie near a corner, and the more are averaged the nearer the mean
    comes to the prior; one draw alone is the other extreme. Equal losses: the earlier draw first.
    """
    present_S = prior_S > 0
    raw_NS = np.zeros((draws, len(prior_S)))
    raw_NS[:, present_S] = stream(seed, "plans", "simulate").dirichlet(
        prior_S[present_S], size=draws
    )
    weight_NS = capped(raw_NS, cap_S, prior_S)
    cut = float((raw_NS > cap_S).any(1).mean())
    loss_N = predict(weight_NS)
    if is_constant(loss_N):
        prior_S = capped(prior_S[None], cap_S, prior_S)[0]
        return Simulation(Average(draws, prior_S, float(loss_N[0]), 0.0), [], cut, True)
    order_N = np.argsort(loss_N, kind="stable")
    tops = sorted({k for k in (*SENSITIVITY, top) if k <= draws})
    mean_KS = np.array([weight_NS[order_N[:k]].mean(0) for k in tops])
    mean_KS = np.minimum(mean_KS / mean_KS.sum(1, keepdims=True), cap_S)
    loss_K = predict(mean_KS)
    chosen_S = mean_KS[tops.index(min(top, draws))]
    averages = [
        Average(k, mean_S, float(loss), float(np.abs(mean_S - chosen_S).sum()))
        for k, mean_S, loss in zip(tops, mean_KS, loss_K, strict=True)
    ]
    chosen = averages[tops.index(min(top, draws))]
    return Simulation(chosen, averages, cut, False)
