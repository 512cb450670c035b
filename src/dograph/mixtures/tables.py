"""MixtureTable: runs that were made, what each drew from, and the losses each came to.

Shapes: N runs, S sources, V targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dograph.errors import ConfigError, CorpusError
from dograph.mixtures.checks import listed, shifted_by_one, table_notes
from dograph.mixtures.recognise import read_grid
from dograph.mixtures.sheet import Grid

ROUNDING = 1e-2  # how far a row of a file may be from a sum of 1


@dataclass(frozen=True)
class MixtureTable:
    """Mixtures and losses of N runs; a loss that is missing is NaN. Rows of weights sum to 1."""

    sources: list[str]
    targets: list[str]
    runs: list[str]
    weight_NS: np.ndarray
    loss_NV: np.ndarray
    notes: list[str] = field(default_factory=list)  # what a reader of the table should know
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names that users may give

    def __post_init__(self) -> None:
        for what, names in (("source", self.sources), ("target", self.targets), ("run", self.runs)):
            if not names:
                raise ConfigError(f"the table has no {what}")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"the table has a {what} twice: {listed(twice)}")
        if self.weight_NS.shape != (len(self.runs), len(self.sources)):
            raise ConfigError(
                f"{len(self.runs)} runs and {len(self.sources)} sources need weights of that "
                f"shape, got {self.weight_NS.shape}"
            )
        if self.loss_NV.shape != (len(self.runs), len(self.targets)):
            raise ConfigError(
                f"{len(self.runs)} runs and {len(self.targets)} targets need losses of that "
                f"shape, got {self.loss_NV.shape}"
            )
        bad_N = ~np.isfinite(self.weight_NS).all(1) | (self.weight_NS < 0).any(1)
        bad_N |= ~(np.abs(self.weight_NS.sum(1) - 1) <= 1e-6)
        if bad_N.any():
            names = [self.runs[n] for n in np.flatnonzero(bad_N)]
            raise ConfigError(
                f"weights must be finite, >= 0 and sum to 1 in every run; not so: {listed(names)}"
            )
        if np.isinf(self.loss_NV).any():
            names = [self.runs[n] for n in np.flatnonzero(np.isinf(self.loss_NV).any(1))]
            raise ConfigError(
                f"losses must be finite, or NaN where they are missing; not so: {listed(names)}"
            )


def read_table(mixtures: Path, losses: Path) -> MixtureTable:
    """The table of two files: RegMix's pair, Olmix's pair or the long form, told by their headers.

    Runs are joined by name. Whatever is left out or mended is said in `notes`.
    """
    weights, measured = read_grid(Path(mixtures), "mixtures"), read_grid(Path(losses), "losses")
    notes = [*weights.notes, *measured.notes]
    weight_RS = _normalised(weights, measured, notes)
    runs = _joined(weights, measured, notes)
    row = {run: number for number, run in enumerate(weights.runs)}
    loss_row = {run: number for number, run in enumerate(measured.runs)}
    table = MixtureTable(
        weights.names,
        measured.names,
        runs,
        weight_RS[[row[run] for run in runs]],
        measured.value_RN[[loss_row[run] for run in runs]],
        aliases={**weights.aliases, **measured.aliases},
    )
    table.notes.extend(notes)
    table.notes.extend(
        table_notes(table.sources, table.targets, table.runs, table.weight_NS, table.loss_NV)
    )
    return table


def _normalised(weights: Grid, measured: Grid, notes: list[str]) -> np.ndarray:
    """Weights whose rows sum to 1; files with rounded shares sum to it only nearly."""
    sum_R = weights.value_RN.sum(1)
    off_R = np.abs(sum_R - 1)
    beyond = np.flatnonzero(off_R > ROUNDING + 1e-9)
    if beyond.size:
        rows = listed([f"{weights.runs[n]} ({sum_R[n]:.6g})" for n in beyond], shown=5)
        hint = "percentages must be divided by 100, token counts by their sum"
        if (np.abs(np.nan_to_num(measured.value_RN).sum(1) - 1) <= ROUNDING).all():
            hint = f"those of {measured.path} do: are the two files swapped?"
        raise CorpusError(
            f"{weights.path}: weights must sum to 1 in every run, within {ROUNDING} for "
            f"rounding; they do not for {beyond.size} of {len(sum_R)} runs: {rows}; {hint}"
        )
    worst = int(off_R.argmax())
    if off_R[worst] > 1e-9:
        notes.append(
            f"{weights.path}: weights sum to 1 only within rounding; each run's were divided by "
            f"their sum (the largest deviation is {off_R[worst]:.3g}, of run {weights.runs[worst]})"
        )
    normalised_RS: np.ndarray = weights.value_RN / sum_R[:, None]
    return normalised_RS


def _joined(weights: Grid, measured: Grid, notes: list[str]) -> list[str]:
    """Runs that both files have, in the order of the mixtures."""
    shift = shifted_by_one(weights.runs, measured.runs)
    if shift:
        raise CorpusError(
            f"{weights.path} counts its runs from {shift[0]}, {measured.path} from {shift[1]}: "
            "joined by number, every mixture would get the loss of another run; make both count "
            "from the same number"
        )
    has_loss, has_weights = set(measured.runs), set(weights.runs)
    runs = [run for run in weights.runs if run in has_loss]
    if not runs:
        raise CorpusError(
            f"no run is in both files: {weights.path} has {listed(weights.runs, 3)}, "
            f"{measured.path} has {listed(measured.runs, 3)}"
        )
    for grid, other in ((weights, has_loss), (measured, has_weights)):
        alone = [run for run in grid.runs if run not in other]
        if alone:
            notes.append(f"left out, in {grid.path} only: {len(alone)} runs: {listed(alone)}")
    return runs
