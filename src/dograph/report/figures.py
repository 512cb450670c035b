"""Figures of runs: curves, health, cost, and the domains of each run."""

import math
import re
from typing import Any

from dograph.errors import require
from dograph.report.content import Domains, PageData, RunData, ShownProbe
from dograph.report.domains import BASE, REACH
from dograph.report.drawing import (
    ASIDE,
    COLUMN,
    WIDE,
    Drawn,
    colour,
    dashes,
    draw_band,
    draw_curve,
    draw_part,
    draw_points,
    label_log,
    label_rows,
    label_steps,
    legend_of,
    sheet,
)
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
    if run.domains is not None:
        yield from _domains(run.domains, stem)


def _domains(domains: Domains, stem: str) -> Drawn:
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


def _say_ranks(figure: Any, domains: Domains) -> None:
    """Below the figure, that numbers are ranks, where they are."""
    if not domains.has_identity:
        figure.supxlabel(domains.numbering, fontsize="small")


def _probes(domains: Domains) -> Any:
    """Figure 1: the same rows at several steps, above by source and below by domain."""
    chosen = domains.probes[-MOST_PROBES:]
    # Rows that were clustered among themselves are in no domain of the mixer.
    kind, by = ("domain", "by domain") if domains.has_identity else ("cluster", "by cluster")
    figure, axes = sheet(WIDE, 2.6, 2, len(chosen))
    named = [f"{kind} {j}" for j in range(max(max([-1, *probe.label]) for probe in chosen) + 1)]
    for column, probe in enumerate(chosen):
        _scatter(axes[0, column], probe, domains.source_N, domains.sources)
        _scatter(axes[1, column], probe, probe.label, named)
        axes[0, column].set_title(f"step {probe.step:,}")
    axes[0, 0].set_ylabel("by source")
    axes[1, 0].set_ylabel(by)
    legend_of(axes[0, -1], "upper")
    legend_of(axes[1, -1], "lower")
    return figure


def _scatter(axis: Any, probe: ShownProbe, kind_N: list[int], names: list[str]) -> None:
    x, y = probe.own
    for index, name in [(-1, ""), *enumerate(names)]:
        own = [n for n, kind in enumerate(kind_N) if kind == index]
        draw_points(axis, [x[n] for n in own], [y[n] for n in own], index, name or None)
    axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")


def _graph(domains: Domains) -> Any:
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
        share, weight = _radius(node["share"]), _radius(node["weight"] or node["share"])
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


def _radius(share: float) -> float:
    return BASE + REACH * math.sqrt(max(share, 0.0))


def _composition(domains: Domains) -> Any:
    graph, sources = domains.graphs[-1], domains.sources
    figure, axes = sheet(COLUMN, 0.8 + 0.22 * len(graph.nodes))
    axis = axes[0, 0]
    names = list(dict.fromkeys([*sources, *(n for node in graph.nodes for n in node["sources"])]))
    for row, node in enumerate(graph.nodes):
        left = 0.0
        for index, name in enumerate(names):
            share = node["sources"].get(name, 0) / max(node["samples"], 1)
            draw_part(axis, row, left, share, index, name)
            left += share
    axis.set(xlabel="share of the domain's samples", xlim=(0, 1))
    _say_ranks(figure, domains)
    label_rows(axis, [f"domain {node['domain']}" for node in graph.nodes])
    legend_of(axis)
    return figure


def file_stem(name: str) -> str:
    """A run's name as the beginning of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
