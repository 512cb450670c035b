"""The page's figures as files for a paper: PDF and SVG with letters as letters, and PNG."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, require
from dograph.report.collect import collect, open_subjects
from dograph.report.content import PageData
from dograph.report.drawing import STYLE
from dograph.report.drawn_comparison import (
    draw_benchmarks,
    draw_comparison,
    draw_cost,
    draw_scales,
)
from dograph.report.figures import draw_curves, draw_run, file_stem

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
        yield from draw_run(run, "" if len(data.runs) == 1 else f"{file_stem(run.name)}-")
    yield from draw_cost(data)
    for k, comparison in enumerate(data.comparisons):
        yield from draw_comparison(comparison, f"comparison{k + 1 if k else ''}-")
    yield from draw_scales(data)
    if data.benchmarks is not None:
        yield from draw_benchmarks(data.benchmarks)
