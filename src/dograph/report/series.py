"""What a page reads of a run: metrics.jsonl by column, read on from where the last look ended.

Shapes: N rows that have the column.
"""

import json
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

SMOOTHED_SHARE = 50  # the running mean is over a fiftieth of the points
DIGITS = 5
_NUMBERS = (int, float)
# Losses under another name, and what no chart shows.
_UNUSED = ("/ppl", "/bits_per_byte", "/samples", "/gradient_norm", "/mean_norm")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class Column:
    """One quantity: the steps that have it, and its values; what is not finite is left out."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


class Columns:
    """The columns of one metrics file, which may still grow, or be cut back by a resumption."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self._known: dict[str, Column | None] = {}  # None: of no use here
        self.last_step = 0
        self.damaged = 0  # lines that are no JSON
        self._offset = 0
        self._inode: int | None = None

    def read(self) -> bool:
        """Read whole lines that were not read yet; return whether there was anything new."""
        if not self.path.is_file():
            return False
        status = self.path.stat()
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._clear()  # resuming a run puts a shorter file in its place
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return False
        before = self._offset
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._take(line)
        return self._offset > before

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            step = int(row["step"])
        except (ValueError, KeyError, TypeError):
            self.damaged += 1
            return
        self.last_step = max(self.last_step, step)
        known = self._known
        for name, value in row.items():  # millions of times in a long run
            if name not in known:
                is_shown = name != "step" and not name.endswith(_UNUSED)
                known[name] = Column() if is_shown else None
            column = known[name]
            if column is not None and value.__class__ in _NUMBERS and isfinite(value):
                column.steps.append(step)
                column.values.append(value)

    @property
    def by_name(self) -> dict[str, Column]:
        return {name: column for name, column in self._known.items() if column and column.steps}

    def __contains__(self, name: str) -> bool:
        return self.last(name) is not None

    def get(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """step_N and value_N of a column, as copies; empty where there is none."""
        own = self._known.get(name) or Column()
        return np.array(own.steps, dtype=np.int64), np.array(own.values, dtype=np.float64)

    def last(self, name: str) -> float | None:
        column = self._known.get(name)
        return column.values[-1] if column and column.values else None

    def middles(self, prefix: str, suffix: str) -> list[str]:
        """What stands between prefix and suffix in names of columns, in the order of the file."""
        least = len(prefix) + len(suffix)
        return [
            name[len(prefix) : -len(suffix)]
            for name in self.by_name
            if name.startswith(prefix) and name.endswith(suffix) and len(name) > least
        ]


@dataclass(frozen=True, slots=True)
class Line:
    """Points of a line."""

    x: list[int]
    y: list[float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over steps: thinned, and smoothed where there are points enough."""

    raw: Line
    smooth: Line | None = None


def rounded(values: np.ndarray, digits: int = DIGITS) -> list[float]:
    """Numbers with few digits, which is what a picture can show; a page of them is small."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def thin(step_N: np.ndarray, value_N: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last point, and the least and largest of each of `buckets` runs of points.

    So no spike is lost and none is made up: every point that is kept is one that was measured.
    """
    num = len(value_N)
    if num <= 2 * buckets + 2:
        return step_N, value_N
    edges = np.linspace(0, num, buckets + 1).round().astype(np.int64)
    kept = {0, num - 1}
    for low, high in pairwise(edges):
        part = value_N[low:high]
        kept |= {int(low + part.argmin()), int(low + part.argmax())}
    index = np.array(sorted(kept))
    return step_N[index], value_N[index]


def running_mean(value_N: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` points (an odd number) around each one.

    At the beginning, where losses fall steeply, the window narrows to what lies on either side. At
    the end it is the straight line through the last `window` points, which joins on to the means:
    narrowing would make the last value that of one noisy step. Straight lines stay straight.
    """
    num, half = len(value_N), window // 2
    half_N = np.minimum(np.minimum(np.arange(num), np.arange(num)[::-1]), half)
    total = np.concatenate([[0.0], np.cumsum(value_N, dtype=np.float64)])
    index_N = np.arange(num)
    mean_N: np.ndarray = (total[index_N + half_N + 1] - total[index_N - half_N]) / (2 * half_N + 1)
    if half and num >= window:
        last = value_N[-window:].astype(np.float64)
        place = np.arange(window) - half
        slope = float(place @ last) / float(place @ place)
        mean_N[num - half :] = last.mean() + slope * place[half + 1 :]
    return mean_N


def curve(step_N: np.ndarray, value_N: np.ndarray, buckets: int, *, smooth: bool = True) -> Curve:
    """What a page shows of one quantity."""
    steps, values = thin(step_N, value_N, buckets)
    raw = Line(steps.tolist(), rounded(values))
    num = len(value_N)
    window = max(1, 2 * (num // SMOOTHED_SHARE // 2) + 1)
    if not smooth or window < 3:
        return Curve(raw)
    mean_N = running_mean(value_N, window)
    at = np.unique(np.linspace(0, num - 1, min(num, buckets)).round().astype(np.int64))
    return Curve(raw, Line(step_N[at].tolist(), rounded(mean_N[at])))
