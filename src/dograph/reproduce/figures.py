"""Numbers over seeds: a mean with its 95 % t interval, and differences taken seed by seed.

Intervals end where their quantity does (analyses.bounded): no loss below 0, no accuracy above 100.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dograph.compare.findings import Findings
from dograph.eval.bounded import ABOVE_ZERO, ANY, Range, cut
from dograph.stats import Difference, Interval, paired_difference

Values = Mapping[str, Mapping[int, float]]  # of each method, by seed


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds; no interval of one seed."""

    mean: float
    seeds: int
    interval: Interval | None
    simultaneous: Interval | None = None  # holds at once with all others of its family

    @classmethod
    def of(cls, found: Difference, ends: Range) -> "Figure":
        own, simultaneous = (cut(one, ends) for one in (found.interval, found.simultaneous))
        return cls(found.mean, found.num_seeds, own, simultaneous)

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def level(self, shape: str) -> str:
        """`5.1234 ± 0.0034`, half of the interval; both of its ends where one is cut off.

        A dash of no seeds.
        """
        if self.interval is None:
            return self.plain(shape)
        below, above = self.mean - self.interval.low, self.interval.high - self.mean
        if not math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-9):
            return f"{self.plain(shape)} {bounds(self.interval, shape)}"
        return f"{self.plain(shape)} ± {above:{shape}}"

    def change(self, shape: str) -> str:
        """`-0.0123 [-0.0150,-0.0096]`."""
        return f"{self.plain(f'+{shape}')} {bounds(self.interval, f'+{shape}')}".strip()

    def plain(self, shape: str) -> str:
        return f"{self.mean:{shape}}" if self.seeds else "-"


def bounds(interval: Interval | None, shape: str, gap: str = "") -> str:
    if interval is None:
        return ""
    return f"[{interval.low:{shape}},{gap}{interval.high:{shape}}]"


def level(values: Values, label: str, ends: Range = ABOVE_ZERO) -> Figure:
    """Of one method."""
    return Figure.of(paired_difference(list(values.get(label, {}).values())), ends)


def less(values: Values, label: str, other: str, family: int = 1, *, ends: Range = ANY) -> Figure:
    """A method less another, over the seeds that both have."""
    return _paired(values, label, other, lambda a, b: a - b, family, ends)


def more_per_cent(values: Values, label: str, other: str) -> Figure:
    """By how many per cent a method is above another, pair by pair."""
    return _paired(values, label, other, lambda a, b: 100 * (a / b - 1), 1, (-100.0, math.inf))


def _paired(
    values: Values,
    label: str,
    other: str,
    of: Callable[[float, float], float],
    family: int,
    ends: Range,
) -> Figure:
    own, theirs = values.get(label, {}), values.get(other, {})
    pairs = [of(own[seed], theirs[seed]) for seed in own if seed in theirs]
    return Figure.of(paired_difference(pairs, family), ends)


def values_of(findings: Findings, read: Callable[[Mapping[str, Any]], float]) -> Values:
    """What `read` makes of every cell that was finished."""
    found: dict[str, dict[int, float]] = {m["label"]: {} for m in findings["methods"]}
    for cell in findings["cells"]:
        if cell["error"] is None:
            found[cell["method"]][cell["seed"]] = read(cell)
    return found


def losses(findings: Findings, name: str = "mean") -> Values:
    """Validation loss in nats: mean, natural, worst or gap."""
    return values_of(findings, lambda cell: float(cell["summaries"][name]))


def present(findings: Findings, labels: Sequence[str]) -> list[str]:
    """Those of the labels that a run was finished for."""
    finished = {cell["method"] for cell in findings["cells"] if cell["error"] is None}
    return [label for label in labels if label in finished]
