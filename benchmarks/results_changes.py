"""Compare the figures in benchmarks/results with those of the last commit.

    python -m benchmarks.results_changes      also in `make results`

A figure is a number with its interval. It got worse, or better, if the two intervals do not
overlap. Lower is better, except for rates and where a benchmark wants "at least" some value. On
another machine only ratios are judged.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.measure import RESULTS

RATES = ("per_second", "speed", "mfu", "correlation")  # higher is better
RATIOS = ("_over_", "ratio")  # which carry over to another machine
Judgement = Literal["worse", "better", "", "another machine"]


@dataclass(frozen=True)
class Figure:
    """A median with its interval, as the benchmarks write it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Change:
    """A figure that differs from the committed one."""

    file: str
    name: str
    old: Figure
    new: Figure
    judgement: Judgement

    def __str__(self) -> str:
        mark = {"worse": "   WORSE", "better": "   better"}.get(self.judgement, "")
        place = "   (another machine)" if self.judgement == "another machine" else ""
        return f"{self.file}: {self.name}: {self.old} -> {self.new}{mark}{place}"


def figures(value: Any, path: str = "") -> Iterator[tuple[str, Figure]]:
    """Every figure of a record with its place in it, such as arms/full/ratio."""
    if not isinstance(value, Mapping):
        return
    ends = [value.get(name) for name in ("median", "low", "high")]
    if all(isinstance(end, float | int) for end in ends):
        yield path, Figure(*(float(end) for end in ends if end is not None))
        return
    for name, part in value.items():
        yield from figures(part, f"{path}/{name}" if path else str(name))


def changes(file: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The figures that both records have and that differ."""
    before, found = dict(figures(old)), []
    target = (new.get("result") or {}).get("target", "")
    at_least = "at least" in str(target)
    same_machine = machine_of(old) == machine_of(new)
    for name, figure in figures(new):
        if name not in before or before[name] == figure:
            continue
        higher_is_better = at_least or any(word in name for word in RATES)
        judgement = judged(before[name], figure, higher_is_better=higher_is_better)
        if not same_machine and not any(word in name for word in RATIOS):
            judgement = "another machine"
        found.append(Change(file, name, before[name], figure, judgement))
    return found


def judged(old: Figure, new: Figure, *, higher_is_better: bool) -> Judgement:
    above, below = new.low > old.high, new.high < old.low
    worse, better = (below, above) if higher_is_better else (above, below)
    return "worse" if worse else "better" if better else ""


def machine_of(record: Mapping[str, Any]) -> tuple[Any, Any]:
    """The processor and the GPUs, as benchmarks and `dograph bench` write them."""
    machine = record.get("machine") or record.get("device") or {}
    return machine.get("processor") or machine.get("name"), machine.get("gpus")


def committed_text(path: Path) -> str | None:
    """The file as the last commit has it; None if it has none."""
    command = ["git", "show", f"HEAD:./{path.name}"]
    shown = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    return shown.stdout if shown.returncode == 0 else None


def all_changes(folder: Path = RESULTS) -> list[Change]:
    """The changes of every file that differs from its committed state."""
    found: list[Change] = []
    for path in sorted(folder.glob("*.json")):
        old, new = committed_text(path), path.read_text()
        if old is not None and old != new:
            found += changes(path.name, json.loads(old), json.loads(new))
    return found


def report(found: list[Change]) -> list[str]:
    """A line for each change, those that got worse last; nothing if nothing changed."""
    if not found:
        return []
    worse = sum(change.judgement == "worse" for change in found)
    told = sorted(found, key=lambda change: change.judgement == "worse")
    end = f"{len(found)} figures differ from the last commit, {worse} got worse"
    return [*map(str, told), end]


if __name__ == "__main__":
    for line in report(all_changes()):
        print(line)
