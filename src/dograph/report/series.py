"""Reads a run directory while it grows: metrics.jsonl by column, and the curves of a page.

Shapes: N rows that have the column.
"""

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from dograph import records
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import listed
from dograph.eval.describe import corpus_of
from dograph.records import DAMAGE, Skipped, StepGaps
from dograph.train.edits import edits_of
from dograph.train.run_dir import FORK, RunDirectory

SMOOTHED_SHARE = 50  # the running mean is over a fiftieth of the points
DIGITS = 5
REPORTED = 5000  # lines between reports of progress
MOST = 1e300  # larger numbers, infinite ones and NaN are not drawn
NAMED = 4  # names of identical lines in a legend
IDENTICAL = "(identical)"  # after the names of a line that is drawn once; as in lines.js
FEW = 40  # lines of at most this many points have a marker at every point
# Columns that the page does not show: other units of a loss, and counts and norms.
_UNUSED = ("/ppl", "/samples", "/gradient_norm", "/mean_norm")


def _is_shown(name: str) -> bool:
    is_used = name.startswith("valid/") or not name.endswith("/bits_per_byte")
    return is_used and name != "step" and not name.endswith(_UNUSED)


class Columns:
    """The columns of a metrics file, which may grow, or be cut back when a run resumes.

    Each column has the steps and values of the rows that have it; values that are not finite are
    left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, tuple[array[int], array[float]] | None] = {}  # None: not used
        self.last_step, self.gaps = 0, StepGaps()
        self.skipped = Skipped()  # damaged lines
        self._offset = self._lines = 0
        self._inode: int | None = None

    def read(self, report: Callable[[float], None] = lambda _: None) -> None:
        """Read complete lines added since the last call.

        `report` is called now and then with the share that has been read.
        """
        if not self.path.is_file():
            return
        status = self.path.stat()
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._clear()  # a resumed run replaces the file by a shorter one
            self._inode = status.st_ino
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            for number, line in enumerate(file):
                if line.endswith(b"\n"):
                    self._offset, self._lines = self._offset + len(line), self._lines + 1
                    self._add(line)
                if number % REPORTED == 0:
                    report(self._offset / status.st_size)

    def _add(self, line: bytes) -> None:
        try:
            row = records.parse_object(line)
            step = records.checked_step(row)
            if b"[" in line or b"*" in line:  # not a short row
                row = records.unpacked({name: x for name, x in row.items() if _is_shown(name)})
        except DAMAGE as error:
            self.skipped.add(self.path, error, self._lines)
            return
        self.last_step = max(self.last_step, step)
        self.gaps.add(step)
        columns = self._columns
        for name, value in row.items():  # millions of times in a long run
            if name not in columns:
                columns[name] = (array("q"), array("d")) if _is_shown(name) else None
            column = columns[name]
            if column is not None and value.__class__ in (int, float) and abs(value) < MOST:
                column[0].append(step)
                column[1].append(value)

    @property
    def names(self) -> list[str]:
        """Columns with at least one value, in the order of the file."""
        return [name for name, column in self._columns.items() if column and column[0]]

    def get(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """step_N and value_N of a column, as copies; empty if there is no such column."""
        steps, values = self._columns.get(name) or ((), ())
        return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)

    def last(self, name: str) -> float | None:
        column = self._columns.get(name)
        return column[1][-1] if column and column[1] else None

    def between(self, prefix: str, suffix: str) -> list[str]:
        """The part between prefix and suffix of every column name that has both."""
        pattern = re.compile(f"{re.escape(prefix)}(.+){re.escape(suffix)}", re.DOTALL)
        return [match[1] for match in map(pattern.fullmatch, self.names) if match]


class OpenRun:
    """A run directory that is read, again and again while the run is training."""

    def __init__(self, path: Path, method: tuple[str, str] | None = None) -> None:
        self.path, self.files = path, RunDirectory.open(path)
        self.method = method  # the comparison's folder and the label in it
        self.config = self.files.config()
        self.corpus: Corpus | None = None  # if it was moved or changed
        self.skipped = Skipped()  # damage that readers found
        self.forget()

    def forget(self) -> None:
        """Drop the metrics, so that the next `read` starts over."""
        self.columns = Columns(self.files.metrics_file)

    def read(self, report: Callable[[float], None] = lambda _: None) -> None:
        self.columns.read(report)
        self.skipped, self.corpus = Skipped(), corpus_of(self.files)

    @property
    def parent(self) -> str:
        """Of a fork: the run that it started from, and at which step; else empty."""
        fork = records.read_record(self.path / FORK, dict)
        return f"{fork.get('parent')} at step {fork.get('step')}" if fork else ""

    def as_trained(self) -> RunConfig:
        """The settings with what makes the mixer another method: edits of the mixture, a fork."""
        edits = []
        for edit in edits_of(self.files, Skipped()):
            weights = " ".join(f"{name} {weight:.3g}" for name, weight in edit.new.items())
            edits.append(f"after {edit.step}: {weights}")
        update = {"edited": "; ".join(edits)} if edits else {}
        update |= {"forked": self.parent} if self.parent else {}
        mixer = self.config.mixer.model_copy(update=update)
        return self.config.model_copy(update={"mixer": mixer})


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a chart: a quantity over steps."""

    x: list[int]
    y: list[float]
    name: str | None = None
    index: int = 0  # of its colour and marker
    low: list[float] | None = None
    high: list[float] | None = None
    raw: "Series | None" = None  # the values before smoothing, if x and y are smoothed
    dots: bool = False
    dash: int = 0  # dash pattern, to distinguish seeds of one method


def distinct(series: Sequence[Series]) -> list[Series]:
    """Each line once: identical ones become one line that is named after all of them."""
    same: dict[str, list[Series]] = {}
    for one in series:
        drawn = (one.x, one.y, one.low, one.high, one.raw and one.raw.y)
        same.setdefault(repr(drawn), []).append(one)
    merged = []
    for own in same.values():
        names = listed([str(one.name) for one in own], NAMED)
        merged.append(replace(own[0], name=f"{names} {IDENTICAL}" if len(own) > 1 else names))
    return merged


def rounded(values: np.ndarray, digits: int = DIGITS) -> list[float]:
    """Numbers rounded to the significant digits that a chart can show, to keep pages small."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def thin(step_N: np.ndarray, value_N: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last point, and the minimum and maximum of each of `buckets` segments.

    No spike is lost, and every point that is kept was measured.
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
    """The mean over `window` points (an odd number) around each point.

    At the start, where losses fall steeply, the window narrows. At the end it is the least-squares
    line through the last `window` points: a narrower window would end in one noisy step. Straight
    lines stay straight.
    """
    half = window // 2
    index_n = np.arange(len(value_N) - half)
    half_n = np.minimum(index_n, half)
    total = np.concatenate([[0.0], np.cumsum(value_N, dtype=np.float64)])
    mean_n = (total[index_n + half_n + 1] - total[index_n - half_n]) / (2 * half_n + 1)
    line = np.polynomial.Polynomial.fit(np.arange(window), value_N[-window:], deg=1)
    return np.concatenate([mean_n, line(np.arange(half + 1, window))])


def curve(step_N: np.ndarray, value_N: np.ndarray, buckets: int, *, smooth: bool = True) -> Series:
    """The thinned values of a column; their running mean and `raw` if there are enough points."""
    steps, values = thin(step_N, value_N, buckets)
    raw = Series(x=steps.tolist(), y=rounded(values), dots=len(steps) <= FEW)
    num = len(value_N)
    window = max(1, 2 * (num // SMOOTHED_SHARE // 2) + 1)
    if not smooth or window < 3:
        return raw
    mean_N = running_mean(value_N, window)
    at = np.unique(np.linspace(0, num - 1, min(num, buckets)).round().astype(np.int64))
    return Series(x=step_N[at].tolist(), y=rounded(mean_N[at]), raw=replace(raw, dots=False))
