"""What the figures for a paper share: sizes, colours, marks. Needs the extra `figures`."""

import io
import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dograph.errors import MissingExtraError, require
from dograph.files import write_text
from dograph.report.content import Band
from dograph.report.series import Curve
from dograph.stats import Estimate

COLUMN, WIDE = 3.25, 6.75  # inches: one column of a paper, and both
# Those of the page in its light theme, with shapes and dashes beside them.
COLOURS = (
    "#0072b2", "#d55e00", "#007a5a", "#b0447f", "#8f6b00", "#3f8fd2", "#6d3fa0", "#5d6470",
)  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P", "X")  # their number shares no factor with that of COLOURS
DASHES = ("-", "--", ":", "-.")
# Of areas, which have no mark: every four series a further one, since to some eyes the second
# four colours are those of the first.
HATCHES = ("", "/////", ".....", "xxxxx", "-----")
PALER = 0.55  # of the colour in a mark's face, after each round of COLOURS
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
FEW, MARKED = 40, 6  # points of a line that all have marks, and marks of a longer one
LETTERS = 15  # of a legend's text in an inch, at least
Drawn = Iterator[tuple[str, Any]]  # a file's name and its matplotlib Figure


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def mark(index: int) -> str:
    return MARKS[index % len(MARKS)]


def dashes(index: int) -> str:
    return DASHES[index // len(COLOURS) % len(DASHES)]


def hatch(index: int) -> str:
    return HATCHES[index // 4 % len(HATCHES)]


def face(index: int) -> tuple[float, float, float]:
    """The inside of a mark: its colour, and paler each time the colours begin anew."""
    own = require("matplotlib.colors", "figures").to_rgb(colour(index))
    kept = PALER ** (index // len(COLOURS))
    red, green, blue = (1 - kept * (1 - part) for part in own)
    return red, green, blue


def sheet(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes as an array of rows and columns."""
    figure = require("matplotlib.figure", "figures").Figure(
        figsize=(width, height), layout="constrained"
    )
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_curve(
    axis: Any, curve: Curve, index: int, label: str, *, faint: bool = True, lone: bool = False
) -> None:
    """A line as smoothed, and behind it as measured; a lone one needs no marks to be known by."""
    line = curve.smooth or curve.raw
    if curve.smooth is not None and faint:
        axis.plot(curve.raw.x, curve.raw.y, color=colour(index), alpha=0.25, linewidth=0.5)
    is_marked = not lone or (curve.smooth is None and len(line.x) <= FEW)
    draw_line(axis, line.x, line.y, index, label, marked=is_marked)


def draw_line(
    axis: Any,
    x: Sequence[float],
    y: Sequence[float],
    index: int,
    label: str,
    *,
    marked: bool = True,
) -> None:
    """A line with its colour, dashes and marks: a few on a long one, where others have none."""
    every = (index % MARKED * len(x) // MARKED**2, len(x) // MARKED) if len(x) > FEW else 1
    axis.plot(
        x,
        y,
        dashes(index),
        color=colour(index),
        label=label,
        marker=mark(index) if marked else None,
        markersize=3,
        markerfacecolor=face(index),
        markevery=every,
    )


def draw_band(axis: Any, band: Band, index: int, label: str) -> None:
    """A mean over seeds with its interval, shaded; at a single step a bar, beside the others'."""
    x = [band.x[0] + ASIDE * index] if len(band.x) == 1 else band.x
    draw_line(axis, x, band.y, index, label)
    if band.low is None or band.high is None:
        return
    if len(x) == 1:
        axis.vlines(x, band.low, band.high, color=colour(index), alpha=0.4, linewidth=3)
    else:
        axis.fill_between(x, band.low, band.high, color=colour(index), alpha=0.16, linewidth=0)


def draw_points(
    axis: Any, x: Sequence[float], y: Sequence[float], index: int, label: str | None
) -> None:
    """Points of one kind; those of none (index -1) are grey."""
    axis.scatter(
        x,
        y,
        s=6,
        marker=mark(max(index, 0)),
        facecolors="#999999" if index < 0 else [face(index)],
        edgecolors="none" if index < len(COLOURS) else colour(index),
        linewidths=0 if index < len(COLOURS) else 0.5,
        label=label,
    )


def draw_bar(axis: Any, row: int, parts: Iterable[tuple[int, str, float]]) -> None:
    """A bar of parts (index, label, width); a label that the axis has already is told once."""
    left = 0.0
    for index, label, width in parts:
        axis.barh(
            row,
            width,
            left=left,
            color=colour(index),
            hatch=hatch(index),
            edgecolor="white",
            linewidth=0,
            label=None if label in axis.get_legend_handles_labels()[1] else label,
        )
        left += width


def draw_estimate(
    axis: Any, estimate: Estimate, row: float, index: int, *, scale: float = 1
) -> None:
    """A figure with its interval, on a row."""
    if estimate.interval is not None:
        ends = [scale * estimate.interval.low, scale * estimate.interval.high]
        axis.plot(ends, [row, row], color=colour(index), linewidth=1.4)
    axis.plot([scale * estimate.value], [row], mark(index), color=colour(index), markersize=4)


def label_steps(axis: Any, title: str = "") -> None:
    """Steps along the axis, which are whole numbers, and upwards what `title` says."""
    axis.set(xlabel="step", ylabel=title)
    locator = require("matplotlib.ticker", "figures").MaxNLocator
    axis.xaxis.set_major_locator(locator("auto", steps=[1, 2, 5, 10], integer=True))


def label_log(axis: Any, which: str) -> None:
    """A logarithmic axis (x, y) whose numbers are plain: powers would be set as formulas."""
    axis.set(**{f"{which}scale": "log"})
    formatter = require("matplotlib.ticker", "figures").LogFormatter
    own = axis.xaxis if which == "x" else axis.yaxis
    own.set_major_formatter(formatter())
    own.set_minor_formatter(formatter())


def label_rows(axis: Any, names: Sequence[str]) -> None:
    """A row a name, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)


def legend_of(axis: Any, where: str = "upper") -> None:
    """A legend outside the axes (upper, lower), where there is more than one thing to tell apart.

    It has as many columns as the figure is wide enough for, and the figure grows by its height:
    however many names there are, the axes stay as large as they were.
    """
    figure = axis.figure
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) < 2:
        return
    width, height = figure.get_size_inches()
    lines = [textwrap.fill(label, int(LETTERS * width)) for label in labels]
    for columns in range(min(len(labels), 6), 0, -1):
        legend = figure.legend(
            handles,
            lines,
            loc=f"outside {where} center",
            ncols=columns,
            markerscale=1.3,
            columnspacing=1.2,
            handlelength=2.4,
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_size_inches(width, height + legend.get_window_extent().height / figure.dpi)


# The picture of `dograph reproduce gradient-pca`: how the rows of sources lie, probe by probe.
#
# A panel for each probe and method, on the probe's own components as in the paper, and one range
# for all: directions have length 1, so widths can be compared. How much of its variance two
# components hold stands over each. Colours and marks are those of the page and of `dograph
# figures`.


ACROSS = 6  # panels beside each other
MARGIN = 0.05  # around the points, of their width
LETTER = 0.06  # inches of one in the legend
Points = Mapping[str, Any]  # what pca.json has of one method


def picture_notes(coordinates: Path, file: Path) -> list[str]:
    """Draw what there is to draw; what to tell of it, and what to install where it cannot be."""
    found: dict[str, Points] = json.loads(coordinates.read_text(encoding="utf-8"))
    if not found:
        return []
    try:
        matplotlib: Any = require("matplotlib", "figures")
    except MissingExtraError as error:
        return [f"no picture of the coordinates: {error}"]
    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        # Without a date, the same runs give the same file.
        draw_components(found).savefig(text, format="svg", metadata={"Date": None})
    write_text(file, text.getvalue())
    return [f"the first two components of every probe row, by source: {file}"]


def draw_components(found: Mapping[str, Points]) -> Any:
    """A figure with a row of panels for each method, and more where there are many probes."""
    sources = list(dict.fromkeys(name for points in found.values() for name in points["sources"]))
    across = min(ACROSS, max(len(points["coordinates"]) for points in found.values()))
    rows_of = {name: math.ceil(len(p["coordinates"]) / across) for name, p in found.items()}
    beside = min(len(sources), int(WIDE / (0.4 + LETTER * max(map(len, sources)))) or 1)
    rows, lines = sum(rows_of.values()), math.ceil(len(sources) / beside)
    figure, axes = sheet(WIDE, 1.35 * rows + 0.2 * lines + 0.4, rows, across)
    row = 0
    for name, points in found.items():
        own = axes[row : row + rows_of[name]]
        row += rows_of[name]
        for line in own:
            line[0].set_ylabel(name)
        # An empty place after the last probe.
        for axis, probe in zip_longest(own.flat, points["coordinates"].items()):
            if probe is None:
                axis.set_axis_off()
            else:
                step, coordinates = probe
                _panel(axis, points, step, coordinates, sources)
    # One square for all panels, with every point in it; numbers at the outer ones alone.
    every = [row for p in found.values() for probe in p["coordinates"].values() for row in probe]
    low, high = ([end(row[part] for row in every) for part in (0, 1)] for end in (min, max))
    reach = (0.5 + MARGIN) * max(high[0] - low[0], high[1] - low[1]) or 1.0
    middles = [(low[part] + high[part]) / 2 for part in (0, 1)]
    x, y = ((middle - reach, middle + reach) for middle in middles)
    for axis in axes.flat:
        axis.set(xlim=x, ylim=y, aspect="equal")
        axis.label_outer(remove_inner_ticks=True)
    told = "first component of each probe, upwards the second; %: of its variance on both"
    figure.supxlabel(told, fontsize=7)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=beside, markerscale=2)
    return figure


def _panel(axis: Any, points: Points, step: str, coordinates: Any, sources: list[str]) -> None:
    """The rows of one probe, by source."""
    for index, source in enumerate(sources):
        own = [
            row
            for row, of in zip(coordinates, points["source"], strict=True)
            if points["sources"][of] == source
        ]
        axis.scatter(
            [row[0] for row in own],
            [row[1] for row in own],
            s=4,
            marker=mark(index),
            color=colour(index),
            label=source,
            linewidths=0,
            alpha=0.7,
        )
    axis.set_title(f"step {int(step):,}: {100 * sum(points['explained'][step]):.0f} %")
