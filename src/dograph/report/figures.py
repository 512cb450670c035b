"""The page's charts as files for a paper: PDF and SVG in which text stays text, and PNG."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, require
from dograph.report import drawing, sections
from dograph.report.charts import BarChart
from dograph.report.collect import PageData, collect, open_subjects
from dograph.report.comparison import Comparison
from dograph.report.domains import DomainsView, composition
from dograph.report.drawing import COLUMN, WIDE, sheet
from dograph.report.one_run import RunData

MOST_PROBES = 6
ACROSS = 5  # tasks in a row
DPI = 300  # of the PNG files
FORMATS = ("pdf", "svg", "png")
Figures = Iterator[tuple[str, Any]]  # a file name and its matplotlib Figure


def write_figures(paths: Sequence[Path], out: Path, benches: Sequence[Path] = ()) -> list[str]:
    """Write every figure that these runs have data for; return the names without endings."""
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


def drawn(data: PageData) -> Figures:
    """Names and figures. With several runs, the figures of one run start with its name.

    Of runs that differ only in their seed, the first has figures of its own.
    """
    yield from draw_curves(data)
    first = {runs[0] for runs in data.groups.values()}
    for run in (run for run in data.runs if run.name in first):
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
        yield from draw_run(data, run, "" if len(data.runs) == 1 else f"{stem}-")
    cost, scale = sections.cost_chart(data), sections.scale_chart(data)
    if cost.bars:
        yield "cost", drawing.bar_figure(cost, "milliseconds per step", 0.9)
    for k, comparison in enumerate(data.comparisons):
        yield from draw_comparison(comparison, f"comparison{k + 1 if k else ''}-")
    if scale.series:
        yield "scale", drawing.line_figure(scale, 2.2)
    if data.tasks:
        yield "benchmarks", draw_tasks(data)


def draw_curves(data: PageData) -> Figures:
    """Training and validation loss: methods with intervals, or the single run."""
    for name, metric in (("loss-train", "train/loss_nats"), ("loss-valid", "valid/mean/loss_nats")):
        charts = sections.loss_charts(data, metric, "")
        chart = charts.get("methods") or charts[None]
        if "runs" in charts:  # a method with one run is drawn like the run, with its raw values
            single = {one.index: one for one in charts["runs"].series}
            series = [
                one if one.low else replace(single[one.index], name=one.name, dash=0)
                for one in chart.series
            ]
            chart = replace(chart, series=series)
        if chart.series:
            yield name, drawing.line_figure(chart, 2.3, lone=len(data.groups) == 1)


def draw_run(data: PageData, run: RunData, stem: str) -> Figures:
    """Losses by source, health, and domains."""
    chart = sections.source_chart(run)
    if chart.series:
        yield f"{stem}sources", drawing.line_figure(chart, 2.3)
    charts = sections.health_charts(replace(data, runs=[run], groups={run.group: [run.name]}))
    if charts:
        figure, axes = drawing.panels(len(charts), 2, 1.6)
        for chart, axis in zip(charts, axes, strict=True):
            drawing.draw_lines(axis, chart, lone=True)
            axis.set_title(chart.title)
        yield f"{stem}health", figure
    if run.domains is not None:
        for name, figure in draw_domains(run.domains):
            yield f"{stem}{name}", figure


def draw_domains(domains: DomainsView) -> Figures:
    """Probes, weights, the last graph, and the sources of its domains."""
    below = "" if domains.has_identity else domains.numbering
    if domains.probes:
        yield "pca", _draw_probes(domains)
    weights = domains.lines[0]
    if weights.series:
        smoothed = replace(weights, series=[replace(one, raw=None) for one in weights.series])
        yield "weights", drawing.line_figure(smoothed, 2.3, below=below)
    if domains.graphs:
        last = domains.graphs[-1]
        figure, axes = sheet(COLUMN, COLUMN)
        drawing.draw_graph(axes[0, 0], last)
        drawing.add_text_below(figure, below)
        yield "graph", figure
        labels, bars_of = composition(domains.sources, [last])
        bars = [(f"domain {domain}", parts) for domain, ((_, parts),) in bars_of.items()]
        chart, x_name = BarChart("", labels, bars, whole=True), "share of the domain's samples"
        yield "composition", drawing.bar_figure(chart, x_name, 0.8, below=below)


def _draw_probes(domains: DomainsView) -> Any:
    """The same rows at several steps, coloured by source above and by domain below."""
    chosen = domains.probes[-MOST_PROBES:]
    figure, axes = sheet(WIDE, 2.6, 2, len(chosen))
    for row, chart in zip(axes, domains.scatters, strict=True):
        for axis, probe in zip(row, chosen, strict=True):
            kind_N = domains.source_N if chart.by_source else probe.label
            drawing.draw_scatter(axis, probe.own, kind_N, chart.labels)
            axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
            if chart.by_source:
                axis.set_title(f"step {probe.step:,}")
        row[0].set_ylabel("by source" if chart.by_source else f"by {chart.group}")
        drawing.add_legend(row[-1], "upper" if chart.by_source else "lower")
    return figure


def draw_comparison(one: Comparison, stem: str) -> Figures:
    """Paired differences, methods by source, and mean loss by number of domains."""
    chart = sections.difference_chart(one, "mean")
    if chart.rows:
        figure, axes = sheet(COLUMN, 0.85 + 0.25 * len(chart.rows))
        drawing.draw_dots(axes[0, 0], chart)
        axes[0, 0].locator_params(axis="x", nbins=5)
        yield f"{stem}differences", figure
        table, names = sections.source_table(one), {row.name for row in chart.rows}
        changed = [row for row in table.rows if row[0] in names]
        figure, axes = sheet(WIDE, 0.9 + 0.3 * len(changed))
        drawing.draw_heat(axes[0, 0], replace(table, rows=changed))
        axes[0, 0].set_title(f"loss by source vs. {one.baseline} (nats)")
        yield f"{stem}by-source", figure
    by_number = sections.num_domains_chart(one)
    if by_number.series:
        yield f"{stem}num-domains", drawing.line_figure(by_number, 2.2)


def draw_tasks(data: PageData) -> Any:
    """Accuracy on every task in per cent, with chance as a dashed line."""
    names = list(dict.fromkeys(row.name for chart in data.tasks for row in chart.rows))
    figure, axes = drawing.panels(len(data.tasks), ACROSS, 0.7 + 0.14 * len(names), 0.4)
    for at, (chart, axis) in enumerate(zip(data.tasks, axes, strict=True)):
        drawing.draw_dots(axis, chart, names)
        axis.set_title(chart.title)
        axis.tick_params(labelleft=at % ACROSS == 0)
    figure.supxlabel("accuracy (%); dashed: chance", fontsize=7)
    return figure
