"""MixtureTable: the mixtures that runs were trained on and the losses they reached.

Files are read in three layouts, recognised by their headers, and written in our own long form.
Losses at several numbers of tokens or sizes of model become those at the plan's target (`nest`).

Shapes: N runs, S sources, V targets, K names (sources or targets).
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dograph.errors import ConfigError, CorpusError, listed
from dograph.files import write_text
from dograph.mixtures.power_laws import LossCurve, Place, nest

Kind = Literal["mixtures", "losses"]
ROUNDING = 1e-2  # how far the weights of a run in a file may be from a sum of 1
LARGEST = 1e12  # no loss is; squares of larger numbers would overflow in fits
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "-"})
DELIMITERS = (",", ";", "\t")
# Names of metrics where higher is better; a plan minimizes its target.
_SCORES = re.compile(
    r"(^|[^a-z])(acc|acc_norm|accuracy|em|exact_match|f1|pass@\d+)$", re.IGNORECASE
)
# Column names that only RegMix's file of mixtures has, and only its file of losses.
_PILE_SOURCE = re.compile(r"train_the_pile_(.+)")
_LOSS = re.compile(r"metric/(?:the_pile_)?(.+)_val_loss")
_UNNAMED = re.compile(r"(Unnamed: \d+)?")  # the index column that pandas writes by default

# The three layouts. RegMix's earlier files and other corpora have other names after `index`, which
# are used as they are. Olmix's published swarms start with an unnamed index, `run`, `name` and
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
# Columns of a file of losses that say where a loss was measured, in any layout.
POINT = ("tokens", "parameters")


@dataclass(frozen=True)
class MixtureTable:
    """Mixtures and losses of N runs; a missing loss is NaN. Rows of weights sum to 1."""

    sources: list[str]
    targets: list[str]
    runs: list[str]
    weight_NS: np.ndarray
    loss_NV: np.ndarray
    notes: list[str] = field(default_factory=list)  # what a reader of the table should know
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names that users may give
    nested: Mapping[str, Any] = field(default_factory=dict)  # findings, if losses are predicted

    def __post_init__(self) -> None:
        for what, names in (("source", self.sources), ("target", self.targets), ("run", self.runs)):
            if not names:
                raise ConfigError(f"the table has no {what}")
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"the table has a {what} twice: {listed(twice)}")
        for what, names, value_NK in (
            ("weights", self.sources, self.weight_NS),
            ("losses", self.targets, self.loss_NV),
        ):
            if value_NK.shape != (shape := (len(self.runs), len(names))):
                raise ConfigError(f"{what} must have the shape {shape}, got {value_NK.shape}")
        bad_N = (self.weight_NS < 0).any(1) | ~(np.abs(self.weight_NS.sum(1) - 1) <= 1e-6)
        for wrong_N, rule in (
            (bad_N, "weights must be finite, >= 0 and sum to 1 in every run"),
            (np.isinf(self.loss_NV).any(1), "losses must be finite, or NaN where they are missing"),
        ):
            if wrong_N.any():
                raise ConfigError(f"{rule}; not so: {self._runs(wrong_N)}")

    def _runs(self, which_N: np.ndarray) -> str:
        return listed([self.runs[n] for n in np.flatnonzero(which_N)])

    def remarks(self) -> list[str]:
        """Missing losses, constant columns, scores among the losses."""
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
            notes.append(f"losses below 0, where lower still counts as better: {listed(cells)}")
        constant = np.flatnonzero(np.ptp(self.weight_NS, axis=0) <= 1e-12)
        if names := [f"{self.sources[s]} ({self.weight_NS[0, s]:.4g})" for s in constant]:
            notes.append(f"the weight never changes, so its effect is unknown: {listed(names)}")
        for target, loss_N in zip(self.targets, self.loss_NV.T, strict=True):
            known_N = loss_N[~np.isnan(loss_N)]
            if not known_N.size:
                notes.append(f"no run has a loss of {target}")
            elif np.ptp(known_N) == 0:
                notes.append(f"the loss of {target} is {known_N[0]:.6g} in every run")
        if scores := [target for target in self.targets if _SCORES.search(target)]:
            notes.append(
                "named like a score, where higher is better, while plans minimize their target: "
                f"{listed(scores)}; give 1 - score, or a loss"
            )
        return notes


class TableFile:
    """The content of a file of mixtures or of losses: one number for each run and name, or NaN.

    In the long form there is a line for each run and name; a source that a run does not name was
    not drawn from, and such a target is missing. Otherwise there is a line for each run and a
    column for each name; the prefixes and suffixes of RegMix's scripts are removed from names, so
    that sources and targets match, and `aliases` maps the full column names to the short ones.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        self.notes: list[str] = []
        self.aliases: dict[str, str] = {}
        self.header, rows = self._read()
        is_point = POINT if kind == "losses" else ()
        self.point = {c: name for c, name in enumerate(self.header) if name in is_point}
        run_at, columns = self._layout()
        line_of: dict[tuple[Any, ...], int] = {}
        # by run, name and, where they are given, tokens and parameters
        self.values: dict[tuple[Any, ...], float] = {}
        for line, cells in rows:
            run, here = cells[run_at], columns
            if not run:
                raise self._error("the run has no name", line, run_at)
            if not columns:  # the long form
                _, name_at, value_at = (self.header.index(name) for name in LONG[kind])
                here = {cells[name_at]: value_at}
                if not cells[name_at]:
                    raise self._error("the cell is empty", line, name_at)
            point = tuple(self._number(line, c, cells[c], most=math.inf) for c in self.point)
            if not all(at > 0 for at in point):
                raise self._error(f"a loss needs {' and '.join(self.point.values())} > 0", line)
            for name, column in here.items():
                if (first := line_of.setdefault((run, name, *point), line)) != line:
                    twice = f'run "{run}" has "{name}" twice, first in line {first}'
                    raise self._error(twice, line)
                self.values[run, name, *point] = self._number(line, column, cells[column])
        self.runs = list(dict.fromkeys(run for run, *_ in self.values))
        self.names = list(dict.fromkeys(name for _, name, *_ in self.values))
        absent = 0.0 if kind == "mixtures" else math.nan
        self.value_NK = np.array(
            [[self.values.get((run, name), absent) for name in self.names] for run in self.runs]
        )

    def curves(self) -> dict[Place, LossCurve]:
        """Losses over tokens by size, run and target; a file without sizes or tokens has 1."""
        points: dict[Place, list[tuple[float, float]]] = {}
        for (run, name, *at), loss in self.values.items():
            where = dict(zip(self.point.values(), at, strict=True))
            if not math.isnan(loss):
                place = (where.get("parameters", 1.0), run, name)
                points.setdefault(place, []).append((where.get("tokens", 1.0), loss))
        return {place: LossCurve(*np.array(sorted(own)).T) for place, own in points.items()}

    def _error(self, what: str, line: int | None = None, column: int | None = None) -> CorpusError:
        """What is wrong, and where."""
        at_line = f", line {line}" if line is not None else ""
        at_column = f', column "{self.header[column]}"' if column is not None else ""
        return CorpusError(f"{self.path}{at_line}{at_column}: {what}")

    def _read(self) -> tuple[list[str], list[tuple[int, list[str]]]]:
        """The header, and rows of stripped cells with their line numbers.

        Accepts byte-order marks, CRLF, spaces, quotes and blank lines.
        """
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as file:
                text = file.read()
        except UnicodeDecodeError as error:
            raise self._error(f"not UTF-8 text ({error}); save it as CSV in UTF-8") from error
        except OSError as error:
            raise CorpusError(f"cannot read {self.path}: {error.strerror}") from error
        delimiter = max(DELIMITERS, key=text.lstrip().split("\n", 1)[0].count)
        lines = io.StringIO(text, newline="")
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        try:
            rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
        except csv.Error as error:
            raise self._error(str(error), reader.line_num) from error
        rows = [(line, cells) for line, cells in rows if any(cells)]
        if len(rows) < 2:
            got = "no rows after its header" if rows else "nothing in it"
            raise self._error(f"{got}; a table has a header and at least one line for each run")
        (_, header), *rows = rows
        for line, cells in rows:
            if len(cells) != len(header):
                raise self._error(f"{len(cells)} cells, but the header has {len(header)}", line)
        # a comma at the end of every line makes a column without a name or content
        while header and not header[-1] and not any(cells[-1] for _, cells in rows):
            header = header[:-1]
            rows = [(line, cells[:-1]) for line, cells in rows]
        for number, name in enumerate(header):
            if not name and number > 0:
                raise self._error(f"column {number + 1} has no name")
            if (first := header.index(name)) < number:
                raise self._error(f'columns {first + 1} and {number + 1} are both called "{name}"')
        return header, rows

    def _number(self, line: int, column: int, text: str, most: float = LARGEST) -> float:
        """A cell as a number. A loss may be missing (NaN); a weight may not, nor be negative."""
        weight = self.kind == "mixtures"
        if text.casefold() in MISSING:
            if not weight:
                return math.nan
            what = f'the weight is missing ("{text}"); write 0 where a source was not drawn from'
            raise self._error(what, line, column)
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if not abs(value) < most:
            hint = "" if weight else "; leave the cell of a missing loss empty"
            hint = "; write a share: 0.5, not 50%" if text.endswith("%") else hint
            raise self._error(f'"{text}" is not a finite number below {most:g}{hint}', line, column)
        if weight and value < 0:
            raise self._error(f"the weight is {text}; weights are >= 0", line, column)
        return value

    def _layout(self) -> tuple[int, dict[str, int]]:
        """The column of the run, and those of the values by name: none for the long form."""
        header = self.header
        mixtures = self.kind == "mixtures"
        other: Kind = "losses" if mixtures else "mixtures"
        is_long, is_other = (set(LONG[kind]) <= set(header) for kind in (self.kind, other))
        foreign = _LOSS if mixtures else _PILE_SOURCE
        if (is_other and not is_long) or any(foreign.fullmatch(column) for column in header):
            what = f"given as the file of {self.kind}, but it has {other}"
            raise self._error(f"{what}; name the mixtures first, then the losses")
        unnamed = {0} if _UNNAMED.fullmatch(header[0]) else set()
        if is_long:
            used = (*LONG[self.kind], *self.point.values())
            others = [name for name in header if name not in used]
            if unused := [name for name in others if not _UNNAMED.fullmatch(name)]:
                self.notes.append(f"{self.path}: not used: {', '.join(unused)}")
            return header.index("run"), {}
        if "run" in header or "run_id" in header or ("name" in header and "index" not in header):
            run_at = header.index(next(name for name in LABELS if name in header))
            labels = {column for column, name in enumerate(header) if name in LABELS} | unnamed
        elif "index" in header:
            run_at, labels = header.index("index"), unnamed | {header.index("index")}
        elif unnamed:
            run_at, labels = 0, unnamed
            self.notes.append(f"{self.path}: runs are named by its first column, which has no name")
        else:
            start = ", ".join(header[:4]) + (", ..." if len(header) > 4 else "")
            raise self._error(
                f"no column says which run a line is about; its header starts with: {start}\n"
                f"Three layouts are read (first line: mixtures, second: losses):\n{LAYOUTS}"
            )
        columns = {c: name for c, name in enumerate(header) if c not in labels | set(self.point)}
        if not columns:
            raise self._error(f"no column for any {LONG[self.kind][1]}, only {header}")
        split = "train_" if all(column.startswith("train_") for column in columns.values()) else ""
        named: dict[str, int] = {}
        for c, column in columns.items():
            match = _PILE_SOURCE.fullmatch(column) or _LOSS.fullmatch(column)
            name = match[1] if match else column.removeprefix(split)
            if (first := named.setdefault(name, c)) != c:
                both = f'columns "{header[first]}" and "{column}"'
                raise self._error(f'{both} both mean "{name}"')
            if name != column:
                self.aliases[column] = name
        return run_at, named


def read_table(mixtures: Path, losses: Path, **target: float | None) -> MixtureTable:
    """The table of two files: RegMix's pair, Olmix's pair or the long form, by their headers.

    Runs are joined by name. `notes` say what was left out or changed. `target` has the tokens and
    the parameters of the run to plan for, where the losses are at several of them.
    """
    weights, measured = TableFile(Path(mixtures), "mixtures"), TableFile(Path(losses), "losses")
    notes, nested = [*weights.notes, *measured.notes], dict[str, Any]()
    columns, given = list(measured.point.values()), [n for n in POINT if target.get(n)]
    if sorted(columns) != sorted(given):
        raise ConfigError(
            f"{measured.path} has columns {columns} of each loss, and mixer has {given} of the run "
            f"to plan for: give both or neither of {POINT}"
        )
    if columns:
        curves = measured.curves()
        size, tokens = (target.get(name) or 1.0 for name in ("parameters", "tokens"))
        reached, nested = nest(curves, size=size, tokens=tokens)
        measured.runs = list(dict.fromkeys(run for _, run, _ in curves))
        measured.value_NK = np.array(
            [[own.get(n, np.nan) for n in measured.names] for own in reached]
        )
        notes += nested["notes"]
    weight_NS = _normalised(weights, measured, notes)
    first = []
    for file in (weights, measured):
        numbers = sorted(int(run) for run in file.runs if run.isdecimal())
        if numbers and numbers == list(range(numbers[0], numbers[0] + len(file.runs))):
            first.append(numbers[0])
    if sorted(first) == [0, 1]:
        raise CorpusError(
            f"{weights.path} counts its runs from {first[0]}, {measured.path} from {first[1]}: "
            "joined by number, every mixture would get the loss of another run; make both count "
            "from the same number; a run without losses needs a line of empty cells"
        )
    for file, other in ((measured, weights), (weights, measured)):
        alone = [run for run in file.runs if run not in set(other.runs)]
        which = f"{len(alone)} of the {len(file.runs)} runs of {file.path} are not in {other.path}"
        if alone and (file is measured or len(alone) == len(file.runs)):
            raise CorpusError(
                f"{which}: {listed(alone, 5)}; it has {listed(other.runs, 3)}: each loss needs the "
                "mixture of its run, under the same name"
            )
        if alone:  # runs that failed, for example
            notes.append(f"left out, without losses: {which}: {listed(alone)}")
    runs = [run for run in weights.runs if run in set(measured.runs)]
    table = MixtureTable(
        weights.names,
        measured.names,
        runs,
        weight_NS[[weights.runs.index(run) for run in runs]],
        measured.value_NK[[measured.runs.index(run) for run in runs]],
        aliases={**weights.aliases, **measured.aliases},
        nested=nested,
    )
    table.notes.extend([*notes, *table.remarks()])
    return table


def _normalised(weights: TableFile, measured: TableFile, notes: list[str]) -> np.ndarray:
    """Weights whose rows sum to 1; in files with rounded shares they do so only nearly."""
    sum_N = weights.value_NK.sum(1)
    off_N = np.abs(sum_N - 1)
    beyond = np.flatnonzero(off_N > ROUNDING + 1e-9)
    if beyond.size:
        rows = listed([f"{weights.runs[n]} ({sum_N[n]:.6g})" for n in beyond], 5)
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
    return np.asarray(weights.value_NK / sum_N[:, None])


def write_table(table: MixtureTable, mixtures: Path, losses: Path) -> None:
    """Two CSV files in our long form; a missing loss has no line."""
    write_long(mixtures, "mixtures", table.runs, table.sources, table.weight_NS)
    write_long(losses, "losses", table.runs, table.targets, table.loss_NV)


def write_long(
    path: Path, kind: Kind, runs: Sequence[str], names: Sequence[str], value_NK: np.ndarray
) -> None:
    """One file of a table in our long form, without NaN. Numbers keep all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LONG[kind])
    for run, value_K in zip(runs, value_NK.tolist(), strict=True):
        for name, value in zip(names, value_K, strict=True):
            if not math.isnan(value):
                writer.writerow((run, name, value))
    write_text(path, text.getvalue())
