"""dograph reproduce: a table or figure of the paper, made again and judged."""

import io
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dograph.cli.compare import DryRun, LabFolder, ProxySettings
from dograph.cli.console import (
    On,
    RayAddress,
    Workers,
    command,
    ensured,
    open_console,
    open_pool,
    stages_shown,
)
from dograph.errors import ConfigError, MissingExtraError, require
from dograph.files import write_text
from dograph.report.drawing import STYLE, WIDE, colour, mark, sheet

if TYPE_CHECKING:
    from dograph.eval.evaluate import Request
    from dograph.reproduce.artefacts import Artefact
    from dograph.reproduce.asks import Wanted

WIDTH = 120  # of the tables, where there is no terminal to ask

Name = Annotated[
    str | None,
    typer.Argument(help="a table or figure; without it, all are listed", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SETTING=VALUE]...",
        help="changes to every run, as in `dograph train`: train.steps=100",
        show_default=False,
    ),
]
ScaleName = Annotated[
    Literal["mini", "paper"],
    typer.Option(help="mini: minutes a run on one GPU; paper: the paper's models and steps"),
]
CorpusFolder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="a prepared corpus (default: data/slimpajama-mini or data/pile-mini; at the paper's "
        "scale data/slimpajama-6b or data/pile)",
        show_default=False,
    ),
]
Benchmarks = Annotated[
    Path | None,
    typer.Option(help="folder of the tasks' data, as in `dograph eval`; else the hub"),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="how many, or which: 5, or 10,11,12 (default: 5 at mini, 1 at paper)",
        show_default=False,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="rows of the table, by label or as in `dograph compare --mixers`; uniform is "
        "always there",
        show_default=False,
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(help="of model-scale: models by name, with commas between", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="folder of the runs (default: reproduce/SCALE/..., shared by tables of the same runs)",
        show_default=False,
    ),
]
Using = Annotated[
    str, typer.Option("--with", help="scorer of the tasks: builtin, or lm-eval (extra eval)")
]
Tasks = Annotated[
    str | None, typer.Option(help="some of the nine, with commas between", show_default=False)
]
Limit = Annotated[
    str | None, typer.Option(help="items of each task, evenly spaced: 200", show_default=False)
]
BatchSize = Annotated[int, typer.Option(min=1, help="texts scored at once")]


def reproduce(
    name: Name = None,
    settings: Settings = None,
    scale: ScaleName = "mini",
    corpus: CorpusFolder = None,
    benchmarks: Benchmarks = None,
    seeds: Seeds = None,
    methods: Methods = None,
    sizes: Sizes = None,
    out: Out = None,
    proxy: ProxySettings = None,
    workers: Workers = None,
    on: On = "local",
    ray_address: RayAddress = None,
    lab: LabFolder = Path("runs/lab"),
    using: Using = "builtin",
    tasks: Tasks = None,
    limit: Limit = None,
    batch_size: BatchSize = 32,
    dry_run: DryRun = False,
) -> None:
    """Make a table or figure of the paper again, set it beside the paper's, and judge its claims.

    \b
    dograph reproduce                                    every name, a line each
    dograph reproduce validation-loss --dry-run          what it would cost
    dograph reproduce validation-loss --corpus data/mine
    dograph reproduce gpt2-medium --benchmarks data/benchmarks
    dograph reproduce cost --workers 1                   the same runs, timed
    dograph reproduce objectives train.steps=100 --seeds 2
    dograph reproduce num-domains --methods uniform,m7,m11
    dograph reproduce gpt2-small --scale paper           20,000 steps a run

    natural and inverse-norm come first: what they gain needs no domains. Then
    uniform, the baseline of all differences, and the paper's methods. A claim is
    judged by its 95 % interval over seeds, from 5 seeds on. After Ctrl-C, a kill
    or a crash the same command goes on. OUT/reproduce.json holds all of it.
    docs/reproduce.md tells what each name trains and how to read it.
    """  # noqa: D301
    from dograph.reproduce.artefacts import find_artefact
    from dograph.reproduce.asks import Wanted
    from dograph.reproduce.session import print_list

    if name is None:
        print_list(open_console(WIDTH))
        return
    wanted = Wanted(
        artefact=find_artefact(name),
        scale=scale,
        settings=tuple(settings or []),
        corpus=corpus,
        seeds=seeds,
        methods=methods,
        sizes=sizes,
        proxy=tuple(proxy or []),
        out=out,
        lab=lab,
        command=command(),
    )
    request = _request(wanted.artefact, benchmarks, tasks, limit, using, batch_size)
    _run(wanted, request, (on, workers, ray_address), dry_run=dry_run)


def _request(
    artefact: "Artefact",
    benchmarks: Path | None,
    tasks: str | None,
    limit: str | None,
    using: str,
    batch_size: int,
) -> "Request":
    from dograph.eval.evaluate import Request

    given = benchmarks is not None or tasks or limit or using != "builtin"
    if given and artefact.kind != "downstream":
        raise ConfigError(
            f"--benchmarks, --tasks, --limit and --with are for the tables of downstream tasks; "
            f"{artefact.name} asks no questions"
        )
    names = tuple(name.strip() for name in tasks.split(",")) if tasks else ()
    return Request(
        benchmarks=benchmarks, tasks=names, limit=limit, using=using, batch_size=batch_size
    )


def _run(
    wanted: "Wanted",
    request: "Request",
    where: tuple[str, int | None, str | None],
    *,
    dry_run: bool,
) -> None:
    from dograph.plan.jobs import Stopped
    from dograph.reproduce import session
    from dograph.reproduce.asks import build_asks, require_corpus
    from dograph.reproduce.seen import COORDINATES

    build_asks(wanted)  # what is wrong with the settings is told before a corpus is prepared
    if wanted.corpus is None:
        require_corpus(wanted)
    wanted = replace(wanted, corpus=str(ensured(wanted.corpus_name)))
    asks, folder = build_asks(wanted), wanted.folder
    with stages_shown("items") as report:
        corpus = session.check(wanted, asks, request, report)
    if dry_run:
        for line in session.forecast(asks, corpus):
            print(line)
        return
    try:
        with open_pool(next(iter(asks.values())).config.train.device, *where) as pool:
            study = session.train(
                wanted, asks, pool, lambda text: print(text, file=sys.stderr, flush=True)
            )
        with stages_shown("models", live=request.using == "builtin") as report:
            outcome, record = session.finish(study, request, folder, report)
    except Stopped as stopped:
        print(f"{stopped}; finished cells are in {folder}", file=sys.stderr)
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        print("stopped; nothing is lost: the same command goes on", file=sys.stderr)
        sys.exit(130)
    if wanted.artefact.kind == "gradient-pca":
        notes = picture_notes(folder / COORDINATES, folder / "gradient-pca.svg")
        record = record | {"notes": [*record["notes"], *notes]}
    session.print_outcome(open_console(WIDTH), wanted.artefact, outcome, record)
    print(f"all of it: {folder / session.RESULT}; the runs: {folder}")
    if record["failures"]:
        failed = ", ".join(record["failures"])
        print(f"failed: {failed}; the same command tries them again", file=sys.stderr)
        sys.exit(1)


# The picture of `dograph reproduce gradient-pca`: how the rows of sources lie, probe by probe.
#
# A panel for each probe and method, on the probe's own components as in the paper, and one range
# for all: directions have length 1, so widths can be compared. How much of its variance two
# components hold stands over each. Colours and marks are those of the page and of paper figures.

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
        steps = [*points["coordinates"], *[None] * len(own)]
        for axis, step in zip(own, steps, strict=False):
            _panel(axis, points, step, sources)
        for line in axes[row : row + rows_of[name]]:
            line[0].set_ylabel(name)
        row += rows_of[name]
    # One square for all panels, with every point in it; numbers at the outer ones alone.
    dots = [dot for p in found.values() for probe in p["coordinates"].values() for dot in probe]
    low, high = ([end(dot[part] for dot in dots) for part in (0, 1)] for end in (min, max))
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


def _panel(axis: Any, points: Points, step: str | None, sources: list[str]) -> None:
    """One probe, or an empty place after the last."""
    if step is None:
        axis.set_axis_off()
        return
    pairs = list(zip(points["coordinates"][step], points["source"], strict=True))
    for index, source in enumerate(sources):
        own = [dot for dot, of in pairs if points["sources"][of] == source]
        axis.scatter(
            [dot[0] for dot in own],
            [dot[1] for dot in own],
            s=4,
            marker=mark(index),
            color=colour(index),
            label=source,
            linewidths=0,
            alpha=0.7,
        )
    axis.set_title(f"step {int(step):,}: {100 * sum(points['explained'][step]):.0f} %")
