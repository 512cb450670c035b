"""dograph reproduce: tables and figures of the paper, next to the paper's own."""

import json
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
Reproduce a table or figure of the paper, show it next to the paper's, and test its claims.

\b
dograph reproduce                                    list all names
dograph reproduce validation-loss --dry-run          the cost
dograph reproduce validation-loss data.corpus=data/mine
dograph reproduce gpt2-medium --benchmarks data/benchmarks
dograph reproduce cost --workers 1                   the same runs, timed
dograph reproduce objectives train.steps=100 --seeds 2
dograph reproduce num-domains --methods uniform,m7,m11
dograph reproduce model-scale model.preset=gpt2-mini,gpt2-small
dograph reproduce gpt2-small --scale paper           20,000 steps per run

The first rows are natural and inverse-norm, which need no domains, then uniform, the baseline of
all differences, and the methods of the paper. A claim is tested by its 95 % interval over seeds,
from 5 seeds on. After Ctrl-C, a kill or a crash the same command continues. OUT/reproduce.json has
all results. What each name trains and how to read it: docs/reproduce.md.
"""


def reproduce(
    name: str | None = argument(None, "a table or figure; without it, all are listed"),
    settings: list[str] | None = argument(
        None,
        "settings of every run, as in `dograph train`. data.corpus: a prepared corpus (default: "
        "data/slimpajama-mini or data/pile-mini; with --scale paper data/slimpajama-6b or "
        "data/pile). For model-scale, model.preset may name several models, separated by commas",
        "[NAME=VALUE]...",
    ),
    scale: Literal["mini", "paper"] = option("mini", "minutes per run, or as in the paper"),
    seeds: str | None = option(None, f"{console.SEEDS} (default: 5 for mini, 1 for paper)"),
    methods: str | None = option(None, "rows, by label or as in `compare --mixers`, and uniform"),
    out: Path | None = option(None, "folder of the runs (default: reproduce/SCALE/...)"),
    proxy: list[str] | None = console.PROXY,
    workers: int | None = console.WORKERS,
    on: str = console.ON,
    lab: Path = console.LAB,
    benchmarks: Path | None = console.BENCHMARKS,
    using: str = console.USING,
    tasks: str | None = console.TASKS,
    limit: int | None = console.LIMIT,
    batch_size: int = console.BATCH_SIZE,
    dry_run: bool = console.DRY_RUN,
) -> None:
    """Reproduce a table or figure of the paper, and test its claims."""
    from dograph.eval.evaluate import EvalRequest
    from dograph.reproduce.artefacts import ARTEFACTS, Wanted, find_artefact

    if name is None:
        rows = [(artefact.name, artefact.line, artefact.where) for artefact in ARTEFACTS.values()]
        titles = ("name", "what it shows", "in the paper")
        console.print_table(titles, rows, titles, box=None, pad_edge=False)
        print("cost of one of them: dograph reproduce NAME --dry-run")
        return
    artefact = find_artefact(name)
    given = locals()
    wanted = options_as(Wanted, given, command=console.command())
    request = options_as(EvalRequest, given, tasks=console.split_names(tasks))
    _run(wanted, request, (on, workers), dry_run=dry_run)


def _run(
    wanted: "Wanted", request: "EvalRequest", where: tuple[str, int | None], *, dry_run: bool
) -> None:
    from dograph.compare.session import forecast_lines
    from dograph.eval.evaluate import EvalRequest
    from dograph.reproduce import session
    from dograph.reproduce.artefacts import build_asks, require_corpus

    artefact = wanted.artefact
    has_task_options = request != EvalRequest(batch_size=request.batch_size)
    if has_task_options and artefact.kind != "downstream":
        raise ConfigError(
            "--benchmarks, --tasks, --limit and --with are for the tables of downstream tasks; "
            f"{artefact.name} has none"
        )
    build_asks(wanted)  # refuses wrong settings before a corpus is prepared
    if wanted.named_corpus is None:
        require_corpus(wanted)
    corpus_folder = json.dumps(str(console.ensured(wanted.corpus_name)))  # quoted, as YAML
    wanted = replace(wanted, settings=(*wanted.settings, f"data.corpus={corpus_folder}"))
    asks, folder = build_asks(wanted), wanted.folder
    ask = next(iter(asks.values()))  # others differ only in the model
    with stages("items") as report:
        corpus = session.check(wanted, ask, request, report)
    if dry_run:
        for ask in asks.values():
            head = f"{ask.out}: {ask.config.tokens:,} tokens per run on {corpus.directory}"
            print("\n".join([head, *forecast_lines(ask, corpus, "--methods")]))
        return
    try:
        with console.stoppable(f"finished cells are in {folder}"):
            with console.open_pool(ask.config.train.device, *where) as pool:
                studies = session.train(wanted, asks, pool, say)
            with stages("models", live=request.using == "builtin") as report:
                outcome = session.finish(studies, request, folder, report)
    except KeyboardInterrupt:
        say("stopped; nothing is lost: the same command continues")
        sys.exit(130)
    session.print_outcome(console.open_console(WIDTH), artefact, outcome)
    print(f"results: {folder / session.RESULT}; runs: {folder}")
    if outcome.failures:
        say(f"failed: {', '.join(outcome.failures)}; the same command tries them again")
        sys.exit(1)
