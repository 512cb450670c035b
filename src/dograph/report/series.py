"""metrics.jsonl by column, read on from where the last look ended.

Shapes: N rows that have the column.
"""

import json
from array import array
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import numpy as np

_NUMBERS = (int, float)
# Losses under another name, and what no chart shows.
_UNUSED = ("/ppl", "/bits_per_byte", "/samples", "/gradient_norm", "/mean_norm")


def _is_shown(name: str) -> bool:
    return name != "step" and not name.endswith(_UNUSED)


@dataclass(slots=True)
class Column:
    """One quantity: the steps that have it, and its values; what is not finite is left out."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """step_N and value_N, as copies."""
        return np.array(self.steps, dtype=np.int64), np.array(self.values, dtype=np.float64)


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
                known[name] = Column() if _is_shown(name) else None
            column = known[name]
            if column is not None and value.__class__ in _NUMBERS and isfinite(value):
                column.steps.append(step)
                column.values.append(value)

    @property
    def by_name(self) -> dict[str, Column]:
        return {name: column for name, column in self._known.items() if column and column.steps}

    def __contains__(self, name: str) -> bool:
        column = self._known.get(name)
        return column is not None and len(column.steps) > 0

    def get(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """step_N and value_N of a column; empty where there is none."""
        return (self._known.get(name) or Column()).arrays()

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
