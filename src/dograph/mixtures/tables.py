"""MixtureTable: runs that were made, what each drew from, and the losses each came to.

Shapes: N runs, S sources, V targets.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from dograph.errors import ConfigError, CorpusError
from dograph.files import write_text
from dograph.mixtures.checks import listed, shifted_by_one, table_notes

# A CSV file as people's tools write it: byte-order marks, CRLF, spaces, quotes, blank lines.


Kind = Literal["mixtures", "losses"]
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "-"})
DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file after its header."""

    line: int  # as an editor counts them
    cells: list[str]


@dataclass(frozen=True, slots=True)
class Sheet:
    """The cells of a file, stripped, every row as wide as the header."""

    path: Path
    header: list[str]
    rows: list[Row]

    def at(self, row: Row, column: int) -> str:
        """Where a cell is, for messages."""
        return f'{self.path}, line {row.line}, column "{self.header[column]}"'


@dataclass(frozen=True, slots=True)
class Grid:
    """What a file says: one number for each run and name; NaN where it says none."""

    path: Path
    runs: list[str]
    names: list[str]
    value_RN: np.ndarray
    aliases: dict[str, str] = field(default_factory=dict)  # name of a column -> the name used here
    notes: list[str] = field(default_factory=list)


def read_sheet(path: Path) -> Sheet:
    """Read a file whose first line names its columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text ({error}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    first = text.lstrip().split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first.count)
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    rows = []
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                rows.append(Row(reader.line_num, stripped))
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: {error}") from error
    if len(rows) < 2:
        raise CorpusError(
            f"{path} has {'no rows after its header' if rows else 'nothing in it'}; "
            "a table has a line of names and one line or more for each run"
        )
    return _rectangular(path, rows[0].cells, rows[1:])


def _rectangular(path: Path, header: list[str], rows: list[Row]) -> Sheet:
    for row in rows:
        if len(row.cells) != len(header):
            raise CorpusError(
                f"{path}, line {row.line} has {len(row.cells)} cells, the header has {len(header)}"
            )
    # a comma at the end of every line makes a column without a name or content
    while header and not header[-1] and not any(row.cells[-1] for row in rows):
        header = header[:-1]
        rows = [Row(row.line, row.cells[:-1]) for row in rows]
    for number, name in enumerate(header):
        if not name and number > 0:
            raise CorpusError(f"{path}: column {number + 1} has no name")
        if name in header[:number]:
            raise CorpusError(
                f'{path}: column "{name}" is there twice, as {header.index(name) + 1} and '
                f"{number + 1}"
            )
    return Sheet(path, header, rows)


def number(sheet: Sheet, row: Row, column: int, kind: Kind) -> float:
    """A cell as a number. A loss may be missing (NaN); a weight may not, nor be negative."""
    text = row.cells[column]
    if text.casefold() in MISSING:
        if kind == "losses":
            return math.nan
        raise CorpusError(
            f'{sheet.at(row, column)}: the weight is missing ("{text}"); '
            "write 0 where a source was not drawn from"
        )
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        hint = "; write a share: 0.5, not 50%" if text.endswith("%") else ""
        hint = hint or ("; leave a loss that is not there empty" if kind == "losses" else "")
        raise CorpusError(f'{sheet.at(row, column)}: "{text}" is not a finite number{hint}')
    if kind == "mixtures" and value < 0:
        raise CorpusError(f"{sheet.at(row, column)}: the weight is {text}; weights are >= 0")
    return value


# A line for each run, a column for each source or target: what RegMix and Olmix both write.


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


# Our own long form: a line for each run and source, and for each run and target.


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


# Olmix's `ratios.csv` and `metrics.csv`: `run` or `run_id`, labels, then a column for each name.
#
# The published swarms start with an unnamed index, `run`, `name` and `index`; only the run is used
# to join the two files.


EXAMPLE_OLMIX = (
    "Olmix:      run,name,index,wikipedia,arxiv,...          (or run_id; name, index if you like)",
    "            run,name,index,hellaswag_bpb,mmlu_bpb,...",
)
RUN_COLUMNS = ("run", "run_id", "name")
LABELS = frozenset({"run", "run_id", "name", "index"})


def recognises_olmix(header: list[str]) -> bool:
    return "run" in header or "run_id" in header or ("name" in header and "index" not in header)


def read_olmix(sheet: Sheet, kind: Kind) -> Grid:
    run = next(name for name in RUN_COLUMNS if name in sheet.header)
    labels = {
        column
        for column, name in enumerate(sheet.header)
        if name in LABELS or (column == 0 and is_unnamed(name))
    }
    return read_wide(sheet, kind, sheet.header.index(run), labels)


# RegMix's published pair: `index`, then a column for each source or each validation loss.
#
# Mixtures have columns `train_the_pile_<source>`, losses `metric/the_pile_<target>_val_loss`; their
# earlier files and other corpora have other names after `index`, which are taken as they are.


EXAMPLE_REGMIX = (
    "RegMix:     index,train_the_pile_arxiv,train_the_pile_github,...",
    "            index,metric/the_pile_arxiv_val_loss,metric/the_pile_github_val_loss,...",
)


def recognises_regmix(header: list[str]) -> bool:
    return "index" in header or is_unnamed(header[0])


def read_regmix(sheet: Sheet, kind: Kind) -> Grid:
    if "index" not in sheet.header:
        grid = read_wide(sheet, kind, 0, set())
        grid.notes.append(f"{sheet.path}: runs are named by its first column, which has no name")
        return grid
    unnamed = {0} if is_unnamed(sheet.header[0]) else set()
    return read_wide(sheet, kind, sheet.header.index("index"), unnamed)


# Which layout a file has, told from its header.


OTHER: dict[Kind, Kind] = {"mixtures": "losses", "losses": "mixtures"}


def read_grid(path: Path, kind: Kind) -> Grid:
    """The numbers of a file of mixtures, or of one of losses, in any of the three layouts."""
    sheet = read_sheet(path)
    _refuse_swapped(sheet, kind)
    if recognises_long(sheet.header, kind):
        return read_long(sheet, kind)
    if recognises_olmix(sheet.header):
        return read_olmix(sheet, kind)
    if recognises_regmix(sheet.header):
        return read_regmix(sheet, kind)
    examples = (*EXAMPLE_REGMIX, *EXAMPLE_OLMIX, *EXAMPLE_LONG)
    layouts = "\n".join(f"  {line}" for line in examples)
    start = ", ".join(sheet.header[:4]) + (", ..." if len(sheet.header) > 4 else "")
    raise CorpusError(
        f"{path}: no column says which run a line is about; its header starts with: {start}\n"
        f"Three layouts are read (first line: mixtures, second: losses):\n{layouts}"
    )


def _refuse_swapped(sheet: Sheet, kind: Kind) -> None:
    foreign = is_loss_column if kind == "mixtures" else is_source_column
    swapped = recognises_long(sheet.header, OTHER[kind]) and not recognises_long(sheet.header, kind)
    if swapped or any(foreign(column) for column in sheet.header):
        raise CorpusError(
            f"{sheet.path} was given as the file of {kind} and has {OTHER[kind]}; "
            "name the mixtures first, then the losses"
        )


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


# A table of runs written in our long form, so that it can be fitted again, by anybody.


def write_table(table: MixtureTable, mixtures: Path, losses: Path) -> None:
    """Two CSV files; a loss that is missing has no line. Numbers are written in full."""
    weights = (
        (run, source, weight)
        for run, weight_S in zip(table.runs, table.weight_NS.tolist(), strict=True)
        for source, weight in zip(table.sources, weight_S, strict=True)
    )
    write_text(mixtures, _csv(COLUMNS["mixtures"], weights))
    measured = (
        (run, target, loss)
        for run, loss_V in zip(table.runs, table.loss_NV.tolist(), strict=True)
        for target, loss in zip(table.targets, loss_V, strict=True)
        if not math.isnan(loss)
    )
    write_text(losses, _csv(COLUMNS["losses"], measured))


def _csv(header: tuple[str, ...], rows: Iterable[tuple[str, str, float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
