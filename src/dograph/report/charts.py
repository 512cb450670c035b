"""Charts, tables and texts as plain records: each chart is described once, here.

The page's script has one function for each kind of record, and `figures` has one for each kind of
chart. A record becomes JSON with the name of its class; fields that are None or False are left out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from dograph.report.series import Series
from dograph.stats import Estimate, Interval

TextStyle = Literal["soft", "claim", "heading", "command"]
GroupStyle = Literal["list", "soft list", "warnings", "facts", "samples", "group", "grid", "folded"]
NumberFormat = Literal["number", "fixed"]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Quantities over steps."""

    title: str
    series: list[Series]
    note: str | None = None
    y_name: str = ""  # only in figures; on the page the note says it
    zero: bool = False  # the y axis starts at zero
    faint: bool = False  # the page also draws the raw values


@dataclass(frozen=True, slots=True)
class DotRow:
    name: str
    index: int
    difference: Estimate  # over seeds
    over_text: Interval | None = None  # over validation text


@dataclass(frozen=True, slots=True)
class DotChart:
    """Differences with their intervals, one row each, and a line at zero."""

    title: str
    note: str
    rows: list[DotRow]
    paper_name: str  # of the x axis in figures, which have no title


@dataclass(frozen=True, slots=True)
class ScatterChart:
    """The rows of every probe in two dimensions, coloured by source or by domain."""

    id: str
    title: str
    note: str
    labels: list[str]
    group: str  # "domain" or "cluster"
    by_source: bool = False


@dataclass(frozen=True, slots=True)
class TableCell:
    """A number and its format; the interval of an estimate is below it."""

    value: float | Estimate | None
    write: NumberFormat = "number"
    digits: int = 4


Entry = TableCell | str | float | None


@dataclass(frozen=True, slots=True)
class PageTable:
    name: str  # for screen readers
    heads: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    left: Sequence[str] = ()  # heads of columns of text
    summaries: int = 0  # summary rows at the end
    tall: bool = False  # scrolls


@dataclass(frozen=True, slots=True)
class PageBlock:
    """A text, a list of texts, facts (names and values), texts of samples, or items.

    Items are one below the other (group), side by side (grid), or hidden until opened (folded).
    """

    style: TextStyle | GroupStyle
    content: Any
    title: str | None = None  # of a folded block
    id: str | None = None


@dataclass(frozen=True, slots=True)
class LossCharts:
    """Loss charts with menus: all sources or one, single runs or methods."""

    names: list[str]  # sources
    view: Literal["methods", "runs"]  # selected at first
    charts: list[tuple[str, str | None, LineChart]]  # source or "total", view, chart


# One item of a page section; items are shown from top to bottom.
PageItem = PageBlock | PageTable | LineChart | DotChart | LossCharts


def as_json(value: Any) -> str:
    """ASCII JSON; a number that is not finite is an error."""
    return json.dumps(value, default=_fields_of, allow_nan=False, separators=(",", ":"))


def _fields_of(value: Any) -> dict[str, Any]:
    assert is_dataclass(value)
    values = {part.name: getattr(value, part.name) for part in fields(value)}
    values = {name: own for name, own in values.items() if own is not None and own is not False}
    return {"kind": type(value).__name__, **values} if isinstance(value, PageItem) else values
