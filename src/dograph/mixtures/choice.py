"""Which surrogate: the one that best ranks runs it has not seen.

Shapes: N runs, S sources, V targets, R repeats, K folds.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from dograph.errors import ConfigError, DographError
from dograph.mixtures.surrogates import SURROGATES, Fitted, Surrogate
from dograph.mixtures.tables import MixtureTable, listed
from dograph.rng import stream

CHUNK = 20_000  # mixtures predicted at once
FOLDS = 5
FEWEST_FOR_FOLDS = 10  # with fewer runs each is left out alone
FEW = 100  # with fewer runs the folds are drawn several times: one drawing says little
REPEATS = 3

# (pieces of work done, of how many, what they are)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Scores:
    """Agreement of predictions with N losses; what is undefined is None."""

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


def correlation(left_N: np.ndarray, right_N: np.ndarray) -> float | None:
    """Pearson's correlation; None where one side is constant or has infinite values."""
    if left_N.size < 2 or is_constant(left_N) or is_constant(right_N):
        return None
    if not (np.isfinite(left_N).all() and np.isfinite(right_N).all()):
        return None
    left_N, right_N = left_N - left_N.mean(), right_N - right_N.mean()
    scale = float(np.linalg.norm(left_N) * np.linalg.norm(right_N))
    return float(np.clip(left_N @ right_N / scale, -1, 1))


def score(predicted_N: np.ndarray, loss_N: np.ndarray) -> Scores:
    """Spearman, Pearson, mean absolute error and bias over the runs whose loss is known.

    Spearman's is Pearson's on the ranks, of which equal values share the mean; infinite losses
    have a rank.
    """
    from scipy.stats import rankdata

    known_N = ~np.isnan(loss_N)
    predicted_N, loss_N = predicted_N[known_N], loss_N[known_N]
    if not loss_N.size:
        return Scores(0, None, None, None, None, "no loss is known")
    note, spearman = None, None
    if loss_N.size < 2:
        note = "one run has no order"
    elif is_constant(loss_N):
        note = "constant losses"
    elif is_constant(predicted_N):
        note = "constant"
    else:
        spearman = correlation(rankdata(predicted_N), rankdata(loss_N))
    infinite = int(np.isinf(predicted_N).sum())
    if infinite:
        note = f"an infinite loss is predicted of {infinite} of {loss_N.size} runs"
    return Scores(
        int(loss_N.size),
        spearman,
        correlation(predicted_N, loss_N),
        None if infinite else float(np.abs(predicted_N - loss_N).mean()),
        None if infinite else float((predicted_N - loss_N).mean()),
        note,
    )


@dataclass(frozen=True, slots=True)
class PlanObjective:
    """The sum of share_v L_v(mixture), each L_v predicted by a surrogate of its own."""

    fitted_V: list[Fitted]
    share_V: np.ndarray

    def each(self, weight_NS: np.ndarray) -> np.ndarray:
        """Predicted losses of all targets, (N, V)."""
        starts = range(0, len(weight_NS), CHUNK)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
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
) -> PlanObjective:
    """One surrogate for each target, fitted on the runs that have its loss."""

    def fit(loss_N: np.ndarray) -> Fitted:
        known_N = ~np.isnan(loss_N)
        return surrogate.fit(weight_NS[known_N], loss_N[known_N], seed=seed)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return PlanObjective(list(pool.map(fit, loss_NV.T)), np.asarray(share_V, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Validated:
    """How a surrogate did on runs that were left out of its fit."""

    objective: Scores
    targets: dict[str, Scores]

    def as_json(self) -> dict[str, Any]:
        each = {name: asdict(scores) for name, scores in self.targets.items()}
        return {**asdict(self.objective), "targets": each}


@dataclass(frozen=True, slots=True)
class Choice:
    """The surrogate to use, and how all that were asked about did."""

    name: str
    why: str
    folds: int
    repeats: int
    validated: dict[str, Validated]
    notes: list[str] = field(default_factory=list)


def draw_folds(num_runs: int, seed: int) -> np.ndarray:
    """The fold of each run, (R, N): five of nearly one size, or as many as runs where few."""
    if num_runs < FEWEST_FOR_FOLDS:
        return np.arange(num_runs)[None]
    repeats = 1 if num_runs >= FEW else REPEATS
    return np.array(
        [
            stream(seed, "plans", "folds", repeat).permutation(np.arange(num_runs) % FOLDS)
            for repeat in range(repeats)
        ]
    )


def choose_surrogate(
    weight_NS: np.ndarray,
    loss_NV: np.ndarray,
    shares: dict[str, float],
    *,
    names: Sequence[str] = tuple(SURROGATES),
    seed: int = 42,
    progress: Progress | None = None,
) -> Choice:
    """The surrogate with the highest rank correlation on left-out runs, over all losses known.

    Each run is predicted by fits without its fold; predictions of all folds are pooled, those of
    targets added up by their shares, and compared with what was measured (Spearman, the mean over
    repeats). Equal: the lower mean error, then the name. One that tells no mixtures apart in any
    fold counts as 0, whatever the order of its folds' means. Folds are the same for all.
    """
    fold_RN = draw_folds(len(weight_NS), seed)
    folds, repeats = int(fold_RN.max()) + 1, len(fold_RN)
    total = len(names) * fold_RN.shape[0] * folds * len(shares)
    validated: dict[str, Validated] = {}
    notes: list[str] = []
    for rank, name in enumerate(names):
        before = rank * total // len(names)

        def tell(done: int, name: str = name, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total, name)

        try:
            validated[name] = _validate(
                SURROGATES[name], weight_NS, loss_NV, shares, fold_RN, seed, tell
            )
        except DographError as error:
            if len(names) == 1:
                raise
            notes.append(f"surrogate {name} was left out: {error}")
    if not validated:
        raise ConfigError("no surrogate can be fitted on these runs: " + "; ".join(notes))
    for name, result in validated.items():
        if result.objective.note:
            notes.append(f"surrogate {name}, cross-validated: {result.objective.note}")
    ordered = sorted(validated, key=lambda name: _order(name, validated[name].objective))
    why = f"{ordered[0]} was the only one that was asked for and could be fitted"
    if len(ordered) > 1:
        each = [f"{name} {validated[name].objective.spearman or 0:.4f}" for name in ordered]
        times = f", drawn {repeats} times" if repeats > 1 else ""
        why = f"highest rank correlation on left-out runs ({folds} folds{times}): {', '.join(each)}"
    return Choice(ordered[0], why, folds, repeats, validated, notes)


def _order(name: str, scores: Scores) -> tuple[float, float, str]:
    # rounded, so that machines whose sums differ in the last bits agree on what is equal
    error = np.inf if scores.mean_error is None else round(scores.mean_error, 9)
    return (-round(scores.spearman or 0.0, 9), error, name)


def _validate(
    surrogate: Surrogate,
    weight_NS: np.ndarray,
    loss_NV: np.ndarray,
    shares: dict[str, float],
    fold_RN: np.ndarray,
    seed: int,
    tell: Callable[[int], None],
) -> Validated:
    repeats, folds = len(fold_RN), int(fold_RN.max()) + 1
    guess_RNV = np.full((repeats, *loss_NV.shape), np.nan)
    flat_RKV = np.zeros((repeats, folds, loss_NV.shape[1]), dtype=bool)

    def fit(repeat: int, fold: int, target: int) -> None:
        out_N = fold_RN[repeat] == fold
        fitted = surrogate.fit(weight_NS[~out_N], loss_NV[~out_N, target], seed=seed)
        guess_N = fitted.predict(weight_NS)
        guess_RNV[repeat, out_N, target] = guess_N[out_N]
        flat_RKV[repeat, fold, target] = is_constant(guess_N)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = product(range(repeats), range(folds), range(loss_NV.shape[1]))
        pending = [pool.submit(fit, *item) for item in work]
        try:
            for done, future in enumerate(as_completed(pending), start=1):
                future.result()
                tell(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    share_V = np.array(list(shares.values()))
    objective = _mean_scores(guess_RNV @ share_V, loss_NV @ share_V, np.asarray(flat_RKV.all(2)))
    targets = {
        name: _mean_scores(guess_RNV[:, :, v], loss_NV[:, v], flat_RKV[:, :, v])
        for v, name in enumerate(shares)
    }
    return Validated(objective, targets)


def _mean_scores(guess_RN: np.ndarray, loss_N: np.ndarray, flat_RK: np.ndarray) -> Scores:
    """Scores of each repeat, averaged; folds in which predictions were constant are said.

    Errors must be known in every repeat, as unknown ones are infinite.
    """
    each = [score(guess_N, loss_N) for guess_N in guess_RN]

    def mean(name: str, fewest: int) -> float | None:
        known = [value for value in (getattr(one, name) for one in each) if value is not None]
        return float(np.mean(known)) if len(known) >= fewest else None

    spearman, pearson = mean("spearman", 1), mean("pearson", 1)
    note = next((scores.note for scores in each if scores.note), None)
    if flat_RK.all():
        spearman, pearson, note = 0.0, None, "constant"
    elif flat_RK.any():
        note = f"constant in {int(flat_RK.sum())} of {flat_RK.size} folds"
    error, bias = mean("mean_error", len(each)), mean("bias", len(each))
    return Scores(len(loss_N), spearman, pearson, error, bias, note)


def score_table(
    objective: PlanObjective, shares: dict[str, float], table: MixtureTable, test: MixtureTable
) -> dict[str, Any]:
    """How predictions do on runs, often of larger models, that no fit has seen.

    Spearman, Pearson, mean error and bias on `test`, for the objective and for each target.
    Columns are matched by name. A source that the test lacks was not drawn from there; one that
    only the test has cannot be predicted for. Targets that the test lacks are named.
    """
    notes = list(test.notes)
    drawn = dict(zip(test.sources, test.weight_NS.T, strict=True))
    foreign = [name for name in test.sources if name not in table.sources and drawn[name].any()]
    if foreign:
        raise ConfigError(
            f"the test table draws from {listed(foreign)}, which the table fitted on does not "
            f"have; it has {listed(table.sources)}"
        )
    absent = [source for source in table.sources if source not in drawn]
    if absent:
        notes.append(f"the test table does not name {listed(absent)}: taken as 0 there")
    zero_N = np.zeros(len(test.runs))
    weight_NS = np.stack([drawn.get(source, zero_N) for source in table.sources], axis=1)
    guess_NV = objective.each(weight_NS)
    fitted_on = set(_rows(table))
    if same := sum(row in fitted_on for row in _rows(test)):
        notes.append(
            f"{same} of the {len(test.runs)} runs of the test table are in the fitted table too: "
            "on these the fit is judged by what it has seen"
        )
    losses = dict(zip(test.targets, test.loss_NV.T, strict=True))
    absent = [name for name in shares if name not in losses]
    if len(absent) == len(shares):
        raise ConfigError(
            f"the test table has no loss of {listed(list(shares))}; it has {listed(test.targets)}"
        )
    if absent:
        notes.append(f"the test table has no loss of {listed(absent)}: judged without the whole")
    each = {
        name: asdict(score(guess_N, losses[name]))
        for name, guess_N in zip(shares, guess_NV.T, strict=True)
        if name in losses
    }
    whole = None
    if not absent:
        loss_NV = np.stack([losses[name] for name in shares], axis=1)
        whole = asdict(score(guess_NV @ objective.share_V, loss_NV @ objective.share_V))
    for name, scores in ({"the objective": whole} if whole else each).items():
        if scores["note"]:
            missing = "no correlation, " if scores["spearman"] is None else ""
            notes.append(f"test table, {name}: {missing}{scores['note']}")
    return {"runs": len(test.runs), "objective": whole, "targets": each, "notes": notes}


def _rows(table: MixtureTable) -> list[tuple[frozenset[tuple[str, float]], ...]]:
    """Each run's mixture and losses by name, rounded, so that runs of two tables can be equal."""
    parts = [
        [
            frozenset(zip(names, (round(v, 9) for v in row), strict=True))
            for row in value_NK.tolist()
        ]
        for names, value_NK in ((table.sources, table.weight_NS), (table.targets, table.loss_NV))
    ]
    return list(zip(*parts, strict=True))
