"""The page's charts as files for a paper: PDF and SVG in which text stays text, and PNG.

One function draws each kind of chart with matplotlib (extra `figures`). Sizes are those of a
paper's columns; colours are those of the page's light theme.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, require
from dograph.files import write_bytes
from dograph.progress import counted
from dograph.report import sections
from dograph.report.charts import LineChart
from dograph.report.collect import Comparison, PageData, collect, open_subjects
from dograph.report.domains import DomainsView, PlacedGraph, node_radius
from dograph.report.one_run import RunData
from dograph.report.render import asset
from dograph.report.series import FEW, IDENTICAL

COLUMN, WIDE = 3.25, 6.75  # inches: one column of a paper, and two
# The colours of the page's light theme, by their names in page.css, which alone defines them.
PAGE = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}),", asset("page.css")))
COLOURS: tuple[str, ...] = tuple(PAGE[f"c{index}"] for index in range(8))
MARKS = ("o", "s", "^", "D", "v", "P", "X")  # seven, so that marks and eight colours vary together
DASHES = ("-", "--", ":", "-.")
PALER = 0.55  # strength of a mark's face colour, each time the colours repeat
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "dograph",  # the same run gives the same file
    "text.parse_math": False,  # a $ in a source's name is a $
}
ASIDE = 0.02  # distance of points at the same single step, as a fraction of all steps
MARKED = 6  # marks on a line of many points
LETTERS = 15  # that fit into an inch of a legend
PROBES_ACROSS = 6  # panels in a row
MARGIN = 0.05  # around the points, as a fraction of their range
DPI = 300  # of the PNG files
# Metadata by format: without a date, the same runs give the same file.
FORMATS = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
Figures = Iterator[tuple[str, Any]]  # a file name and its matplotlib Figure


def write_figures(paths: Sequence[Path], out: Path) -> list[str]:
    """Write every figure that these runs have data for; return the names without endings."""
    matplotlib: Any = require("matplotlib", "figures")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--figures {out} is a file; give a folder")
    data = collect(open_subjects(paths))
    out.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    with matplotlib.rc_context(STYLE), counted("") as display:
        for name, figure in drawn(data):
            display.update(len(names), name, stage="drawing")
            names.append(save(name, figure, out))
    return names


def save(name: str, figure: Any, out: Path) -> str:
    """Write a figure in every format."""
    for form, metadata in FORMATS.items():
        content = io.BytesIO()  # matplotlib hides the error of a full disk behind one of its own
        figure.savefig(content, format=form, dpi=DPI, metadata=metadata)
        write_bytes(out / f"{name}.{form}", content.getvalue())
    return name


def drawn(data: PageData) -> Figures:
    """Names and figures. With several runs, the figures of one run start with its name.

    Of runs that differ only in their seed, the first has figures of its own.
    """
    yield from draw_curves(data)
    first = {runs[0] for runs in data.groups.values()}
    for run in (run for run in data.runs if run.name in first):
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
        yield from draw_run(run, "" if len(data.runs) == 1 else f"{stem}-")
    for k, comparison in enumerate(data.comparisons):
        yield from draw_comparison(comparison, f"comparison{k + 1 if k else ''}-")


def draw_curves(data: PageData) -> Figures:
    """Training and validation loss: methods with intervals, or the single run."""
    for name, metric in (("loss-train", "train/loss_nats"), ("loss-valid", "valid/mean/loss_nats")):
        charts = sections.loss_charts(data, metric, "")
        chart = charts.get("methods") or charts[None]
        if chart.series:
            yield name, line_figure(chart, lone=len(data.groups) == 1, steps=data.steps)


def draw_run(run: RunData, stem: str) -> Figures:
    """Losses by source, probes, weights of domains, and the last graph."""
    chart, domains = sections.source_chart(run), run.domains
    if chart.series:
        yield f"{stem}sources", line_figure(chart, steps=run.steps)
    if domains is None:
        return
    if domains.probes:
        yield f"{stem}pca", _draw_probes(domains)
    for weights in (chart for chart in domains.lines[:1] if chart.series):
        smoothed = replace(weights, series=[replace(one, raw=None) for one in weights.series])
        yield f"{stem}weights", line_figure(smoothed)
    if domains.graphs:
        figure, axes = sheet(COLUMN, COLUMN)
        draw_graph(axes[0, 0], domains.graphs[-1], domains.names)
        if domains.numbering:
            figure.supxlabel(domains.numbering, fontsize="small")
        yield f"{stem}graph", figure


def _draw_probes(domains: DomainsView) -> Any:
    """The same rows at several steps, coloured by source above and by domain below."""
    chosen = domains.probes[-PROBES_ACROSS:]
    figure, axes = sheet(WIDE, 2.6, 2, len(chosen))
    for row, chart in zip(axes, domains.scatters, strict=True):
        for axis, probe in zip(row, chosen, strict=True):
            kind_N = domains.source_N if chart.by_source else probe.label
            draw_scatter(axis, probe.place, kind_N, chart.labels)
            axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
            if chart.by_source:
                axis.set_title(f"step {probe.step:,}")
        row[0].set_ylabel("by source" if chart.by_source else f"by {chart.group}")
        add_legend(row[-1], "upper" if chart.by_source else "lower")
    return figure


def draw_comparison(one: Comparison, stem: str) -> Figures:
    """Paired differences with their intervals, one row each, the first at the top."""
    chart = sections.difference_chart(one, "mean")
    if not chart.rows:
        return
    figure, ((axis,),) = sheet(COLUMN, 0.85 + 0.25 * len(chart.rows))
    for at, row in enumerate(chart.rows):
        own, mean = colour(row.index), row.difference
        if mean.interval is not None:
            axis.plot([mean.low, mean.high], [at, at], color=own, linewidth=1.4)
        axis.plot([mean.value], [at], mark(row.index), color=own, markersize=4)
    axis.axvline(0, color=PAGE["soft"], linewidth=0.6, linestyle="--")
    axis.set_xlabel(chart.paper_name)
    axis.set_yticks(range(len(chart.rows)), [row.name for row in chart.rows])
    axis.set_ylim(len(chart.rows) - 0.4, -0.6)
    axis.locator_params(axis="x", nbins=5)
    yield f"{stem}differences", figure


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def mark(index: int) -> str:
    return MARKS[index % len(MARKS)]


def dashes(index: int) -> str:
    return DASHES[index // len(COLOURS) % len(DASHES)]


def face(index: int) -> tuple[float, float, float]:
    """The face colour of a mark, paler each time the colours repeat."""
    own = require("matplotlib.colors", "figures").to_rgb(colour(index))
    kept = PALER ** (index // len(COLOURS))
    red, green, blue = (1 - kept * (1 - part) for part in own)
    return red, green, blue


def sheet(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure, and its axes as an array of rows and columns."""
    figure = require("matplotlib.figure", "figures").Figure((width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def line_figure(chart: LineChart, *, lone: bool = False, steps: int = 1) -> Any:
    """Smoothed lines, and raw ones behind them, in one column; a lone line needs no marks.

    The x axis has at least `steps`. At a single step, points are drawn side by side so that they
    do not cover each other.
    """
    figure, ((axis,),) = sheet(COLUMN, 2.3)
    last = max([steps, *(x for one in chart.series for x in one.x)])
    aside = ASIDE * last if all(len(one.x) == 1 for one in chart.series) else 0.0
    for k, one in enumerate(chart.series, start=1):
        x = [where - aside * (len(chart.series) - k) for where in one.x]
        own, num = colour(one.index), len(x)
        if one.raw is not None:
            axis.plot(one.raw.x, one.raw.y, color=own, alpha=0.25, linewidth=0.5)
        has_marks = not lone or one.dots or one.low is not None
        axis.plot(
            x,
            one.y,
            dashes(one.index),
            color=own,
            label=one.name,
            marker=mark(one.index) if has_marks else None,
            markersize=3,
            markerfacecolor=face(one.index),
            # A few marks on a long line, at different places for each series.
            markevery=(one.index % MARKED * num // MARKED**2, num // MARKED) if num > FEW else 1,
        )
        if one.low is None or one.high is None:
            continue
        if num > 1:
            axis.fill_between(x, one.low, one.high, color=own, alpha=0.16, linewidth=0)
        else:
            axis.plot([*x, *x], [*one.low, *one.high], color=own, alpha=0.4, linewidth=3)
    axis.set(xlabel="step", ylabel=chart.y_name)
    locator = require("matplotlib.ticker", "figures").MaxNLocator
    axis.xaxis.set_major_locator(locator("auto", steps=[1, 2, 5, 10], integer=True))
    if chart.zero:
        axis.set_ylim(bottom=0)
    axis.set_xlim(1 - MARGIN * last, (1 + MARGIN) * last)
    add_legend(axis)
    return figure


def draw_scatter(
    axis: Any, place_2N: Sequence[Sequence[float]], kind_N: Sequence[int], labels: list[str]
) -> None:
    """Points by their kind; points without one (-1) are grey."""
    for index, label in [(-1, None), *enumerate(labels)]:
        own = [n for n, kind in enumerate(kind_N) if kind == index]
        axis.scatter(
            *([part[n] for n in own] for part in place_2N),
            s=6,
            marker=mark(max(index, 0)),
            facecolors=PAGE["c7"] if index < 0 else [face(index)],
            edgecolors="none" if index < len(COLOURS) else colour(index),
            linewidths=0 if index < len(COLOURS) else 0.5,
            label=label,
        )


def draw_graph(axis: Any, graph: PlacedGraph, names: Mapping[str, str]) -> None:
    """Discs are shares, rings are weights, lines are cosines; below a disc its telling words."""
    circle = require("matplotlib.patches", "figures").Circle
    place = {node["domain"]: (node["x"], node["y"]) for node in graph.nodes}
    for edge in graph.edges:
        ends = zip(place[edge["first"]], place[edge["second"]], strict=True)
        style, width = "-" if edge["cosine"] > 0 else ":", 0.3 + 3 * abs(edge["cosine"])
        axis.plot(*ends, style, color=PAGE["ink"], alpha=0.4, linewidth=width, zorder=1)
    for node in graph.nodes:
        own, where = colour(node["domain"]), place[node["domain"]]
        share, weight = (node_radius(x) for x in (node["share"], node["weight"] or node["share"]))
        axis.add_patch(circle(where, share, facecolor=own, alpha=0.4, zorder=2))
        ring = {"edgecolor": own, "linewidth": 1.4, "linestyle": dashes(node["domain"])}
        axis.add_patch(circle(where, weight, fill=False, zorder=3, **ring))
        axis.text(*where, str(node["domain"]), ha="center", va="center", zorder=4)
        if words := names.get(str(node["domain"])):
            below = (where[0], where[1] - max(share, weight))
            axis.text(*below, words, ha="center", va="top", zorder=4, fontsize=5.5)
    axis.set(aspect="equal", title=f"step {graph.step:,}")
    axis.autoscale_view()
    axis.set_axis_off()


def add_legend(axis: Any, where: str = "upper") -> None:
    """A legend outside the axes (upper, lower) if there are several names.

    It has as many columns as fit, and the figure grows by its height: however many names there
    are, the axes keep their size.
    """
    figure = axis.figure
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) < 2 and not "".join(labels).endswith(IDENTICAL):
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
