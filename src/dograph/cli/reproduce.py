"""dograph reproduce: a table or figure of the paper, made again and judged."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    say,
    stages,
)
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.eval.evaluate import EvalRequest
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
    from dograph.reproduce import artefacts, asks, session

    if name is None:
        session.print_list(open_console(WIDTH))
        return
    wanted = asks.Wanted(
        artefact=artefacts.find_artefact(name),
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
) -> "EvalRequest":
    from dograph.eval.evaluate import EvalRequest

    given = benchmarks is not None or tasks or limit or using != "builtin"
    if given and artefact.kind != "downstream":
        raise ConfigError(
            f"--benchmarks, --tasks, --limit and --with are for the tables of downstream tasks; "
            f"{artefact.name} asks no questions"
        )
    names = tuple(name.strip() for name in tasks.split(",")) if tasks else ()
    return EvalRequest(
        benchmarks=benchmarks, tasks=names, limit=limit, using=using, batch_size=batch_size
    )


def _run(
    wanted: "Wanted",
    request: "EvalRequest",
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
    with stages("items") as report:
        corpus = session.check(wanted, asks, request, report)
    if dry_run:
        for line in session.forecast(asks, corpus):
            print(line)
        return
    try:
        with open_pool(next(iter(asks.values())).config.train.device, *where) as pool:
            study = session.train(wanted, asks, pool, say)
        with stages("models", live=request.using == "builtin") as report:
            outcome, record = session.finish(study, request, folder, report)
    except Stopped as stopped:
        print(f"{stopped}; finished cells are in {folder}", file=sys.stderr)
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        print("stopped; nothing is lost: the same command goes on", file=sys.stderr)
        sys.exit(130)
    if wanted.artefact.kind == "gradient-pca":
        from dograph.report.drawing import picture_notes

        notes = picture_notes(folder / COORDINATES, folder / "gradient-pca.svg")
        record = replace(record, notes=[*record.notes, *notes])
    session.print_outcome(open_console(WIDTH), wanted.artefact, outcome, record)
    print(f"all of it: {folder / session.RESULT}; the runs: {folder}")
    if record.failures:
        failed = ", ".join(record.failures)
        print(f"failed: {failed}; the same command tries them again", file=sys.stderr)
        sys.exit(1)
