"""The page's charts as files for a paper: PDF and SVG with letters as letters, and PNG."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, require
from dograph.report import drawing
from dograph.report.charts import BarChart
from dograph.report.collect import PageData, collect, open_subjects
from dograph.report.comparison import Comparison
from dograph.report.domains import DomainsShown, node_parts, part_labels
from dograph.report.drawing import COLUMN, WIDE, sheet
from dograph.report.one_run import RunData
from dograph.report.sections import (
    cost_chart,
    difference_chart,
    health_charts,
    loss_chart,
    num_domains_chart,
    scale_chart,
    source_chart,
    source_table,
)

MOST_PROBES = 6
ACROSS = 5  # tasks beside each other
DPI = 300  # of the PNG files
FORMATS = ("pdf", "svg", "png")
Drawn = Iterator[tuple[str, Any]]  # a file's name and its matplotlib Figure


def write_figures(paths: Sequence[Path], out: Path, benches: Sequence[Path] = ()) -> list[str]:
    """Write every figure that these runs have something for; return the names without endings."""
    matplotlib: Any = require("matplotlib", "figures")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--figures {out} is a file; give a folder")
    data = collect(open_subjects(paths, benches))
    out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(drawing.STYLE):
        return [save(name, figure, out) for name, figure in drawn(data)]


def save(name: str, figure: Any, out: Path) -> str:
    """Write a figure in every format. Without a date, the same runs give the same file."""
    dateless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    for form in FORMATS:
        figure.savefig(out / f"{name}.{form}", dpi=DPI, metadata=dateless[form])
    return name


def drawn(data: PageData) -> Drawn:
    """Names and figures. Where there are several runs, those of one run carry its name.

    Of runs that differ in their seed alone, the first is drawn by itself.
    """
    yield from draw_curves(data)
    first = {runs[0] for runs in data.groups.values()}
    for run in (run for run in data.runs if run.name in first):
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
        yield from draw_run(data, run, "" if len(data.runs) == 1 else f"{stem}-")
    cost = cost_chart(data)
    if cost.bars:
        yield "cost", drawing.bar_figure(cost, "milliseconds a step", 0.9)
    for k, comparison in enumerate(data.comparisons):
        yield from draw_comparison(comparison, f"comparison{k + 1 if k else ''}-")
    if data.scales:
        yield "scale", drawing.line_figure(scale_chart(data), 2.2)
    if data.tasks:
        yield "benchmarks", draw_tasks(data)


def draw_curves(data: PageData) -> Drawn:
    """Training and validation loss: methods with intervals, or the single run."""
    for name, part, of in (("loss-train", "train", "total"), ("loss-valid", "valid", "mean")):
        charts = dict(loss_chart(data, part, of, ""))
        if None in charts:
            chart = charts[None]
        else:  # a method of one run is drawn as the run, with what was measured
            single = {one.index: one for one in charts["runs"].series}
            methods = charts["methods"].series
            chart = replace(
                charts["methods"],
                series=[
                    one if one.low else replace(single[one.index], name=one.name, turn=0)
                    for one in methods
                ],
            )
        if chart.series:
            yield name, drawing.line_figure(chart, 2.3, lone=len(data.groups) == 1)


def draw_run(data: PageData, run: RunData, stem: str) -> Drawn:
    """Losses by source, health, and what is known of domains."""
    chart = source_chart(run)
    if chart.series:
        yield f"{stem}sources", drawing.line_figure(chart, 2.3)
    charts = health_charts(replace(data, runs=[run], groups={run.group: [run.name]}))
    if charts:
        rows = (len(charts) + 1) // 2
        figure, axes = sheet(WIDE, 1.6 * rows, rows, 2)
        for chart, axis in zip(charts, axes.flat, strict=False):
            drawing.draw_lines(axis, chart, lone=True)
            axis.set_title(chart.title)
        for axis in list(axes.flat)[len(charts) :]:
            axis.set_axis_off()
        yield f"{stem}health", figure
    domains = run.domains
    if domains is None:
        return
    ranks = "" if domains.has_identity else domains.numbering
    if domains.probes:
        yield f"{stem}pca", _probes(domains)
    weights = domains.lines[0]
    if weights.series:
        bare = [replace(one, raw=None) for one in weights.series]
        yield f"{stem}weights", drawing.line_figure(replace(weights, series=bare), 2.3, below=ranks)
    if domains.graphs:
        last = domains.graphs[-1]
        figure, axes = sheet(COLUMN, COLUMN)
        drawing.draw_graph(axes[0, 0], last)
        drawing.say_below(figure, ranks)
        axes[0, 0].autoscale_view()
        axes[0, 0].set_axis_off()
        yield f"{stem}graph", figure
        labels = part_labels(domains.sources, [last])
        bars = [(f"domain {node['domain']}", node_parts(node, labels)) for node in last.nodes]
        made = BarChart("", labels, bars, whole=True)
        words = "share of the domain's samples"
        yield f"{stem}composition", drawing.bar_figure(made, words, 0.8, below=ranks)


def _probes(domains: DomainsShown) -> Any:
    """Figure 1: the same rows at several steps, above by source and below by domain."""
    chosen = domains.probes[-MOST_PROBES:]
    figure, axes = sheet(WIDE, 2.6, 2, len(chosen))
    for row, chart in zip(axes, domains.scatters, strict=True):
        for axis, probe in zip(row, chosen, strict=True):
            kind_N = domains.source_N if chart.by_source else probe.label
            drawing.draw_scatter(axis, probe.own, kind_N, chart.labels)
            if chart.by_source:
                axis.set_title(f"step {probe.step:,}")
        row[0].set_ylabel("by source" if chart.by_source else f"by {chart.group}")
        drawing.legend_of(row[-1], "upper" if chart.by_source else "lower")
    return figure


def draw_comparison(one: Comparison, stem: str) -> Drawn:
    """Paired differences, methods by source, and sweeps where there are any."""
    chart = difference_chart(one, "mean")
    if chart.rows:
        figure, axes = sheet(COLUMN, 0.85 + 0.25 * len(chart.rows))
        drawing.draw_dots(axes[0, 0], chart)
        axes[0, 0].locator_params(axis="x", nbins=5)
        yield f"{stem}differences", figure
        table = source_table(one)
        changed = [
            row
            for row, method in zip(table.rows, one.methods, strict=True)
            if method.source_differences
        ]
        figure, axes = sheet(WIDE, 0.9 + 0.3 * len(changed))
        drawing.draw_heat(axes[0, 0], replace(table, rows=changed))
        axes[0, 0].set_title(f"loss by source less {one.baseline}'s (nats)")
        yield f"{stem}by-source", figure
    by_number = num_domains_chart(one)
    if by_number.series:
        yield f"{stem}num-domains", drawing.line_figure(by_number, 2.2)


def draw_tasks(data: PageData) -> Any:
    """Accuracy on every task in per cent, with chance as a dashed line."""
    names = list(dict.fromkeys(row.name for chart in data.tasks for row in chart.rows))
    rows = (len(data.tasks) + ACROSS - 1) // ACROSS
    figure, axes = sheet(WIDE, rows * (0.7 + 0.14 * len(names)) + 0.4, rows, ACROSS)
    for at, (chart, axis) in enumerate(zip(data.tasks, axes.flat, strict=False)):
        drawing.draw_dots(axis, chart, names)
        axis.set_title(chart.title)
        axis.tick_params(labelleft=at % ACROSS == 0)
    for axis in list(axes.flat)[len(data.tasks) :]:
        axis.set_axis_off()
    figure.supxlabel("accuracy (%); dashed: chance", fontsize=7)
    return figure
