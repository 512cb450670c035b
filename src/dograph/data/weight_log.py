"""The weight log: which mixture was in force from which step, with the counters to start from.

Entries carry cumulative counters, so any step is found by bisection and a few steps of counting;
waypoints (entries that change nothing) keep those few. The file is one JSON object a line.
"""

import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dograph.errors import RunError

WAYPOINT_STEPS = 256


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """From `step` on, stratum s is drawn with weight_S[s]; before it, drawn_S[s] draws were made.

    `base_step` and `base_drawn_S` say where the mixture last changed: quotas count from there.
    """

    step: int
    weight_S: np.ndarray
    drawn_S: np.ndarray
    base_step: int
    base_drawn_S: np.ndarray
    reason: str


class WeightLog:
    """Append-only entries in order of step, over the strata named."""

    def __init__(self, strata: list[str], entries: list[WeightEntry] | None = None) -> None:
        self.strata = strata
        self.entries = entries or []

    def find(self, step: int) -> WeightEntry:
        """The last entry at or before `step`. O(log entries)."""
        index = bisect_right(self.entries, step, key=lambda entry: entry.step)
        if index == 0:
            raise RunError(f"the weight log says nothing about step {step}; it has no entry yet")
        return self.entries[index - 1]

    def append(self, entry: WeightEntry) -> None:
        if self.entries and entry.step < self.entries[-1].step:
            raise RunError(
                f"the weight log already reaches step {self.entries[-1].step}; "
                f"an entry for step {entry.step} would rewrite the past"
            )
        if self.entries and entry.step == self.entries[-1].step:
            self.entries.pop()  # two changes before the same step: the later one holds
        self.entries.append(entry)

    def cut(self, step: int) -> "WeightLog":
        """The log as it stood when `step` steps had been made."""
        return WeightLog(self.strata, [entry for entry in self.entries if entry.step <= step])

    def dump(self) -> str:
        return "".join(json.dumps(self._row(entry)) + "\n" for entry in self.entries)

    def _row(self, entry: WeightEntry) -> dict[str, object]:
        def by_name(values: np.ndarray) -> dict[str, float | int]:
            return dict(zip(self.strata, values.tolist(), strict=True))

        return {
            "step": entry.step,
            "reason": entry.reason,
            "weight": by_name(entry.weight_S),
            "drawn": by_name(entry.drawn_S),
            "base_step": entry.base_step,
            "base_drawn": by_name(entry.base_drawn_S),
        }

    @classmethod
    def load(cls, path: Path, strata: list[str]) -> "WeightLog":
        entries = []
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            row = json.loads(line)
            if list(row["weight"]) != strata:
                raise RunError(
                    f"{path} line {number} names the strata {list(row['weight'])}, but the corpus "
                    f"has {strata}; the run was made with another corpus"
                )
            entries.append(
                WeightEntry(
                    step=row["step"],
                    weight_S=np.array(list(row["weight"].values()), dtype=np.float64),
                    drawn_S=np.array(list(row["drawn"].values()), dtype=np.int64),
                    base_step=row["base_step"],
                    base_drawn_S=np.array(list(row["base_drawn"].values()), dtype=np.int64),
                    reason=row["reason"],
                )
            )
        return cls(strata, entries)
