"""A line for each run, a column for each source or target: what RegMix and Olmix both write."""

import re

import numpy as np

from dograph.errors import CorpusError
from dograph.mixtures.sheet import Grid, Kind, Sheet, number

_PILE_SOURCE = re.compile(r"train_the_pile_(.+)")
_LOSS = re.compile(r"metric/(?:the_pile_)?(.+)_val_loss")


def is_unnamed(column: str) -> bool:
    """Whether this is the index column that pandas writes where it is not told otherwise."""
    return column == "" or re.fullmatch(r"Unnamed: \d+", column) is not None


def clean(columns: list[str]) -> list[str]:
    """Names without what RegMix's scripts put around them, so that sources and targets meet."""
    split = "train_" if all(column.startswith("train_") for column in columns) else ""
    names = []
    for column in columns:
        match = _PILE_SOURCE.fullmatch(column) or _LOSS.fullmatch(column)
        names.append(match[1] if match else column.removeprefix(split))
    return names


def is_loss_column(column: str) -> bool:
    """Whether only a file of losses has such a column."""
    return _LOSS.fullmatch(column) is not None


def is_source_column(column: str) -> bool:
    """Whether only a file of mixtures has such a column."""
    return _PILE_SOURCE.fullmatch(column) is not None


def read_wide(sheet: Sheet, kind: Kind, run_column: int, labels: set[int]) -> Grid:
    """The numbers of a file; `labels` are columns that name a run once more."""
    columns = [c for c in range(len(sheet.header)) if c != run_column and c not in labels]
    raw = [sheet.header[column] for column in columns]
    if not raw:
        what = "source" if kind == "mixtures" else "target"
        raise CorpusError(f"{sheet.path} has no column for any {what}, only {sheet.header}")
    names = clean(raw)
    for at, name in enumerate(names):
        if name in names[:at]:
            both = f'"{raw[names.index(name)]}" and "{raw[at]}"'
            raise CorpusError(f'{sheet.path}: columns {both} both mean "{name}"')
    runs: dict[str, int] = {}
    for row in sheet.rows:
        run = row.cells[run_column]
        if not run:
            raise CorpusError(f"{sheet.at(row, run_column)}: the run has no name")
        if run in runs:
            raise CorpusError(
                f'{sheet.at(row, run_column)}: run "{run}" is there twice, first in line '
                f"{runs[run]}"
            )
        runs[run] = row.line
    value_RN = np.array([[number(sheet, row, c, kind) for c in columns] for row in sheet.rows])
    aliases = {column: name for column, name in zip(raw, names, strict=True) if column != name}
    return Grid(sheet.path, list(runs), names, value_RN, aliases)
