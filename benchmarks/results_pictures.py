"""The pictures of docs/results.md: differences with their intervals, and training curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results_tables import compared, same_batches
from dograph.errors import require

ByArm = Mapping[str, Mapping[int, Mapping[str, Any]]]
BLUE, GREY, ORANGE = "#0072b2", "#767676", "#d55e00"  # distinct for colour-blind readers
LINES = (BLUE, ORANGE, "#009e73", GREY, "#cc79a7", "#e69f00", "#56b4e9")


def draw(
    folder: Path, tables: Mapping[str, tuple[ByArm, str]], order: Sequence[str], shares: Any
) -> list[Path]:
    """One picture per table of differences to plain, and one of the first table's curves."""
    folder.mkdir(exist_ok=True)
    made = []
    for name, (by_arm, metric) in tables.items():
        figure = _figure(7, 0.4 * len(by_arm) + 1.1)
        _differences(figure.add_subplot(), by_arm, metric, order, shares)
        made.append(_saved(figure, folder / f"{name}.svg"))
    first, _ = next(iter(tables.values()))
    figure = _figure(7, 3.2)
    _curves(figure.add_subplot(), first, order)
    return [*made, _saved(figure, folder / "curves.svg")]


def draw_merging(folder: Path, probes: Mapping[str, Any]) -> Path:
    """Separation of the sources, and agreement of domains with sources, by step."""
    figure = _figure(7, 2.8)
    left, right = figure.subplots(1, 2)
    (found,) = probes["artefacts"]["gradient-pca"]["results"]["methods"].values()
    at = found["figures"]
    lines = (
        (left, "separation", "gradients", BLUE),
        (left, "separation_directions", "their directions", ORANGE),
        (right, "nmi", "NMI", BLUE),
        (right, "purity", "purity", ORANGE),
    )
    step_X = [point["step"] for point in at]
    for axes, name, label, colour in lines:
        value_X = np.array([point[name]["value"] for point in at])
        end_X2 = np.array([list(point[name]["interval"].values()) for point in at])
        reach_2X = np.abs(end_X2.T - value_X)
        axes.errorbar(step_X, value_X, reach_2X, color=colour, label=label, marker="o", capsize=2)
    for name, colour in (("nmi_by_chance", BLUE), ("purity_by_chance", ORANGE)):
        right.plot(step_X, [point[name] for point in at], "--", color=colour, linewidth=0.8)
    left.set_ylabel("between over within sources")
    right.set_ylabel("dashed: by chance")
    for axes in (left, right):
        axes.set_xscale("symlog", linthresh=4)
        axes.set_xticks(step_X, [str(step) for step in step_X])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.legend(frameon=False)
    return _saved(figure, folder / "merging.svg")


def _figure(width: float, height: float) -> Any:
    require("matplotlib", "figures")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "dograph"  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    return path


def _differences(axes: Any, by_arm: ByArm, metric: str, order: Sequence[str], shares: Any) -> None:
    found = compared(by_arm, "plain", shares)
    arms = [arm for arm in reversed(order) if arm in found and found[arm][metric].seeds]
    for place, arm in enumerate(arms):
        told = found[arm][metric]
        colour = (BLUE if told.mean < 0 else ORANGE) if told.is_claimed else GREY
        if told.interval is not None:
            axes.plot(
                [told.interval.low, told.interval.high], [place, place], color=colour, linewidth=2
            )
        axes.plot(told.mean, place, "o", color=colour)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(arms)), [f"{arm} ({found[arm][metric].seeds})" for arm in arms])
    axes.set_ylim(-0.6, len(arms) - 0.4)
    axes.set_xlabel(f"{metric} loss vs. plain, nats; grey: no claim; in brackets: seeds")


def _curves(axes: Any, by_arm: ByArm, order: Sequence[str]) -> None:
    """Training loss minus plain's, means over seeds smoothed over five points."""
    plain = by_arm["plain"]
    axes.set_prop_cycle(color=LINES)
    for arm in order:
        own = by_arm.get(arm, {})
        seeds = [seed for seed in own if seed in plain and same_batches(own[seed], plain[seed])]
        if arm == "plain" or not seeds:
            continue
        step_X = [x for x, _ in own[seeds[0]]["curve"]]
        gap_NX = np.array(
            [
                [y for _, y in own[s]["curve"]] - np.array([y for _, y in plain[s]["curve"]])
                for s in seeds
            ]
        )
        smooth_X = np.convolve(gap_NX.mean(axis=0), np.full(5, 0.2), mode="valid")
        axes.plot(step_X[2:-2], smooth_X, label=arm)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss vs. plain, nats")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))  # beside the lines
