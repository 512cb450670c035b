"""dograph reproduce: a table or figure of the paper, made again and judged."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dograph.cli import console
from dograph.cli.console import argument, option, options_as, say, stages
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.eval.evaluate import EvalRequest
    from dograph.reproduce.artefacts import Wanted

WIDTH = 120  # of the tables, where there is no terminal to ask
HELP = """\
Make a table or figure of the paper again, set it beside the paper's, and judge its claims.

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
"""


def reproduce(
    name: str | None = argument(None, "a table or figure; without it, all are listed"),
    settings: list[str] | None = argument(
        None,
        "changes to every run, as in `dograph train`: train.steps=100",
        "[SETTING=VALUE]...",
    ),
    scale: Literal["mini", "paper"] = option(
        "mini", "mini: minutes a run on one GPU; paper: the paper's models and steps"
    ),
    corpus: str | None = option(
        None,
        "a prepared corpus (default: data/slimpajama-mini or data/pile-mini; at the paper's "
        "scale data/slimpajama-6b or data/pile)",
        metavar="DIR",
    ),
    benchmarks: Path | None = option(
        None, "folder of the tasks' data, as in `dograph eval`; else the hub"
    ),
    seeds: str | None = option(
        None, "how many, or which: 5, or 10,11,12 (default: 5 at mini, 1 at paper)"
    ),
    methods: str | None = option(
        None,
        "rows of the table, by label or as in `dograph compare --mixers`; uniform is always there",
    ),
    sizes: str | None = option(None, "of model-scale: models by name, with commas between"),
    out: Path | None = option(
        None, "folder of the runs (default: reproduce/SCALE/..., shared by tables of the same runs)"
    ),
    proxy: list[str] | None = console.PROXY,
    workers: int | None = console.WORKERS,
    on: str = console.ON,
    ray_address: str | None = console.RAY_ADDRESS,
    lab: Path = console.LAB,
    using: str = option(
        "builtin", "scorer of the tasks: builtin, or lm-eval (extra eval)", "--with"
    ),
    tasks: str | None = option(None, "some of the nine, with commas between"),
    limit: str | None = option(None, "items of each task, evenly spaced: 200"),
    batch_size: int = option(32, "texts scored at once", min=1),
    dry_run: bool = console.DRY_RUN,
) -> None:
    """Make a table or figure of the paper again, and judge its claims."""
    from dograph.eval.evaluate import EvalRequest
    from dograph.reproduce.artefacts import Wanted, find_artefact
    from dograph.reproduce.session import print_list

    if name is None:
        print_list(console.open_console(WIDTH))
        return
    artefact = find_artefact(name)
    wanted = options_as(Wanted, locals(), command=console.command())
    request = options_as(EvalRequest, locals(), tasks=console.split_names(tasks))
    _run(wanted, request, (on, workers, ray_address), dry_run=dry_run)


def _run(
    wanted: "Wanted",
    request: "EvalRequest",
    where: tuple[str, int | None, str | None],
    *,
    dry_run: bool,
) -> None:
    """Check everything, make the runs, judge them, and show what came of it."""
    from dograph.eval.evaluate import EvalRequest
    from dograph.reproduce import session
    from dograph.reproduce.artefacts import build_asks, require_corpus
    from dograph.reproduce.seen import COORDINATES

    artefact = wanted.artefact
    asked = request != EvalRequest(batch_size=request.batch_size)
    if asked and artefact.kind != "downstream":
        raise ConfigError(
            f"--benchmarks, --tasks, --limit and --with are for the tables of downstream tasks; "
            f"{artefact.name} asks no questions"
        )
    build_asks(wanted)  # what is wrong with the settings is told before a corpus is prepared
    if wanted.corpus is None:
        require_corpus(wanted)
    wanted = replace(wanted, corpus=str(console.ensured(wanted.corpus_name)))
    asks, folder = build_asks(wanted), wanted.folder
    with stages("items") as report:
        corpus = session.check(wanted, asks, request, report)
    if dry_run:
        for line in session.forecast(asks, corpus):
            print(line)
        return
    device = next(iter(asks.values())).config.train.device
    try:
        with console.stoppable(f"finished cells are in {folder}"):
            with console.open_pool(device, *where) as pool:
                study = session.train(wanted, asks, pool, say)
            with stages("models", live=request.using == "builtin") as report:
                outcome = session.finish(study, request, folder, report)
    except KeyboardInterrupt:
        say("stopped; nothing is lost: the same command goes on")
        sys.exit(130)
    if artefact.kind == "gradient-pca":
        from dograph.report.drawing import picture_notes

        notes = picture_notes(folder / COORDINATES, folder / "gradient-pca.svg")
        outcome = replace(outcome, notes=[*outcome.notes, *notes])
    session.print_outcome(console.open_console(WIDTH), artefact, outcome)
    print(f"all of it: {folder / session.RESULT}; the runs: {folder}")
    if outcome.failures:
        say(f"failed: {', '.join(outcome.failures)}; the same command tries them again")
        sys.exit(1)
