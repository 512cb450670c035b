"""What the figures for a paper share: sizes, colours, marks. Needs the extra `figures`."""

from collections.abc import Iterator
from typing import Any

from dograph.errors import require
from dograph.page.content import Band
from dograph.page.intervals import Estimate
from dograph.page.thinning import Curve

COLUMN, WIDE = 3.25, 6.75  # inches: one column of a paper, and both
# Those of the page in its light theme, with shapes and dashes beside them.
COLOURS = (
    "#0072b2", "#d55e00", "#007a5a", "#b0447f", "#8f6b00", "#3f8fd2", "#6d3fa0", "#5d6470",
)  # fmt: skip
MARKS = ("o", "s", "^", "D", "v")
DASHES = ("-", "--", ":", "-.")
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.fonttype": "none",
    "svg.hashsalt": "dograph",  # the same run gives the same file
    "text.parse_math": False,  # a $ in a source's name is a $
}

ASIDE = 0.1  # steps between bars that stand for the same step
Drawn = Iterator[tuple[str, Any]]  # a file's name and its matplotlib Figure


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def mark(index: int) -> str:
    return MARKS[index % len(MARKS)]


def dashes(index: int) -> str:
    return DASHES[index // len(COLOURS) % len(DASHES)]


def sheet(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes as an array of rows and columns."""
    figure = require("matplotlib.figure", "figures").Figure(
        figsize=(width, height), layout="constrained"
    )
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_curve(axis: Any, curve: Curve, index: int, label: str, *, faint: bool = True) -> None:
    """A line as smoothed, and behind it as measured."""
    line = curve.smooth or curve.raw
    if curve.smooth is not None and faint:
        axis.plot(curve.raw.x, curve.raw.y, color=colour(index), alpha=0.25, linewidth=0.5)
    marks = mark(index) if len(line.x) <= 40 and curve.smooth is None else None
    axis.plot(
        line.x, line.y, dashes(index), color=colour(index), label=label, marker=marks, markersize=3
    )


def draw_band(axis: Any, band: Band, index: int, label: str) -> None:
    """A mean over seeds with its interval, shaded; at a single step a bar, beside the others'."""
    marks = mark(index) if len(band.x) <= 40 else None
    x = [band.x[0] + ASIDE * index] if len(band.x) == 1 else band.x
    axis.plot(
        x, band.y, dashes(index), color=colour(index), label=label, marker=marks, markersize=3
    )
    if band.low is None or band.high is None:
        return
    if len(x) == 1:
        axis.vlines(x, band.low, band.high, color=colour(index), alpha=0.4, linewidth=3)
    else:
        axis.fill_between(x, band.low, band.high, color=colour(index), alpha=0.16, linewidth=0)


def draw_estimate(axis: Any, estimate: Estimate, row: float, index: int) -> None:
    """A figure with its interval, on a row."""
    if estimate.low is not None and estimate.high is not None:
        axis.plot([estimate.low, estimate.high], [row, row], color=colour(index), linewidth=1.4)
    axis.plot([estimate.value], [row], mark(index), color=colour(index), markersize=4)


def legend_of(axis: Any, most: int = 12) -> None:
    """A legend where there is more than one thing to tell apart."""
    handles, labels = axis.get_legend_handles_labels()
    if 1 < len(labels) <= most:
        axis.legend(handles, labels, ncols=1 if len(labels) <= 5 else 2)
