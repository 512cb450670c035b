"""Our own long form: a line for each run and source, and for each run and target."""

import numpy as np

from dograph.errors import CorpusError
from dograph.mixtures.sheet import Grid, Kind, Sheet, number
from dograph.mixtures.wide import is_unnamed

EXAMPLE_LONG = (
    "long form:  run,source,weight",
    "            run,target,loss",
)
COLUMNS: dict[Kind, tuple[str, str, str]] = {
    "mixtures": ("run", "source", "weight"),
    "losses": ("run", "target", "loss"),
}


def recognises_long(header: list[str], kind: Kind) -> bool:
    return set(COLUMNS[kind]) <= set(header)


def read_long(sheet: Sheet, kind: Kind) -> Grid:
    """A source that a run does not name was not drawn from; such a target is missing."""
    run_at, name_at, value_at = (sheet.header.index(name) for name in COLUMNS[kind])
    seen: dict[tuple[str, str], int] = {}
    values: dict[tuple[str, str], float] = {}
    for row in sheet.rows:
        key = (row.cells[run_at], row.cells[name_at])
        for column in (run_at, name_at):
            if not row.cells[column]:
                raise CorpusError(f"{sheet.at(row, column)}: the cell is empty")
        if key in seen:
            raise CorpusError(
                f'{sheet.path}, line {row.line}: run "{key[0]}" has "{key[1]}" twice, first in '
                f"line {seen[key]}"
            )
        seen[key] = row.line
        values[key] = number(sheet, row, value_at, kind)
    runs = list(dict.fromkeys(run for run, _ in values))
    names = list(dict.fromkeys(name for _, name in values))
    absent = 0.0 if kind == "mixtures" else np.nan
    value_RN = np.array([[values.get((run, name), absent) for name in names] for run in runs])
    unused = [c for c in sheet.header if c not in COLUMNS[kind] and not is_unnamed(c)]
    notes = [f"{sheet.path}: not used: {', '.join(unused)}"] if unused else []
    return Grid(sheet.path, runs, names, value_RN, notes=notes)
