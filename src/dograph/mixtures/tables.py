"""MixtureTable: runs that were made, what each drew from, and the losses each came to.

Files are read in three layouts, told by their headers, and written in our own long one.

Shapes: N runs, S sources, V targets, K names of either.
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
_UNNAMED = re.compile(r"(Unnamed: \d+)?")  # the index column that pandas writes by default

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
        for names, which, what, value_NK in (
            (self.sources, "sources", "weights", self.weight_NS),
            (self.targets, "targets", "losses", self.loss_NV),
        ):
            if value_NK.shape != (len(self.runs), len(names)):
                raise ConfigError(
                    f"{len(self.runs)} runs and {len(names)} {which} need {what} of that shape, "
                    f"got {value_NK.shape}"
                )
        bad_N = ~np.isfinite(self.weight_NS).all(1) | (self.weight_NS < 0).any(1)
        bad_N |= ~(np.abs(self.weight_NS.sum(1) - 1) <= 1e-6)
        infinite_N = np.isinf(self.loss_NV).any(1)
        for wrong_N, rule in (
            (bad_N, "weights must be finite, >= 0 and sum to 1 in every run"),
            (infinite_N, "losses must be finite, or NaN where they are missing"),
        ):
            if wrong_N.any():
                raise ConfigError(f"{rule}; not so: {self._runs(wrong_N)}")

    def _runs(self, which_N: np.ndarray) -> str:
        return listed([self.runs[n] for n in np.flatnonzero(which_N)])

    def remarks(self) -> list[str]:
        """What to know before trusting what is learned from it.

        Missing losses, constant columns, names that only one side has, scores among the losses.
        """
        notes = []
        gap_NV = np.isnan(self.loss_NV)
        empty_N = gap_NV.all(1)
        if empty_N.any():
            notes.append(f"{empty_N.sum()} runs have no loss at all: {self._runs(empty_N)}")
        for target, gap_N in zip(self.targets, (gap_NV & ~empty_N[:, None]).T, strict=True):
            if gap_N.any():
                where = f"{gap_N.sum()} runs: {self._runs(gap_N)}"
                notes.append(f"the loss of {target} is missing in {where}")
        below = np.argwhere(self.loss_NV < 0)
        if cells := [f"{self.runs[n]} ({self.targets[v]})" for n, v in below]:
            notes.append(f"losses below 0, lower still counting as better: {listed(cells)}")
        still = np.flatnonzero(np.ptp(self.weight_NS, axis=0) <= 1e-12)
        if names := [f"{self.sources[s]} ({self.weight_NS[0, s]:.4g})" for s in still]:
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
        if len(silent) == len(self.sources):
            others = f"{len(foreign)} targets: {listed(foreign)}"
            notes.append(f"no target is named like a source; {others}")
        elif silent:
            of = f"{len(silent)} of {len(self.sources)} sources"
            notes.append(f"{of} have no loss of their own: {listed(silent)}")
        if foreign and len(silent) < len(self.sources):
            notes.append(f"{len(foreign)} targets are no source: {listed(foreign)}")
        if scores := [target for target in self.targets if _SCORES.search(target)]:
            notes.append(
                "named like a score, of which more is better, while plans lower their target: "
                f"{listed(scores)}; give 1 - score, or a loss"
            )
        return notes


class TableFile:
    """What a file of mixtures or of losses says: one number for each run and name, or NaN.

    In the long form there is a line for each run and name; a source that a run does not name was
    not drawn from, and such a target is missing. Else there is a line for each run, a column for
    each name, and names lose what RegMix's scripts put around them, so that sources and targets
    meet; `aliases` has the columns' own.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        self.aliases: dict[str, str] = {}
        self.notes: list[str] = []
        self.header, self.rows = self._read()
        layout = self._layout()
        if layout is None:
            run_at, name_at, value_at = (self.header.index(name) for name in LONG[kind])
            cells_of = [(line, cells, cells[name_at], value_at) for line, cells in self.rows]
            unused = [c for c in self.header if c not in LONG[kind] and not _UNNAMED.fullmatch(c)]
            if unused:
                self.notes.append(f"{path}: not used: {', '.join(unused)}")
        else:
            run_at, labels = layout
            if _UNNAMED.fullmatch(self.header[run_at]):
                self.notes.append(f"{path}: runs are named by its first column, which has no name")
            named = self._named(labels | {run_at})
            cells_of = [
                (line, cells, name, column)
                for line, cells in self.rows
                for name, column in named.items()
            ]
        line_of: dict[tuple[str, str], int] = {}
        values: dict[tuple[str, str], float] = {}
        for line, cells, name, column in cells_of:
            run = cells[run_at]
            if not run:
                raise CorpusError(f"{self._at(line, run_at)}: the run has no name")
            if layout is None and not name:
                raise CorpusError(f"{self._at(line, name_at)}: the cell is empty")
            if (run, name) in line_of:
                twice = f'run "{run}" has "{name}" twice, first in line {line_of[run, name]}'
                raise CorpusError(f"{path}, line {line}: {twice}")
            line_of[run, name] = line
            values[run, name] = self._number(line, column, cells[column])
        self.runs = list(dict.fromkeys(run for run, _ in values))
        self.names = list(dict.fromkeys(name for _, name in values))
        absent = 0.0 if kind == "mixtures" else math.nan
        self.value_NK = np.array(
            [[values.get((run, name), absent) for name in self.names] for run in self.runs]
        )

    def _read(self) -> tuple[list[str], list[tuple[int, list[str]]]]:
        """The first line's names, and rows of stripped cells with their lines' numbers.

        As people's tools write them: byte-order marks, CRLF, spaces, quotes, blank lines.
        """
        path = self.path
        try:
            with open(path, encoding="utf-8-sig", newline="") as file:
                text = file.read()
        except UnicodeDecodeError as error:
            message = f"{path} is not UTF-8 text ({error}); save it as CSV in UTF-8"
            raise CorpusError(message) from error
        except OSError as error:
            raise CorpusError(f"cannot read {path}: {error.strerror}") from error
        delimiter = max(DELIMITERS, key=text.lstrip().split("\n", 1)[0].count)
        lines = io.StringIO(text, newline="")
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        try:
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
        except csv.Error as error:
            raise CorpusError(f"{path}, line {reader.line_num}: {error}") from error
        rows = [(line, cells) for line, cells in rows if any(cells)]
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
                both = f"{header.index(name) + 1} and {number + 1}"
                raise CorpusError(f'{path}: column "{name}" is there twice, as {both}')
        return header, rows

    def _at(self, line: int, column: int) -> str:
        """Where a cell is, for messages."""
        return f'{self.path}, line {line}, column "{self.header[column]}"'

    def _number(self, line: int, column: int, text: str) -> float:
        """A cell as a number. A loss may be missing (NaN); a weight may not, nor be negative."""
        where = self._at(line, column)
        if text.casefold() in MISSING:
            if self.kind == "losses":
                return math.nan
            not_drawn = "write 0 where a source was not drawn from"
            raise CorpusError(f'{where}: the weight is missing ("{text}"); {not_drawn}')
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            hint = "; leave a loss that is not there empty" if self.kind == "losses" else ""
            hint = "; write a share: 0.5, not 50%" if text.endswith("%") else hint
            raise CorpusError(f'{where}: "{text}" is not a finite number{hint}')
        if self.kind == "mixtures" and value < 0:
            raise CorpusError(f"{where}: the weight is {text}; weights are >= 0")
        return value

    def _layout(self) -> tuple[int, set[int]] | None:
        """The column that names a run, and those that name it again; None for the long form."""
        header = self.header
        other: Kind = "losses" if self.kind == "mixtures" else "mixtures"
        is_long, is_other = (set(LONG[kind]) <= set(header) for kind in (self.kind, other))
        foreign = _LOSS if self.kind == "mixtures" else _PILE_SOURCE
        if (is_other and not is_long) or any(foreign.fullmatch(column) for column in header):
            raise CorpusError(
                f"{self.path} was given as the file of {self.kind} and has {other}; "
                "name the mixtures first, then the losses"
            )
        if is_long:
            return None
        unnamed = {0} if _UNNAMED.fullmatch(header[0]) else set()
        if "run" in header or "run_id" in header or ("name" in header and "index" not in header):
            run = next(name for name in LABELS if name in header)
            labels = {column for column, name in enumerate(header) if name in LABELS}
            return header.index(run), labels | unnamed
        if "index" in header:
            return header.index("index"), unnamed
        if unnamed:
            return 0, unnamed
        start = ", ".join(header[:4]) + (", ..." if len(header) > 4 else "")
        raise CorpusError(
            f"{self.path}: no column says which run a line is about; its header starts with: "
            f"{start}\nThree layouts are read (first line: mixtures, second: losses):\n{LAYOUTS}"
        )

    def _named(self, labels: set[int]) -> dict[str, int]:
        """The columns of a wide file by the names used here."""
        raw = {c: column for c, column in enumerate(self.header) if c not in labels}
        if not raw:
            what = "source" if self.kind == "mixtures" else "target"
            raise CorpusError(f"{self.path} has no column for any {what}, only {self.header}")
        split = "train_" if all(column.startswith("train_") for column in raw.values()) else ""
        named: dict[str, int] = {}
        for c, column in raw.items():
            match = _PILE_SOURCE.fullmatch(column) or _LOSS.fullmatch(column)
            name = match[1] if match else column.removeprefix(split)
            if name in named:
                both = f'"{raw[named[name]]}" and "{column}"'
                raise CorpusError(f'{self.path}: columns {both} both mean "{name}"')
            named[name] = c
            if name != column:
                self.aliases[column] = name
        return named


def read_table(mixtures: Path, losses: Path) -> MixtureTable:
    """The table of two files: RegMix's pair, Olmix's pair or the long form, told by their headers.

    Runs are joined by name. Whatever is left out or mended is said in `notes`.
    """
    weights, measured = TableFile(Path(mixtures), "mixtures"), TableFile(Path(losses), "losses")
    notes = [*weights.notes, *measured.notes]
    weight_NS = _normalised(weights, measured, notes)
    runs = _joined(weights, measured, notes)
    table = MixtureTable(
        weights.names,
        measured.names,
        runs,
        weight_NS[[weights.runs.index(run) for run in runs]],
        measured.value_NK[[measured.runs.index(run) for run in runs]],
        aliases={**weights.aliases, **measured.aliases},
    )
    table.notes.extend([*notes, *table.remarks()])
    return table


def _normalised(weights: TableFile, measured: TableFile, notes: list[str]) -> np.ndarray:
    """Weights whose rows sum to 1; files with rounded shares sum to it only nearly."""
    sum_N = weights.value_NK.sum(1)
    off_N = np.abs(sum_N - 1)
    beyond = np.flatnonzero(off_N > ROUNDING + 1e-9)
    if beyond.size:
        rows = listed([f"{weights.runs[n]} ({sum_N[n]:.6g})" for n in beyond], shown=5)
        hint = "percentages must be divided by 100, token counts by their sum"
        if (np.abs(np.nan_to_num(measured.value_NK).sum(1) - 1) <= ROUNDING).all():
            hint = f"those of {measured.path} do: are the two files swapped?"
        raise CorpusError(
            f"{weights.path}: weights must sum to 1 in every run, within {ROUNDING} for "
            f"rounding; they do not for {beyond.size} of {len(sum_N)} runs: {rows}; {hint}"
        )
    worst = int(off_N.argmax())
    if off_N[worst] > 1e-9:
        notes.append(
            f"{weights.path}: weights sum to 1 only within rounding; each run's were divided by "
            f"their sum (the largest deviation is {off_N[worst]:.3g}, of run {weights.runs[worst]})"
        )
    normalised_NS: np.ndarray = weights.value_NK / sum_N[:, None]
    return normalised_NS


def _joined(weights: TableFile, measured: TableFile, notes: list[str]) -> list[str]:
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
    both = set(weights.runs) & set(measured.runs)
    if not both:
        raise CorpusError(
            f"no run is in both files: {weights.path} has {listed(weights.runs, 3)}, "
            f"{measured.path} has {listed(measured.runs, 3)}"
        )
    for grid in (weights, measured):
        alone = [run for run in grid.runs if run not in both]
        if alone:
            notes.append(f"left out, in {grid.path} only: {len(alone)} runs: {listed(alone)}")
    return [run for run in weights.runs if run in both]


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
