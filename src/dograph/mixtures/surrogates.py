"""Surrogates: functions from mixtures to one loss, fitted on runs, and which ranks new runs best.

Shapes: N runs, S sources, A penalties, V targets, R repeats, K folds.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from dograph.errors import ConfigError, DographError, require, require_known
from dograph.mixtures.mixing_laws import fit_exponential
from dograph.progress import Progress, counted
from dograph.rng import stream

ROUNDS, LEARNING_RATE = 1000, 0.01  # of the trees
PENALTIES = np.logspace(-8, 4, 49)  # of Ridge


class Fitted(Protocol):
    """A surrogate after its fit."""

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Losses of mixtures, (N,), in the unit of the fitted losses."""


class Trees(NamedTuple):
    """A fitted ensemble."""

    booster: Any  # lightgbm.Booster

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        # one thread, because callers spread their work over threads
        return np.asarray(self.booster.predict(weight_NS, num_threads=1), dtype=np.float64)


def fit_trees(weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> Trees:
    """Gradient boosting of the squared error: 1000 rounds at a learning rate of 0.01.

    The authors' recipe (RegMix, regression notebook) without their early stopping on test rows,
    which would leak into the scores here. LightGBM wants at least 20 runs in a leaf: with fewer
    than 40 there is no split and the prediction is a constant.
    """
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
    return Trees(lightgbm.train(settings, lightgbm.Dataset(weight_NS, loss_N), ROUNDS))


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """loss = intercept + weights . slope."""

    intercept: float
    slope_S: np.ndarray
    penalty: float = 0.0

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        return np.asarray(self.intercept + weight_NS @ self.slope_S)


def fit_linear(weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> LinearLaw:
    """Least squares; of several solutions (weights sum to 1) the one with the smallest slope."""
    mean_S, mean = weight_NS.mean(0), float(loss_N.mean())
    slope_S = np.linalg.lstsq(weight_NS - mean_S, loss_N - mean, rcond=None)[0]
    return LinearLaw(mean - float(mean_S @ slope_S), slope_S)


def fit_ridge(weight_NS: np.ndarray, loss_N: np.ndarray, *, seed: int = 0) -> LinearLaw:
    """Least squares with a squared penalty on the slopes, none on the intercept.

    The penalty is the one of 49 (1e-8 to 1e4) with the smallest leave-one-out mean squared error,
    which needs no refitting: with the singular values s and left vectors u of the centred weights,
    run n's leverage is h_n = 1/N + sum_j u_nj^2 s_j^2 / (s_j^2 + a) and its leave-one-out error is
    its residual over 1 - h_n.
    """
    mean_S, mean = weight_NS.mean(0), float(loss_N.mean())
    left_NS, singular_S, right_SS = np.linalg.svd(weight_NS - mean_S, full_matrices=False)
    kept_AS = singular_S**2 / (singular_S**2 + PENALTIES[:, None])
    along_S = left_NS.T @ (loss_N - mean)
    residual_AN = (loss_N - mean) - (kept_AS * along_S) @ left_NS.T
    leverage_AN = 1 / len(loss_N) + kept_AS @ (left_NS**2).T
    # leverage 1: the run alone decides its own prediction, so nothing else predicts it
    left_out_AN = residual_AN / np.maximum(1 - leverage_AN, 1e-12)
    penalty = float(PENALTIES[(left_out_AN**2).mean(1).argmin()])
    slope_S = right_SS.T @ (along_S * singular_S / (singular_S**2 + penalty))
    return LinearLaw(mean - float(mean_S @ slope_S), slope_S, penalty)


# Fits a family of functions to runs: (weight_NS, loss_N, *, seed) -> the member that fits best.
Surrogate = Callable[..., Fitted]

SURROGATES: dict[str, Surrogate] = {
    "lightgbm": fit_trees,
    "exponential": fit_exponential,
    "ridge": fit_ridge,
    "linear": fit_linear,
}


def require_surrogate(name: str | None) -> None:
    """Refuse an unknown name; None: it is still to be chosen."""
    if name is not None:
        require_known(name, SURROGATES, f'no surrogate "{name}"')


CHUNK = 20_000  # mixtures predicted at once
FOLDS = 5
FEWEST_FOR_FOLDS = 10  # with fewer runs, leave-one-out
FEW = 100  # with fewer runs the folds are drawn several times, to reduce their variance
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Scores:
    """Agreement of predictions with N losses; None where undefined."""

    runs: int
    spearman: float | None
    pearson: float | None
    mean_error: float | None  # mean absolute error, in the losses' unit
    bias: float | None  # mean of predicted minus measured
    note: str | None = None  # why something is undefined


def is_constant(value_N: np.ndarray) -> bool:
    """Whether all values are the same, up to rounding."""
    if not np.isfinite(value_N).all():
        return bool((value_N == value_N[0]).all())
    scale = max(1.0, float(np.abs(value_N).max(initial=0)))
    return value_N.size == 0 or float(np.ptp(value_N)) <= 1e-12 * scale


def score(predicted_N: np.ndarray, loss_N: np.ndarray) -> Scores:
    """Scores over the runs whose loss is known. Ties share their mean rank."""
    from scipy.stats import rankdata

    known_N = ~np.isnan(loss_N)
    predicted_N, loss_N = predicted_N[known_N], loss_N[known_N]
    if not loss_N.size:
        return Scores(0, None, None, None, None, "no loss is known")
    note, spearman, pearson = None, None, None
    if loss_N.size < 2:
        note = "one run has no order"
    elif is_constant(loss_N):
        note = "constant losses"
    elif is_constant(predicted_N):
        note = "constant"
    elif not np.isnan(predicted_N).any():
        spearman = float(np.corrcoef(rankdata(predicted_N), rankdata(loss_N))[0, 1])
        if np.isfinite(predicted_N).all():
            pearson = float(np.corrcoef(predicted_N, loss_N)[0, 1])
    if infinite := int(np.isinf(predicted_N).sum()):
        note = f"an infinite loss is predicted of {infinite} of {loss_N.size} runs"
        return Scores(loss_N.size, spearman, pearson, None, None, note)
    error_N = predicted_N - loss_N
    error, bias = float(np.abs(error_N).mean()), float(error_N.mean())
    return Scores(loss_N.size, spearman, pearson, error, bias, note)


@dataclass(frozen=True, slots=True)
class PlanObjective:
    """The sum of share_v L_v(mixture), each L_v predicted by a surrogate of its own."""

    fitted_V: list[Fitted]
    share_V: np.ndarray

    def predict(self, weight_NS: np.ndarray) -> np.ndarray:
        """Predicted losses of the objective, (N,)."""
        chunks = [weight_NS[start : start + CHUNK] for start in range(0, len(weight_NS), CHUNK)]
        work = list(product(self.fitted_V, chunks))
        with counted("{done}/{total} predictions", len(work)) as display:
            parts = _in_threads(lambda pair: pair[0].predict(pair[1]), work, display)
        each_NV = np.concatenate(parts).reshape(len(self.fitted_V), len(weight_NS)).T
        return np.asarray(each_NV @ self.share_V)


def fit_objective(
    surrogate: Surrogate, weight_NS: np.ndarray, loss_NV: np.ndarray, share_V: np.ndarray, seed: int
) -> PlanObjective:
    """One surrogate for each target."""
    fit = partial(surrogate, weight_NS, seed=seed)
    with counted("{done}/{total} fits", len(share_V)) as display:
        return PlanObjective(_in_threads(fit, loss_NV.T, display), share_V)


def _in_threads(
    work: Callable[[Any], Any],
    items: Iterable[Any],
    display: Progress,
    before: int = 0,
    note: str = "",
) -> list[Any]:
    """The results in the order of the items; `before`: work that `display` counts as done."""
    results = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(work, items):
            results.append(result)
            display.update(before + len(results), note)
    return results


@dataclass(frozen=True, slots=True)
class Choice:
    """The surrogate to use, and the objective's cross-validated scores by all candidates."""

    name: str
    why: str
    folds: int
    repeats: int
    validated: dict[str, Scores]
    notes: list[str] = field(default_factory=list)


def draw_folds(num_runs: int, seed: int) -> np.ndarray:
    """The fold of each run, (R, N): five of nearly equal size, or one for each of few runs."""
    if num_runs < FEWEST_FOR_FOLDS:
        return np.arange(num_runs)[None]
    fold_N = np.arange(num_runs) % FOLDS
    repeats = range(1 if num_runs >= FEW else REPEATS)
    return np.array([stream(seed, "plans", "folds", r).permutation(fold_N) for r in repeats])


def choose_surrogate(
    weight_NS: np.ndarray,
    loss_NV: np.ndarray,
    share_V: np.ndarray,
    *,
    surrogates: Mapping[str, Surrogate] = SURROGATES,
    seed: int = 42,
) -> Choice:
    """The surrogate with the highest rank correlation on left-out runs.

    Each run is predicted by fits without its fold; predictions of all folds are pooled, those of
    targets added up by their shares, and compared with the measured losses (Spearman, the mean over
    repeats). Ties: the lower mean error, then the name. A surrogate that predicts a constant in
    every fold scores 0, whatever the order of its folds' means. All use the same folds.
    """
    fold_RN = draw_folds(len(weight_NS), seed)
    folds, repeats = int(fold_RN.max()) + 1, len(fold_RN)
    each = repeats * folds * len(share_V)
    validated: dict[str, Scores] = {}
    notes: list[str] = []
    with counted("{done}/{total} fits", len(surrogates) * each) as display:
        for rank, (name, surrogate) in enumerate(surrogates.items()):
            run = partial(_in_threads, display=display, before=rank * each, note=name)
            try:
                how = share_V, fold_RN, seed, run
                validated[name] = _validate(surrogate, weight_NS, loss_NV, *how)
            except DographError as error:
                if len(surrogates) == 1:
                    raise
                notes.append(f"surrogate {name} was left out: {error}")
    if not validated:
        raise ConfigError("no surrogate can be fitted on these runs: " + "; ".join(notes))
    noted = {name: own.note for name, own in validated.items() if own.note}
    notes += [f"surrogate {name}, cross-validated: {note}" for name, note in noted.items()]

    def order(name: str) -> tuple[float, float, str]:
        # rounded, so that machines whose sums differ in the last bits agree on ties
        own = validated[name]
        error = np.inf if own.mean_error is None else round(own.mean_error, 9)
        return -round(own.spearman or 0.0, 9), error, name

    ordered = sorted(validated, key=order)
    why = f"{ordered[0]} was the only one that was asked for and could be fitted"
    if len(ordered) > 1:
        ranked = ", ".join(f"{name} {validated[name].spearman or 0:.4f}" for name in ordered)
        times = f", drawn {repeats} times" if repeats > 1 else ""
        why = f"highest rank correlation on left-out runs ({folds} folds{times}): {ranked}"
    return Choice(ordered[0], why, folds, repeats, validated, notes)


def _validate(
    surrogate: Surrogate,
    weight_NS: np.ndarray,
    loss_NV: np.ndarray,
    share_V: np.ndarray,
    fold_RN: np.ndarray,
    seed: int,
    run: Callable[..., object],
) -> Scores:
    """Cross-validated scores of one surrogate; `run` calls a function with each of many items."""
    repeats, folds = len(fold_RN), int(fold_RN.max()) + 1
    guess_RNV = np.full((repeats, *loss_NV.shape), np.nan)
    flat_RKV = np.zeros((repeats, folds, loss_NV.shape[1]), dtype=bool)

    def fit(item: tuple[int, int, int]) -> None:
        repeat, fold, target = item
        out_N = fold_RN[repeat] == fold
        fitted = surrogate(weight_NS[~out_N], loss_NV[~out_N, target], seed=seed)
        guess_N = fitted.predict(weight_NS)
        guess_RNV[repeat, out_N, target] = guess_N[out_N]
        flat_RKV[repeat, fold, target] = is_constant(guess_N)

    run(fit, product(range(repeats), range(folds), range(loss_NV.shape[1])))
    each = [score(guess_N, loss_NV @ share_V) for guess_N in guess_RNV @ share_V]

    def mean(name: str, fewest: int = 1) -> float | None:
        known = [value for value in (getattr(one, name) for one in each) if value is not None]
        return float(np.mean(known)) if len(known) >= fewest else None

    spearman, pearson, flat_RK = mean("spearman"), mean("pearson"), flat_RKV.all(2)
    # an unknown error is infinite, so it must be known in every repeat
    error, bias = mean("mean_error", repeats), mean("bias", repeats)
    note = next((scores.note for scores in each if scores.note), None)
    if flat_RK.all():
        spearman, pearson, note = 0.0, None, "constant"
    elif flat_RK.any():
        note = f"constant in {int(flat_RK.sum())} of {flat_RK.size} folds"
    return Scores(len(loss_NV), spearman, pearson, error, bias, note)
