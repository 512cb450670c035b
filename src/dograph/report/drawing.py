"""Charts by matplotlib, one function for each kind. Needs the extra `figures`.

Sizes, colours and marks are those of a paper's columns and of the page in its light theme.
"""

import io
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dograph.errors import MissingExtraError, require
from dograph.files import write_text
from dograph.report.charts import FEW, BarChart, DotChart, LineChart, PageTable, TableCell
from dograph.report.domains import Placed, node_radius

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

ASIDE = 0.1  # steps between points that stand for the same step
GREY = "#555555"  # of lines that values are seen by
MARKED = 6  # marks of a line of many points
LETTERS = 15  # of a legend's text in an inch, at least
ACROSS = 6  # panels beside each other
MARGIN = 0.05  # around the points, of their width
LETTER = 0.06  # inches of one in the legend


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


def line_figure(chart: LineChart, height: float, *, lone: bool = False, below: str = "") -> Any:
    """A chart in one column, with its legend, and words below it."""
    figure, axes = sheet(COLUMN, height)
    draw_lines(axes[0, 0], chart, lone=lone)
    say_below(figure, below)
    legend_of(axes[0, 0])
    return figure


def say_below(figure: Any, words: str) -> None:
    if words:
        figure.supxlabel(words, fontsize="small")


def draw_lines(axis: Any, chart: LineChart, *, lone: bool = False) -> None:
    """Lines as smoothed, and behind them as measured; a lone one needs no marks to be known by.

    At a single step points lie side by side, or they would cover each other.
    """
    is_steps, steps = chart.x_name == "step", {x for one in chart.series for x in one.x}
    for one in chart.series:
        x = [where + ASIDE * one.index for where in one.x] if len(steps) == 1 else one.x
        if one.raw is not None:
            axis.plot(one.raw.x, one.raw.y, color=colour(one.index), alpha=0.25, linewidth=0.5)
        num, marked = len(x), not lone or one.dots or one.low is not None
        axis.plot(
            x,
            one.y,
            dashes(one.index),
            color=colour(one.index),
            label=one.name,
            marker=mark(one.index) if marked else None,
            markersize=3,
            markerfacecolor=face(one.index),
            # A few marks on a long line, where others have none.
            markevery=(one.index % MARKED * num // MARKED**2, num // MARKED) if num > FEW else 1,
        )
        if one.low is None or one.high is None:
            continue
        if is_steps and len(x) > 1:
            shade = {"color": colour(one.index), "alpha": 0.16, "linewidth": 0}
            axis.fill_between(x, one.low, one.high, **shade)
            continue
        bold = {"alpha": 0.4, "linewidth": 3} if is_steps else {}
        for where, low, high in zip(x, one.low, one.high, strict=True):
            if low is not None:
                axis.plot([where, where], [low, high], color=colour(one.index), **bold)
    axis.set(xlabel=chart.x_name, ylabel=chart.y_name)
    if is_steps:  # which are whole numbers
        locator = require("matplotlib.ticker", "figures").MaxNLocator
        axis.xaxis.set_major_locator(locator("auto", steps=[1, 2, 5, 10], integer=True))
    elif not chart.log_x:
        axis.locator_params(axis="x", integer=True)
    if is_steps and len(steps) == 1:
        middle = sum(steps) + ASIDE * (len(chart.series) - 1) / 2
        axis.set_xticks([middle], [f"{sum(steps):g}"])
    for which, is_log in (("x", chart.log_x), ("y", chart.log_y)):
        if is_log:  # with plain numbers: powers would be set as formulas
            axis.set(**{f"{which}scale": "log"})
            formatter = require("matplotlib.ticker", "figures").LogFormatter
            own = axis.xaxis if which == "x" else axis.yaxis
            own.set_major_formatter(formatter())
            own.set_minor_formatter(formatter())


def draw_scatter(
    axis: Any, place: Sequence[Sequence[float]], kind_N: Sequence[int], labels: Sequence[str]
) -> None:
    """Points by their kind; those of none (-1) are grey."""
    for index, label in [(-1, None), *enumerate(labels)]:
        own = [n for n, kind in enumerate(kind_N) if kind == index]
        axis.scatter(
            *([part[n] for n in own] for part in place),
            s=6,
            marker=mark(max(index, 0)),
            facecolors="#999999" if index < 0 else [face(index)],
            edgecolors="none" if index < len(COLOURS) else colour(index),
            linewidths=0 if index < len(COLOURS) else 0.5,
            label=label,
        )
    axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")


def bar_figure(chart: BarChart, words: str, height: float, *, below: str = "") -> Any:
    """Bars of parts in one column, a row each; `words` say what their length is."""
    figure, axes = sheet(COLUMN, height + 0.22 * len(chart.bars))
    axis = axes[0, 0]
    for row, (_, parts) in enumerate(chart.bars):
        left, size = 0.0, dict(parts)
        whole = (sum(size.values()) or 1) if chart.whole else 1
        for index, label in enumerate(chart.labels):
            axis.barh(
                row,
                size.get(index, 0) / whole,
                left=left,
                color=colour(index),
                hatch=hatch(index),
                edgecolor="white",
                linewidth=0,
                label=None if row else label,
            )
            left += size.get(index, 0) / whole
    axis.set(xlabel=words, **({"xlim": (0, 1)} if chart.whole else {}))
    say_below(figure, below)
    label_rows(axis, [name for name, _ in chart.bars])
    legend_of(axis)
    return figure


def draw_dots(axis: Any, chart: DotChart, names: Sequence[str] = ()) -> None:
    """Figures with their intervals, a row for each, or for each of `names`."""
    names = names or [row.name for row in chart.rows]
    for row in chart.rows:
        at = names.index(row.name)
        if row.low is not None:
            ends = [row.low, row.high]
            axis.plot(ends, [at, at], color=colour(row.index), linewidth=1.4)
        axis.plot([row.value], [at], mark(row.index), color=colour(row.index), markersize=4)
    for line in (chart.reference, chart.chance):
        if line is not None:
            axis.axvline(line, color=GREY, linewidth=0.6, linestyle="--")
    axis.set_xlabel(chart.paper_name)
    label_rows(axis, names)


def draw_heat(axis: Any, table: PageTable) -> None:
    """The changes in a table's cells, by colour and as numbers."""
    for i, row in enumerate(table.rows):
        for j, cell in enumerate(row[1:]):
            assert isinstance(cell, TableCell)
            change, shade = cell.change or 0.0, abs(cell.shade or 0.0)
            ink = "white" if shade > 0.7 else "black"
            axis.text(j, i, f"{change:+.3f}", ha="center", va="center", fontsize=6.5, color=ink)
    shades = [[getattr(cell, "shade", 0.0) for cell in row[1:]] for row in table.rows]
    axis.imshow(shades, cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto")
    axis.set_xticks(range(len(table.heads) - 1), table.heads[1:], rotation=30, ha="right")
    axis.set_yticks(range(len(table.rows)), [row[0] for row in table.rows])


def draw_graph(axis: Any, graph: Placed) -> None:
    """Discs are shares, rings weights, lines agreement."""
    circle = require("matplotlib.patches", "figures").Circle
    place = {node["domain"]: (node["x"], node["y"]) for node in graph.nodes}
    for edge in graph.edges:
        (x0, y0), (x1, y1) = place[edge["first"]], place[edge["second"]]
        style, width = "-" if edge["cosine"] > 0 else ":", 0.3 + 3 * abs(edge["cosine"])
        axis.plot([x0, x1], [y0, y1], style, color="#888888", linewidth=width, zorder=1)
    for node in graph.nodes:
        own, where = colour(node["domain"]), place[node["domain"]]
        share, weight = (node_radius(x) for x in (node["share"], node["weight"] or node["share"]))
        axis.add_patch(circle(where, share, facecolor=own, alpha=0.4, zorder=2))
        ring = circle(where, weight, fill=False, edgecolor=own, linewidth=1.4, zorder=3)
        ring.set_linestyle(dashes(node["domain"]))
        axis.add_patch(ring)
        axis.text(*where, str(node["domain"]), ha="center", va="center", zorder=4)
    axis.set(aspect="equal", title=f"step {graph.step:,}")


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
        look = {"markerscale": 1.3, "columnspacing": 1.2, "handlelength": 2.4}
        place = f"outside {where} center"
        legend = figure.legend(handles, lines, loc=place, ncols=columns, **look)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_size_inches(width, height + legend.get_window_extent().height / figure.dpi)


def picture_notes(coordinates: Path, file: Path) -> list[str]:
    """Draw what there is to draw; what to tell of it, and what to install where it cannot be."""
    found: dict[str, Any] = json.loads(coordinates.read_text(encoding="utf-8"))
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


def draw_components(found: Mapping[str, Mapping[str, Any]]) -> Any:
    """The picture of `dograph reproduce gradient-pca`, from what pca.json has of each method.

    A row of panels for each method, and more where there are many probes, on the probe's own
    components as in the paper, and one range for all: directions have length 1, so widths can be
    compared. How much of its variance two components hold stands over each.
    """
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
        kind_N = [sources.index(points["sources"][of]) for of in points["source"]]
        # An empty place after the last probe.
        for axis, probe in zip_longest(own.flat, points["coordinates"].items()):
            if probe is None:
                axis.set_axis_off()
                continue
            step, place_N2 = probe
            for index, source in enumerate(sources):
                at = [where for where, kind in zip(place_N2, kind_N, strict=True) if kind == index]
                look = {"s": 4, "marker": mark(index), "color": colour(index), "alpha": 0.7}
                places = ([where[part] for where in at] for part in (0, 1))
                axis.scatter(*places, **look, linewidths=0, label=source)
            axis.set_title(f"step {int(step):,}: {100 * sum(points['explained'][step]):.0f} %")
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
