"""Which surrogate: the one that best ranks runs it has not seen.

Shapes: N runs, S sources, V targets, R repeats.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from dograph.errors import ConfigError, DographError
from dograph.mixtures.objective import Progress, num_workers
from dograph.mixtures.scores import Scores, is_constant, score
from dograph.mixtures.surrogate import Surrogate
from dograph.mixtures.surrogates_registry import SURROGATES
from dograph.rng import stream

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
