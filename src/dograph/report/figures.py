"""Figures of runs: curves, health, cost, and the domains of each run."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dograph.errors import ConfigError, require
from dograph.report.collect import collect, open_subjects
from dograph.report.content import (
    Benchmarks,
    Comparison,
    DomainsShown,
    PageData,
    RunData,
)
from dograph.report.domains import node_radius
from dograph.report.drawing import (
    ASIDE,
    COLUMN,
    STYLE,
    WIDE,
    Drawn,
    colour,
    dashes,
    draw_band,
    draw_bar,
    draw_curve,
    draw_estimate,
    draw_line,
    draw_points,
    label_log,
    label_rows,
    label_steps,
    legend_of,
    sheet,
)
from dograph.stats import Estimate
from dograph.train.metrics import SUMMARIES

MOST_PROBES = 6


def draw_curves(data: PageData) -> Drawn:
    """Training and validation loss: methods with intervals, or the single run."""
    for name, title, part in (
        ("loss-train", "training loss (nats)", "total"),
        ("loss-valid", "validation loss (nats)", "mean"),
    ):
        figure, axes = sheet(COLUMN, 2.3)
        axis, steps = axes[0, 0], set[float]()
        for index, group in enumerate(data.groups):
            band = (group.train if name == "loss-train" else group.valid).get(part)
            if len(group.runs) > 1 and band is not None:
                draw_band(axis, band, index, group.name)
                steps.update(band.x)
                continue
            run = next(run for run in data.runs if run.name == group.runs[0])
            own = (run.curves.train if name == "loss-train" else run.curves.valid).get(part)
            if own is not None:
                draw_curve(axis, own, index, group.name, lone=len(data.groups) == 1)
                steps.update(own.raw.x)
        if axis.lines:
            label_steps(axis, title)
            if len(steps) == 1:
                middle = sum(steps) + ASIDE * (len(data.groups) - 1) / 2
                axis.set_xticks([middle], [f"{sum(steps):g}"])
            legend_of(axis)
            yield name, figure


def draw_run(run: RunData, stem: str) -> Drawn:
    """Losses by source, health, and what is known of domains."""
    figure, axes = sheet(COLUMN, 2.3)
    names = [name for name in run.curves.valid if name not in SUMMARIES]
    for index, name in enumerate(names):
        draw_curve(axes[0, 0], run.curves.valid[name], index, name)
    if names:
        label_steps(axes[0, 0], "validation loss (nats)")
        legend_of(axes[0, 0])
        yield f"{stem}sources", figure
    if run.health:
        rows = (len(run.health) + 1) // 2
        figure, axes = sheet(WIDE, 1.6 * rows, rows, 2)
        for measure, axis in zip(run.health, axes.flat, strict=False):
            draw_curve(axis, measure.curve, 0, measure.title, lone=True)
            axis.set_title(measure.title)
            label_steps(axis)
            if measure.log:
                label_log(axis, "y")
        for axis in list(axes.flat)[len(run.health) :]:
            axis.set_axis_off()
        yield f"{stem}health", figure
    domains = run.domains
    if domains is None:
        return
    if domains.probes:
        yield f"{stem}pca", _probes(domains)
    if domains.weight:
        figure, axes = sheet(COLUMN, 2.3)
        for name, curve in domains.weight.items():
            draw_curve(axes[0, 0], curve, int(name), f"domain {name}", faint=False)
        label_steps(axes[0, 0], "weight of the domain")
        _say_ranks(figure, domains)
        legend_of(axes[0, 0])
        yield f"{stem}weights", figure
    if domains.graphs:
        yield f"{stem}graph", _graph(domains)
        yield f"{stem}composition", _composition(domains)


def _say_ranks(figure: Any, domains: DomainsShown) -> None:
    """Below the figure, that numbers are ranks, where they are."""
    if not domains.has_identity:
        figure.supxlabel(domains.numbering, fontsize="small")


def _probes(domains: DomainsShown) -> Any:
    """Figure 1: the same rows at several steps, above by source and below by domain."""
    chosen = domains.probes[-MOST_PROBES:]
    # Rows that were clustered among themselves are in no domain of the mixer.
    kind, by = ("domain", "by domain") if domains.has_identity else ("cluster", "by cluster")
    figure, axes = sheet(WIDE, 2.6, 2, len(chosen))
    named = [f"{kind} {j}" for j in range(max(max([-1, *probe.label]) for probe in chosen) + 1)]
    for column, probe in enumerate(chosen):
        x, y = probe.own
        kinds = ((domains.source_N, domains.sources), (probe.label, named))
        for axis, (kind_N, names) in zip(axes[:, column], kinds, strict=True):
            for index, name in [(-1, ""), *enumerate(names)]:
                own = [n for n, kind in enumerate(kind_N) if kind == index]
                draw_points(axis, [x[n] for n in own], [y[n] for n in own], index, name or None)
            axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
        axes[0, column].set_title(f"step {probe.step:,}")
    axes[0, 0].set_ylabel("by source")
    axes[1, 0].set_ylabel(by)
    legend_of(axes[0, -1], "upper")
    legend_of(axes[1, -1], "lower")
    return figure


def _graph(domains: DomainsShown) -> Any:
    """The last graph: discs are shares, rings weights, lines agreement."""
    graph = domains.graphs[-1]
    circle = require("matplotlib.patches", "figures").Circle
    figure, axes = sheet(COLUMN, COLUMN)
    axis = axes[0, 0]
    place = {node["domain"]: (node["x"], node["y"]) for node in graph.nodes}
    for edge in graph.edges:
        (x0, y0), (x1, y1) = place[edge["first"]], place[edge["second"]]
        style = "-" if edge["cosine"] > 0 else ":"
        width = 0.3 + 3 * abs(edge["cosine"])
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
    _say_ranks(figure, domains)
    axis.autoscale_view()
    axis.set_axis_off()
    return figure


def _composition(domains: DomainsShown) -> Any:
    graph, sources = domains.graphs[-1], domains.sources
    figure, axes = sheet(COLUMN, 0.8 + 0.22 * len(graph.nodes))
    axis = axes[0, 0]
    names = list(dict.fromkeys([*sources, *(n for node in graph.nodes for n in node["sources"])]))
    for row, node in enumerate(graph.nodes):
        shares = (node["sources"].get(name, 0) / max(node["samples"], 1) for name in names)
        draw_bar(axis, row, zip(range(len(names)), names, shares, strict=True))
    axis.set(xlabel="share of the domain's samples", xlim=(0, 1))
    _say_ranks(figure, domains)
    label_rows(axis, [f"domain {node['domain']}" for node in graph.nodes])
    legend_of(axis)
    return figure


# Figures of methods beside each other, of downstream tasks and of costs.


def draw_comparison(one: Comparison, stem: str) -> Drawn:
    """Paired differences, methods by source, and sweeps where there are any."""
    others = [(k, method) for k, method in enumerate(one.methods) if "mean" in method.differences]
    if others:
        figure, axes = sheet(COLUMN, 0.85 + 0.25 * len(others))
        axis = axes[0, 0]
        for row, (index, method) in enumerate(others):
            draw_estimate(axis, method.differences["mean"].value, row, index)
        axis.axvline(0, color="#555555", linewidth=0.6, linestyle="--")
        label_rows(axis, [method.name for _, method in others])
        axis.locator_params(axis="x", nbins=5)
        axis.set_xlabel(f"mean loss less {one.baseline}'s (nats),\n95 % over seeds")
        yield f"{stem}differences", figure
        methods = [method for method in one.methods if method.source_differences]
        sources = list(methods[0].source_differences)
        table = [[m.source_differences[s].value.value for s in sources] for m in methods]
        most = max(1e-9, max(abs(value) for row in table for value in row))
        figure, axes = sheet(WIDE, 0.9 + 0.3 * len(methods))
        axis = axes[0, 0]
        axis.imshow(table, cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto")
        for i, j in np.ndindex(len(methods), len(sources)):
            value = table[i][j]
            shade = "white" if abs(value) > 0.7 * most else "black"
            axis.text(j, i, f"{value:+.3f}", ha="center", va="center", fontsize=6.5, color=shade)
        axis.set_xticks(range(len(sources)), sources, rotation=30, ha="right")
        axis.set_yticks(range(len(methods)), [method.name for method in methods])
        axis.set_title(f"loss by source less {one.baseline}'s (nats)")
        yield f"{stem}by-source", figure
    if one.num_domains:
        yield f"{stem}num-domains", _points(one.num_domains, "domains", log=False)


def _points(lines: list[tuple[str, list[tuple[int, Estimate]]]], xlabel: str, *, log: bool) -> Any:
    figure, axes = sheet(COLUMN, 2.2)
    axis = axes[0, 0]
    for index, (name, points) in enumerate(lines):
        x = [where for where, _ in points]
        y = [estimate.value for _, estimate in points]
        draw_line(axis, x, y, index, name or "dograph")
        for where, estimate in points:
            if estimate.low is not None and estimate.high is not None:
                axis.plot([where, where], [estimate.low, estimate.high], color=colour(index))
    axis.set(xlabel=xlabel, ylabel="mean validation loss (nats)")
    if log:
        label_log(axis, "x")
    else:
        axis.locator_params(axis="x", integer=True)
    legend_of(axis)
    return figure


def draw_scales(data: PageData) -> Drawn:
    """Mean loss by size."""
    if data.scales:
        lines = [(scale.name, scale.points) for scale in data.scales]
        yield "scale", _points(lines, "parameters", log=True)


def draw_benchmarks(found: Benchmarks) -> Drawn:
    """Accuracy on every task in per cent, with chance as a dashed line."""
    columns = 5
    rows = (len(found.tasks) + columns - 1) // columns
    figure, axes = sheet(WIDE, rows * (0.7 + 0.14 * len(found.rows)) + 0.4, rows, columns)
    for at, (task, axis) in enumerate(zip(found.tasks, axes.flat, strict=False)):
        for index, (_, scores) in enumerate(found.rows):
            if task in scores:
                draw_estimate(axis, scores[task], index, index, scale=100)  # as the paper prints it
        chance = found.chance.get(task)
        if chance is not None:
            axis.axvline(100 * chance, color="#555555", linewidth=0.6, linestyle="--")
        axis.set_title(task)
        label_rows(axis, [name for name, _ in found.rows])
        axis.tick_params(labelleft=at % columns == 0)
    for axis in list(axes.flat)[len(found.tasks) :]:
        axis.set_axis_off()
    figure.supxlabel("accuracy (%); dashed: chance", fontsize=7)
    yield "benchmarks", figure


def draw_cost(data: PageData) -> Drawn:
    """Milliseconds of a step by part."""
    timed = [run for run in data.runs if run.cost.parts]
    if not timed:
        return
    figure, axes = sheet(COLUMN, 0.9 + 0.22 * len(timed))
    axis = axes[0, 0]
    names = list(dict.fromkeys(part.name for run in timed for part in run.cost.parts))
    for row, run in enumerate(timed):
        draw_bar(axis, row, [(names.index(x.name), x.name, x.ms) for x in run.cost.parts])
    axis.set_xlabel("milliseconds a step")
    label_rows(axis, [run.name for run in timed])
    legend_of(axis)
    yield "cost", figure


# The page's figures as files for a paper: PDF and SVG with letters as letters, and PNG.


DPI = 300  # of the PNG files
FORMATS = ("pdf", "svg", "png")


def write_figures(paths: Sequence[Path], out: Path, benches: Sequence[Path] = ()) -> list[str]:
    """Write every figure that these runs have something for; return the names without endings."""
    matplotlib: Any = require("matplotlib", "figures")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; give a folder")
    data = collect(open_subjects(paths, benches))
    out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        return [save(name, figure, out) for name, figure in drawn(data)]


def save(name: str, figure: Any, out: Path) -> str:
    """Write a figure in every format. Without a date, the same runs give the same file."""
    dateless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    for form in FORMATS:
        figure.savefig(out / f"{name}.{form}", dpi=DPI, metadata=dateless[form])
    return name


def drawn(data: PageData) -> Iterator[tuple[str, Any]]:
    """Names and figures. Where there are several runs, those of one run carry its name.

    Of runs that differ in their seed alone, the first is drawn by itself.
    """
    yield from draw_curves(data)
    first = {group.runs[0] for group in data.groups}
    for run in (run for run in data.runs if run.name in first):
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or "run"
        yield from draw_run(run, "" if len(data.runs) == 1 else f"{stem}-")
    yield from draw_cost(data)
    for k, comparison in enumerate(data.comparisons):
        yield from draw_comparison(comparison, f"comparison{k + 1 if k else ''}-")
    yield from draw_scales(data)
    if data.benchmarks is not None:
        yield from draw_benchmarks(data.benchmarks)
