"""What somebody should know of a table before trusting what is learned from it.

Shapes: N runs, S sources, V targets.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

SHOWN = 50  # names in one message

# Names of measures of which more is better; a plan lowers what it is given.
_SCORES = re.compile(
    r"(^|[^a-z])(acc|acc_norm|accuracy|em|exact_match|f1|pass@\d+)$", re.IGNORECASE
)


def listed(names: Sequence[str], shown: int = SHOWN) -> str:
    """Names for a message; of very many, the first ones and how many more."""
    text = ", ".join(names[:shown])
    return f"{text} and {len(names) - shown} more" if len(names) > shown else text


def shifted_by_one(left: Sequence[str], right: Sequence[str]) -> tuple[int, int] | None:
    """Where two files number the same runs, one from 0 and the other from 1: both first numbers."""
    if len(left) != len(right) or not all(run.isdecimal() for run in (*left, *right)):
        return None
    starts = []
    for runs in (left, right):
        numbers = sorted(int(run) for run in runs)
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return None
        starts.append(numbers[0])
    return (starts[0], starts[1]) if sorted(starts) == [0, 1] else None


def table_notes(
    sources: Sequence[str],
    targets: Sequence[str],
    runs: Sequence[str],
    weight_NS: np.ndarray,
    loss_NV: np.ndarray,
) -> list[str]:
    """Missing losses, constant columns, and names that only one side has."""
    return [
        *_missing(targets, runs, loss_NV),
        *_constant(sources, targets, weight_NS, loss_NV),
        *_unmatched(sources, targets),
        *_scores(targets),
    ]


def _scores(targets: Sequence[str]) -> list[str]:
    names = [target for target in targets if _SCORES.search(target)]
    if not names:
        return []
    return [
        f"named like a score, of which more is better, while plans lower their target: "
        f"{listed(names)}; give 1 - score, or a loss"
    ]


def _missing(targets: Sequence[str], runs: Sequence[str], loss_NV: np.ndarray) -> list[str]:
    notes = []
    gap_NV = np.isnan(loss_NV)
    if gap_NV.all(1).any():
        names = [runs[n] for n in np.flatnonzero(gap_NV.all(1)).tolist()]
        notes.append(f"{len(names)} runs have no loss at all: {listed(names)}")
    for target, gap_N in zip(targets, (gap_NV & ~gap_NV.all(1)[:, None]).T, strict=True):
        if gap_N.any():
            names = [runs[n] for n in np.flatnonzero(gap_N).tolist()]
            notes.append(f"the loss of {target} is missing in {len(names)} runs: {listed(names)}")
    if (loss_NV < 0).any():
        below = np.argwhere(loss_NV < 0).tolist()
        cells = [f"{runs[n]} ({targets[v]})" for n, v in below]
        notes.append(f"losses below 0, lower still counting as better: {listed(cells)}")
    return notes


def _constant(
    sources: Sequence[str], targets: Sequence[str], weight_NS: np.ndarray, loss_NV: np.ndarray
) -> list[str]:
    notes = []
    still = np.flatnonzero(np.ptp(weight_NS, axis=0) <= 1e-12).tolist()
    if still:
        names = [f"{sources[s]} ({weight_NS[0, s]:.4g})" for s in still]
        notes.append(f"the weight never changes, so nothing can be learned of it: {listed(names)}")
    for target, loss_N in zip(targets, loss_NV.T, strict=True):
        known_N = loss_N[~np.isnan(loss_N)]
        if not known_N.size:
            notes.append(f"no run has a loss of {target}")
        elif np.ptp(known_N) == 0:
            notes.append(f"the loss of {target} is {known_N[0]:.6g} in every run")
    return notes


def _unmatched(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    common = set(sources) & set(targets)
    if not common:
        return [f"no target is named like a source; {len(targets)} targets: {listed(targets)}"]
    notes = []
    silent = [source for source in sources if source not in common]
    if silent:
        notes.append(
            f"{len(silent)} of {len(sources)} sources have no loss of their own: {listed(silent)}"
        )
    foreign = [target for target in targets if target not in common]
    if foreign:
        notes.append(f"{len(foreign)} targets are no source: {listed(foreign)}")
    return notes


def grouped(notes_of: Mapping[str, Sequence[str]], what: str) -> list[str]:
    """What is noted of several targets, told once with their names."""
    names: dict[str, list[str]] = {}
    for name, notes in notes_of.items():
        for note in notes:
            names.setdefault(note, []).append(name)
    return [f"{what} of {listed(own)}: {note}" for note, own in names.items()]
