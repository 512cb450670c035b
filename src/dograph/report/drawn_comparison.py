"""Figures of methods beside each other, of downstream tasks and of costs."""

from typing import Any

from dograph.report.content import Benchmarks, Comparison, PageData
from dograph.report.drawing import (
    COLUMN,
    WIDE,
    Drawn,
    colour,
    draw_estimate,
    draw_line,
    draw_part,
    label_log,
    label_rows,
    legend_of,
    sheet,
)
from dograph.report.intervals import Estimate


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
        yield f"{stem}by-source", _heat(one)
    if one.num_domains:
        yield f"{stem}num-domains", _points(one.num_domains, "domains", log=False)


def _heat(one: Comparison) -> Any:
    others = [method for method in one.methods if method.source_differences]
    sources = list(others[0].source_differences)
    table = [[m.source_differences[s].value.value for s in sources] for m in others]
    most = max(1e-9, max(abs(value) for row in table for value in row))
    figure, axes = sheet(WIDE, 0.9 + 0.3 * len(others))
    axis = axes[0, 0]
    axis.imshow(table, cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto")
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            shade = "white" if abs(value) > 0.7 * most else "black"
            axis.text(j, i, f"{value:+.3f}", ha="center", va="center", fontsize=6.5, color=shade)
    axis.set_xticks(range(len(sources)), sources, rotation=30, ha="right")
    axis.set_yticks(range(len(others)), [method.name for method in others])
    axis.set_title(f"loss by source less {one.baseline}'s (nats)")
    return figure


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
                draw_estimate(axis, _percent(scores[task]), index, index)
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


def _percent(score: Estimate) -> Estimate:
    """A share as the page and the paper print it."""
    low, high = (None if end is None else 100 * end for end in (score.low, score.high))
    return Estimate(100 * score.value, low, high)


def draw_cost(data: PageData) -> Drawn:
    """Milliseconds of a step by part."""
    timed = [run for run in data.runs if run.cost.parts]
    if not timed:
        return
    figure, axes = sheet(COLUMN, 0.9 + 0.22 * len(timed))
    axis = axes[0, 0]
    names = list(dict.fromkeys(part.name for run in timed for part in run.cost.parts))
    for row, run in enumerate(timed):
        left = 0.0
        for part in run.cost.parts:
            draw_part(axis, row, left, part.ms, names.index(part.name), part.name)
            left += part.ms
    axis.set_xlabel("milliseconds a step")
    label_rows(axis, [run.name for run in timed])
    legend_of(axis)
    yield "cost", figure
