"""Which surrogate: the one that best ranks runs it has not seen.

Shapes: N runs, S sources, V targets, R repeats.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from dograph.errors import ConfigError, DographError
from dograph.mixtures.checks import grouped, listed
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.exponential import ExponentialLaw
from dograph.mixtures.surrogates import SURROGATES, Fitted, Surrogate
from dograph.mixtures.tables import MixtureTable
from dograph.mixtures.transfer import TransferLaw
from dograph.rng import stream

# How well predicted losses agree with measured ones.


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


# Surrogates of several targets as one: the predicted loss of what a plan is to lower.


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


FOLDS = 5
FEWEST_FOR_FOLDS = 10  # with fewer runs each is left out alone
FEW = 100  # with fewer runs the folds are drawn several times: one drawing says little
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Validated:
    """How a surrogate did on runs that were left out of its fit."""

    objective: Scores
    targets: dict[str, Scores]

    def as_json(self) -> dict[str, Any]:
        each = {name: scores.as_json() for name, scores in self.targets.items()}
        return {**self.objective.as_json(), "targets": each}


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
    best = min(validated, key=lambda name: _order(name, validated[name].objective))
    return Choice(best, _why(best, validated, folds, repeats), folds, repeats, validated, notes)


def _order(name: str, scores: Scores) -> tuple[float, float, str]:
    # rounded, so that machines whose sums differ in the last bits agree on what is equal
    error = np.inf if scores.mean_error is None else round(scores.mean_error, 9)
    return (-round(scores.spearman or 0.0, 9), error, name)


def _why(best: str, validated: dict[str, Validated], folds: int, repeats: int) -> str:
    if len(validated) == 1:
        return f"{best} was the only one that was asked for and could be fitted"
    ordered = sorted(validated, key=lambda name: _order(name, validated[name].objective))
    said = ", ".join(f"{name} {validated[name].objective.spearman or 0:.4f}" for name in ordered)
    times = f", drawn {repeats} times" if repeats > 1 else ""
    return f"highest rank correlation on left-out runs ({folds} folds{times}): {said}"


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

    with ThreadPoolExecutor(num_workers()) as pool:
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
    """Scores of each repeat, averaged; folds in which predictions were constant are said."""
    each = [score(guess_N, loss_N) for guess_N in guess_RN]
    spearman = _mean([scores.spearman for scores in each])
    pearson = _mean([scores.pearson for scores in each])
    note = next((scores.note for scores in each if scores.note), None)
    if flat_RK.all():
        spearman, pearson, note = 0.0, None, "constant"
    elif flat_RK.any():
        note = f"constant in {int(flat_RK.sum())} of {flat_RK.size} folds"
    return Scores(
        len(loss_N),
        spearman,
        pearson,
        _mean([scores.mean_error for scores in each], all_known=True),
        _mean([scores.bias for scores in each], all_known=True),
        note,
    )


def _mean(values: list[float | None], *, all_known: bool = False) -> float | None:
    """Over what is known; errors must be known in every repeat, as unknown ones are infinite."""
    known = [value for value in values if value is not None]
    if not known or (all_known and len(known) < len(values)):
        return None
    return float(np.mean(known))


# Predictions judged on another table: runs, often of larger models, that no fit has seen.


def score_table(
    objective: Objective, shares: dict[str, float], table: MixtureTable, test: MixtureTable
) -> dict[str, Any]:
    """Spearman, Pearson, mean error and bias on `test`, for the objective and for each target.

    Columns are matched by name. A source that the test lacks was not drawn from there; one that
    only the test has cannot be predicted for. Targets that the test lacks are named.
    """
    notes = list(test.notes)
    guess_NV = objective.each(_aligned(table, test, notes))
    if same := _shared_runs(table, test):
        notes.append(
            f"{same} of the {len(test.runs)} runs of the test table are in the fitted table too: "
            "on these the fit is judged by what it has seen"
        )
    there = [name for name in shares if name in test.targets]
    if not there:
        raise ConfigError(
            f"the test table has no loss of {listed(list(shares))}; it has {listed(test.targets)}"
        )
    absent = [name for name in shares if name not in there]
    if absent:
        notes.append(f"the test table has no loss of {listed(absent)}: judged without the whole")
    loss_NV = np.full((len(test.runs), len(shares)), np.nan)
    for column, name in enumerate(shares):
        if name in there:
            loss_NV[:, column] = test.loss_NV[:, test.targets.index(name)]
    each = {
        name: score(guess_N, loss_N).as_json()
        for name, guess_N, loss_N in zip(shares, guess_NV.T, loss_NV.T, strict=True)
        if name in there
    }
    whole = (
        None
        if absent
        else score(guess_NV @ objective.share_V, loss_NV @ objective.share_V).as_json()
    )
    for name, scores in ({"the objective": whole} if whole else each).items():
        if scores["note"]:
            missing = "no correlation, " if scores["spearman"] is None else ""
            notes.append(f"test table, {name}: {missing}{scores['note']}")
    return {"runs": len(test.runs), "objective": whole, "targets": each, "notes": notes}


def _aligned(table: MixtureTable, test: MixtureTable, notes: list[str]) -> np.ndarray:
    """The test's weights in the order of the table's sources."""
    foreign = [
        source
        for column, source in enumerate(test.sources)
        if source not in table.sources and test.weight_NS[:, column].any()
    ]
    if foreign:
        raise ConfigError(
            f"the test table draws from {listed(foreign)}, which the table fitted on does not "
            f"have; it has {listed(table.sources)}"
        )
    absent = [source for source in table.sources if source not in test.sources]
    if absent:
        notes.append(f"the test table does not name {listed(absent)}: taken as 0 there")
    weight_NS = np.zeros((len(test.runs), len(table.sources)))
    for column, source in enumerate(table.sources):
        if source in test.sources:
            weight_NS[:, column] = test.weight_NS[:, test.sources.index(source)]
    return weight_NS


def _shared_runs(table: MixtureTable, test: MixtureTable) -> int:
    """How many runs of `test` have both mixture and losses of a run of `table`."""

    def rows(of: MixtureTable) -> list[tuple[frozenset[tuple[str, float]], ...]]:
        both = ((of.sources, of.weight_NS.tolist()), (of.targets, of.loss_NV.tolist()))
        parts = [
            [frozenset(zip(names, (round(v, 9) for v in row), strict=True)) for row in values]
            for names, values in both
        ]
        return list(zip(*parts, strict=True))

    known = set(rows(table))
    return sum(row in known for row in rows(test))


# The mixture at which fitted laws are lowest: exact, and what is told of the laws.


BySource = Callable[[np.ndarray], dict[str, float]]


def lowest(
    fitted_V: Sequence[Fitted],
    shares: Mapping[str, float],
    cap_S: np.ndarray,
    by_source: BySource,
    notes: list[str],
) -> tuple[np.ndarray, dict[str, Any]]:
    """The optimum of the laws' sum by shares within the caps, and findings; notes are added to."""
    laws = [law for law in fitted_V if isinstance(law, ExponentialLaw | TransferLaw)]
    assert len(laws) == len(fitted_V)
    optimum = find_optimum(laws, np.array(list(shares.values())), cap_S)
    if not optimum.unique:
        notes.append(
            "several mixtures have the lowest predicted loss; the proposal is one in their middle"
        )
    notes.extend(grouped({n: law.notes for n, law in zip(shares, laws, strict=True)}, "law"))
    said = {name: _told(law, by_source) for name, law in zip(shares, laws, strict=True)}
    findings = {"gap": optimum.gap, "unique": optimum.unique, "laws": said}
    return np.minimum(optimum.weight_S, cap_S), findings


def _told(law: ExponentialLaw | TransferLaw, by_source: BySource) -> dict[str, Any]:
    """A law's parameters, free of gauge and unit."""
    if isinstance(law, ExponentialLaw):
        own: dict[str, Any] = {"log_k_plus_t": by_source(law.at_sources)}
    else:
        own = {"log_k": law.log_k, "alpha": law.alpha, "worth": by_source(law.worth_S)}
    return {"c": law.c, **own, "converged": law.converged}
