"""A CSV file as people's tools write it: byte-order marks, CRLF, spaces, quotes, blank lines."""

import csv
import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from dograph.errors import CorpusError

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
