"""The picture of `dograph reproduce gradient-pca`: how the rows of sources lie, probe by probe.

A panel for each probe and method, on the probe's own components as in the paper, and one range for
all: directions have length 1, so widths can be compared. How much of its variance two components
hold stands over each. Colours and marks are those of the page and of `dograph figures`.
"""

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dograph.errors import MissingExtraError, require
from dograph.files import write_text
from dograph.report.drawing import STYLE, WIDE, colour, mark, sheet

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
        draw(found).savefig(text, format="svg", metadata={"Date": None})
    write_text(file, text.getvalue())
    return [f"the first two components of every probe row, by source: {file}"]


def draw(found: Mapping[str, Points]) -> Any:
    """A figure with a row of panels for each method, and more where there are many probes."""
    sources = list(dict.fromkeys(name for points in found.values() for name in points["sources"]))
    across = min(ACROSS, max(len(points["coordinates"]) for points in found.values()))
    rows_of = {name: math.ceil(len(p["coordinates"]) / across) for name, p in found.items()}
    beside = min(len(sources), int(WIDE / (0.4 + LETTER * max(map(len, sources)))) or 1)
    rows, lines = sum(rows_of.values()), math.ceil(len(sources) / beside)
    figure, axes = sheet(WIDE, 1.35 * rows + 0.2 * lines + 0.4, rows, across)
    row = 0
    for name, points in found.items():
        own = [axis for line in axes[row : row + rows_of[name]] for axis in line]
        for at, axis in enumerate(own):
            _panel(axis, points, at, sources)
        for line in axes[row : row + rows_of[name]]:
            line[0].set_ylabel(name)
        row += rows_of[name]
    _same_range(axes, found)
    told = "first component of each probe, upwards the second; %: of its variance on both"
    figure.supxlabel(told, fontsize=7)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=beside, markerscale=2)
    return figure


def _panel(axis: Any, points: Points, at: int, sources: list[str]) -> None:
    """The probe at this place, or an empty place after the last."""
    if at >= len(points["coordinates"]):
        axis.set_axis_off()
        return
    step, coordinates = list(points["coordinates"].items())[at]
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


def _same_range(axes: Any, found: Mapping[str, Points]) -> None:
    """One square for all panels, with every point in it; numbers at the outer ones alone."""
    rows = [row for p in found.values() for probe in p["coordinates"].values() for row in probe]
    low, high = ([end(row[part] for row in rows) for part in (0, 1)] for end in (min, max))
    reach = (0.5 + MARGIN) * max(high[0] - low[0], high[1] - low[1]) or 1.0
    middles = [(low[part] + high[part]) / 2 for part in (0, 1)]
    x, y = ((middle - reach, middle + reach) for middle in middles)
    for axis in axes.flat:
        axis.set(xlim=x, ylim=y, aspect="equal")
        axis.label_outer(remove_inner_ticks=True)
