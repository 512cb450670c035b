"""MixtureTable: runs that were made, what each drew from, and the losses each came to.

Files are read in three layouts, told by their headers, and written in our own long one.

Shapes: N runs, S sources, V targets.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from dograph.errors import ConfigError, CorpusError
from dograph.files import write_text

Kind = Literal["mixtures", "losses"]
SHOWN = 50  # names in one message
ROUNDING = 1e-2  # how far a row of a file may be from a sum of 1
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "-"})
DELIMITERS = (",", ";", "\t")
# Names of measures of which more is better; a plan lowers what it is given.
_SCORES = re.compile(
    r"(^|[^a-z])(acc|acc_norm|accuracy|em|exact_match|f1|pass@\d+)$", re.IGNORECASE
)
# What only RegMix's file of mixtures, and only its file of losses, has in its header.
_PILE_SOURCE = re.compile(r"train_the_pile_(.+)")
_LOSS = re.compile(r"metric/(?:the_pile_)?(.+)_val_loss")

# The three layouts. RegMix's earlier files and other corpora have other names after `index`, which
# are taken as they are. Olmix's published swarms start with an unnamed index, `run`, `name` and
# `index`; only the run is used to join the two files.
LAYOUTS = """\
  RegMix:     index,train_the_pile_arxiv,train_the_pile_github,...
              index,metric/the_pile_arxiv_val_loss,metric/the_pile_github_val_loss,...
  Olmix:      run,name,index,wikipedia,arxiv,...          (or run_id; name, index if you like)
              run,name,index,hellaswag_bpb,mmlu_bpb,...
  long form:  run,source,weight
              run,target,loss"""
LONG: dict[Kind, tuple[str, str, str]] = {
    "mixtures": ("run", "source", "weight"),
    "losses": ("run", "target", "loss"),
}
LABELS = ("run", "run_id", "name", "index")  # columns that name a run in Olmix's layout


def listed(names: Sequence[str], shown: int = SHOWN) -> str:
    """Names for a message; of very many, the first ones and how many more."""
    text = ", ".join(names[:shown])
    return f"{text} and {len(names) - shown} more" if len(names) > shown else text


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

    def remarks(self) -> list[str]:
        """What to know before trusting what is learned from it.

        Missing losses, constant columns, names that only one side has, scores among the losses.
        """
        notes = []
        gap_NV = np.isnan(self.loss_NV)
        empty_N = gap_NV.all(1)
        if empty_N.any():
            names = [self.runs[n] for n in np.flatnonzero(empty_N)]
            notes.append(f"{len(names)} runs have no loss at all: {listed(names)}")
        for target, gap_N in zip(self.targets, (gap_NV & ~empty_N[:, None]).T, strict=True):
            if gap_N.any():
                names = [self.runs[n] for n in np.flatnonzero(gap_N)]
                notes.append(
                    f"the loss of {target} is missing in {len(names)} runs: {listed(names)}"
                )
        if (self.loss_NV < 0).any():
            below = np.argwhere(self.loss_NV < 0)
            cells = [f"{self.runs[n]} ({self.targets[v]})" for n, v in below]
            notes.append(f"losses below 0, lower still counting as better: {listed(cells)}")
        still = np.flatnonzero(np.ptp(self.weight_NS, axis=0) <= 1e-12)
        if still.size:
            names = [f"{self.sources[s]} ({self.weight_NS[0, s]:.4g})" for s in still]
            notes.append(
                f"the weight never changes, so nothing can be learned of it: {listed(names)}"
            )
        for target, loss_N in zip(self.targets, self.loss_NV.T, strict=True):
            known_N = loss_N[~np.isnan(loss_N)]
            if not known_N.size:
                notes.append(f"no run has a loss of {target}")
            elif np.ptp(known_N) == 0:
                notes.append(f"the loss of {target} is {known_N[0]:.6g} in every run")
        silent = [source for source in self.sources if source not in self.targets]
        foreign = [target for target in self.targets if target not in self.sources]
        count = len(self.sources)
        if len(silent) == count:
            notes.append(
                f"no target is named like a source; {len(foreign)} targets: {listed(foreign)}"
            )
        else:
            if silent:
                of = f"{len(silent)} of {count} sources"
                notes.append(f"{of} have no loss of their own: {listed(silent)}")
            if foreign:
                notes.append(f"{len(foreign)} targets are no source: {listed(foreign)}")
        if scores := [target for target in self.targets if _SCORES.search(target)]:
            notes.append(
                "named like a score, of which more is better, while plans lower their target: "
                f"{listed(scores)}; give 1 - score, or a loss"
            )
        return notes


@dataclass(frozen=True, slots=True)
class Sheet:
    """The cells of a file, stripped, every row as wide as the header, with its line's number."""

    path: Path
    header: list[str]
    rows: list[tuple[int, list[str]]]

    def at(self, line: int, column: int) -> str:
        """Where a cell is, for messages."""
        return f'{self.path}, line {line}, column "{self.header[column]}"'


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
    """Read a file whose first line names its columns.

    As people's tools write them: byte-order marks, CRLF, spaces, quotes, blank lines.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text ({error}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    delimiter = max(DELIMITERS, key=text.lstrip().split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows = []
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                rows.append((reader.line_num, stripped))
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: {error}") from error
    if len(rows) < 2:
        raise CorpusError(
            f"{path} has {'no rows after its header' if rows else 'nothing in it'}; "
            "a table has a line of names and one line or more for each run"
        )
    (_, header), *rows = rows
    for line, cells in rows:
        if len(cells) != len(header):
            raise CorpusError(
                f"{path}, line {line} has {len(cells)} cells, the header has {len(header)}"
            )
    # a comma at the end of every line makes a column without a name or content
    while header and not header[-1] and not any(cells[-1] for _, cells in rows):
        header = header[:-1]
        rows = [(line, cells[:-1]) for line, cells in rows]
    for number, name in enumerate(header):
        if not name and number > 0:
            raise CorpusError(f"{path}: column {number + 1} has no name")
        if name in header[:number]:
            raise CorpusError(
                f'{path}: column "{name}" is there twice, as {header.index(name) + 1} and '
                f"{number + 1}"
            )
    return Sheet(path, header, rows)


def _number(sheet: Sheet, line: int, cells: list[str], column: int, kind: Kind) -> float:
    """A cell as a number. A loss may be missing (NaN); a weight may not, nor be negative."""
    text = cells[column]
    if text.casefold() in MISSING:
        if kind == "losses":
            return math.nan
        raise CorpusError(
            f'{sheet.at(line, column)}: the weight is missing ("{text}"); '
            "write 0 where a source was not drawn from"
        )
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        hint = "; write a share: 0.5, not 50%" if text.endswith("%") else ""
        hint = hint or ("; leave a loss that is not there empty" if kind == "losses" else "")
        raise CorpusError(f'{sheet.at(line, column)}: "{text}" is not a finite number{hint}')
    if kind == "mixtures" and value < 0:
        raise CorpusError(f"{sheet.at(line, column)}: the weight is {text}; weights are >= 0")
    return value


def _is_unnamed(column: str) -> bool:
    """Whether this is the index column that pandas writes where it is not told otherwise."""
    return column == "" or re.fullmatch(r"Unnamed: \d+", column) is not None


def read_grid(path: Path, kind: Kind) -> Grid:
    """The numbers of a file of mixtures, or of one of losses, in any of the three layouts."""
    sheet = read_sheet(path)
    header = sheet.header
    other: Kind = "losses" if kind == "mixtures" else "mixtures"
    is_long, is_other = (set(LONG[each]) <= set(header) for each in (kind, other))
    foreign = _LOSS if kind == "mixtures" else _PILE_SOURCE
    if (is_other and not is_long) or any(foreign.fullmatch(column) for column in header):
        raise CorpusError(
            f"{path} was given as the file of {kind} and has {other}; "
            "name the mixtures first, then the losses"
        )
    unnamed = {0} if _is_unnamed(header[0]) else set()
    if is_long:
        return _read_long(sheet, kind)
    if "run" in header or "run_id" in header or ("name" in header and "index" not in header):
        run = next(name for name in LABELS if name in header)
        labels = {column for column, name in enumerate(header) if name in LABELS}
        return _read_wide(sheet, kind, header.index(run), labels | unnamed)
    if "index" in header:
        return _read_wide(sheet, kind, header.index("index"), unnamed)
    if unnamed:
        grid = _read_wide(sheet, kind, 0, set())
        grid.notes.append(f"{path}: runs are named by its first column, which has no name")
        return grid
    start = ", ".join(header[:4]) + (", ..." if len(header) > 4 else "")
    raise CorpusError(
        f"{path}: no column says which run a line is about; its header starts with: {start}\n"
        f"Three layouts are read (first line: mixtures, second: losses):\n{LAYOUTS}"
    )


def _read_wide(sheet: Sheet, kind: Kind, run_column: int, labels: set[int]) -> Grid:
    """A line for each run, a column for each name; `labels` are columns that name a run again.

    Names lose what RegMix's scripts put around them, so that sources and targets meet.
    """
    columns = [c for c in range(len(sheet.header)) if c != run_column and c not in labels]
    raw = [sheet.header[column] for column in columns]
    if not raw:
        what = "source" if kind == "mixtures" else "target"
        raise CorpusError(f"{sheet.path} has no column for any {what}, only {sheet.header}")
    split = "train_" if all(column.startswith("train_") for column in raw) else ""
    names: list[str] = []
    for column in raw:
        match = _PILE_SOURCE.fullmatch(column) or _LOSS.fullmatch(column)
        name = match[1] if match else column.removeprefix(split)
        if name in names:
            both = f'"{raw[names.index(name)]}" and "{column}"'
            raise CorpusError(f'{sheet.path}: columns {both} both mean "{name}"')
        names.append(name)
    runs: dict[str, int] = {}
    for line, cells in sheet.rows:
        run = cells[run_column]
        if not run:
            raise CorpusError(f"{sheet.at(line, run_column)}: the run has no name")
        if run in runs:
            raise CorpusError(
                f'{sheet.at(line, run_column)}: run "{run}" is there twice, first in line '
                f"{runs[run]}"
            )
        runs[run] = line
    value_RN = np.array(
        [[_number(sheet, line, cells, c, kind) for c in columns] for line, cells in sheet.rows]
    )
    aliases = {column: name for column, name in zip(raw, names, strict=True) if column != name}
    return Grid(sheet.path, list(runs), names, value_RN, aliases)


def _read_long(sheet: Sheet, kind: Kind) -> Grid:
    """A line for each run and name.

    A source that a run does not name was not drawn from; such a target is missing.
    """
    run_at, name_at, value_at = (sheet.header.index(name) for name in LONG[kind])
    seen: dict[tuple[str, str], int] = {}
    values: dict[tuple[str, str], float] = {}
    for line, cells in sheet.rows:
        key = (cells[run_at], cells[name_at])
        for column in (run_at, name_at):
            if not cells[column]:
                raise CorpusError(f"{sheet.at(line, column)}: the cell is empty")
        if key in seen:
            raise CorpusError(
                f'{sheet.path}, line {line}: run "{key[0]}" has "{key[1]}" twice, first in '
                f"line {seen[key]}"
            )
        seen[key] = line
        values[key] = _number(sheet, line, cells, value_at, kind)
    runs = list(dict.fromkeys(run for run, _ in values))
    names = list(dict.fromkeys(name for _, name in values))
    absent = 0.0 if kind == "mixtures" else np.nan
    value_RN = np.array([[values.get((run, name), absent) for name in names] for run in runs])
    unused = [c for c in sheet.header if c not in LONG[kind] and not _is_unnamed(c)]
    notes = [f"{sheet.path}: not used: {', '.join(unused)}"] if unused else []
    return Grid(sheet.path, runs, names, value_RN, notes=notes)


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
    table.notes.extend([*notes, *table.remarks()])
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
    starts = []
    for grid in (weights, measured):
        if all(run.isdecimal() for run in grid.runs):
            numbers = sorted(int(run) for run in grid.runs)
            if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
                starts.append(numbers[0])
    if sorted(starts) == [0, 1] and len(weights.runs) == len(measured.runs):
        raise CorpusError(
            f"{weights.path} counts its runs from {starts[0]}, {measured.path} from {starts[1]}: "
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


def write_table(table: MixtureTable, mixtures: Path, losses: Path) -> None:
    """Two CSV files in our long form; a loss that is missing has no line. Numbers are in full."""
    for path, header, names, value_NK in (
        (mixtures, LONG["mixtures"], table.sources, table.weight_NS),
        (losses, LONG["losses"], table.targets, table.loss_NV),
    ):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for run, value_K in zip(table.runs, value_NK.tolist(), strict=True):
            for name, value in zip(names, value_K, strict=True):
                if not math.isnan(value):
                    writer.writerow((run, name, value))
        write_text(path, text.getvalue())
