"""Charts, tables and words as plain records: a chart is described once, here.

The page's script has one function for each kind of record, and `drawing` one for each kind of
chart. Records become JSON under the name of their kind, without what is None or False.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from dograph.report.series import Curve, Line
from dograph.stats import Estimate

FEW = 40  # points of a line that all have dots
Written = Literal["number", "signed", "fixed", "whole", "seconds", "bytes"]


class Shown:
    """Something that the page shows, below what comes before it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points, perhaps an interval around each, and what was measured behind it."""

    name: str
    index: int  # of its colour and its mark
    x: list[int]
    y: list[float]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    raw: Line | None = None  # where x and y are smoothed
    dots: bool = False
    turn: int = 0  # which seed of its method, told apart by dashes

    @classmethod
    def of(cls, curve: Curve, name: str, index: int, turn: int = 0) -> "Series":
        line, raw = curve.smooth or curve.raw, curve.raw if curve.smooth else None
        dots = raw is None and len(line.x) <= FEW
        return cls(name, index, line.x, line.y, raw=raw, dots=dots, turn=turn)

    @classmethod
    def of_points(cls, name: str, index: int, points: Sequence[tuple[int, Estimate]]) -> "Series":
        found = [one for _, one in points]
        low, high = [one.low for one in found], [one.high for one in found]
        x, y = [x for x, _ in points], [one.value for one in found]
        return cls(name, index, x, y, low, high, dots=True)


@dataclass(frozen=True, slots=True)
class LineChart(Shown):
    title: str
    series: list[Series]
    note: str | None = None
    x_name: str = "step"
    y_name: str = ""  # for paper; the page's notes say it
    height: int = 250  # pixels
    log_x: bool = False
    log_y: bool = False
    zero: bool = False  # the axis begins there
    faint: bool = False  # the page draws what was measured, too


@dataclass(frozen=True, slots=True)
class DotRow:
    name: str
    index: int
    value: float
    low: float | None = None
    high: float | None = None
    text: tuple[float, float] | None = None  # its interval over validation text


@dataclass(frozen=True, slots=True)
class DotChart(Shown):
    """Figures with their intervals, one below the other."""

    title: str
    note: str
    rows: list[DotRow]
    write: Written = "fixed"
    digits: int = 4
    x_name: str = ""
    paper_name: str = ""  # of the same axis, where no title says what it is of
    reference: float | None = None  # a line through all rows
    chance: float | None = None  # a mark in every row


@dataclass(frozen=True, slots=True)
class BarChart(Shown):
    """Bars of parts, each part a label's index and its size."""

    title: str
    labels: list[str]
    bars: list[tuple[str, list[tuple[int, float]]]]
    note: str | None = None
    unit: str = ""
    whole: bool = False  # all bars are of 100 %, and their labels are explained elsewhere


@dataclass(frozen=True, slots=True)
class ScatterChart(Shown):
    """The rows of every probe in the plane, coloured by source or by what they are in."""

    id: str
    title: str
    note: str
    labels: list[str]
    group: str  # what the rows are in: domains or clusters
    by_source: bool = False


@dataclass(frozen=True, slots=True)
class TableCell:
    """A number and how it is written, with its interval, a change or words below it."""

    value: str | float | None
    write: Written = "number"
    digits: int = 4
    low: float | None = None
    high: float | None = None
    note: str | None = None
    left: bool = False
    change: float | None = None  # to the baseline's
    shade: float | None = None  # the change, as a share of the largest
    claimed: bool = False

    @classmethod
    def of(cls, told: Estimate | None, write: Written = "number", digits: int = 4) -> "TableCell":
        """An estimate with its interval; an empty cell where there is none."""
        return cls(told.value, write, digits, told.low, told.high) if told else cls(None)


Entry = TableCell | str | float | None


@dataclass(frozen=True, slots=True)
class PageTable(Shown):
    name: str  # for those who hear it
    heads: Sequence[str | TableCell]
    rows: Sequence[Sequence[Entry]]
    summaries: int = 0  # rows at the end that sum up the others
    tall: bool = False


@dataclass(frozen=True, slots=True)
class PageText(Shown):
    text: str
    style: Literal["soft", "claim", "heading", "command"] = "soft"


@dataclass(frozen=True, slots=True)
class PageList(Shown):
    items: list[str]
    style: Literal["soft", "plain", "warnings"] = "soft"


@dataclass(frozen=True, slots=True)
class PageFacts(Shown):
    rows: list[tuple[str, str | TableCell]]


@dataclass(frozen=True, slots=True)
class LegendKeys(Shown):
    names: list[str]


@dataclass(frozen=True, slots=True)
class BlockGroup(Shown):
    blocks: Sequence[Shown]
    grid: bool = False  # beside each other, where there is room


@dataclass(frozen=True, slots=True)
class Folded(Shown):
    """Opened by whoever wants it."""

    title: str
    blocks: Sequence[Shown]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class LossCharts(Shown):
    """Charts to choose from: of all sources or one, of runs or of methods."""

    names: list[str]  # sources
    view: Literal["methods", "runs"]  # at first
    steps: int
    charts: list[tuple[str, str | None, LineChart]]  # whose loss ("total"), and in which view


def as_json(value: Any) -> str:
    """ASCII JSON; a number that is not finite would be a defect and is refused."""
    return json.dumps(value, default=_fields_of, allow_nan=False, separators=(",", ":"))


def _fields_of(value: Any) -> dict[str, Any]:
    assert is_dataclass(value)
    found = {part.name: getattr(value, part.name) for part in fields(value)}
    found = {name: own for name, own in found.items() if own is not None and own is not False}
    return {"kind": type(value).__name__, **found} if isinstance(value, Shown) else found
