"""dograph compare: several mixers, several seeds, one table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dograph.cli.console import (
    On,
    RayAddress,
    Workers,
    command,
    open_console,
    open_pool,
    say,
    split_settings,
    with_corpus,
)
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.compare.arms import Ask
    from dograph.plan.pool import Pool

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [NAME=VALUE]...",
        help="the run, as in `dograph train`: a YAML file or a preset, then overrides",
        show_default=False,
    ),
]
Mixers = Annotated[
    str,
    typer.Option(
        help="all, or names with options: dograph, paper=dograph\\[recipe=paper], "
        "my:Mixer\\[a=1], with commas and without spaces; or a YAML file"
    ),
]
Seeds = Annotated[str, typer.Option(help="how many, or which: 5, or 10,11,12")]
Out = Annotated[Path, typer.Option(help="folder of the comparison; the same command goes on in it")]
Baseline = Annotated[str, typer.Option(help="the method that the others are compared with")]
BudgetName = Annotated[
    Literal["tokens", "compute"],
    typer.Option(
        metavar="tokens|compute",
        help="what is equal: training tokens, or all FLOPs with plans and sketches counted",
    ),
]
Replan = Annotated[
    bool, typer.Option("--replan", help="a plan for each seed, instead of one for all")
]
ProxySettings = Annotated[
    list[str] | None,
    typer.Option("--proxy", metavar="NAME=VALUE", help="a setting of the plans' proxies; repeat"),
]
LabFolder = Annotated[Path, typer.Option("--lab", help="where the plans' proxies are kept")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="tell what it would cost, and stop")]


def compare(
    settings: Settings = None,
    mixers: Mixers = "all",
    seeds: Seeds = "5",
    out: Out = Path("compare/demo"),
    baseline: Baseline = "natural",
    budget: BudgetName = "tokens",
    replan: Replan = False,
    proxy: ProxySettings = None,
    workers: Workers = None,
    on: On = "local",
    ray_address: RayAddress = None,
    lab: LabFolder = Path("runs/lab"),
    dry_run: DryRun = False,
) -> None:
    """Train several mixers over several seeds and say what their differences are worth.

    \b
    dograph compare                                all seven on the demo, 5 seeds
    dograph compare --mixers uniform,dograph --seeds 5 --out compare/two
    dograph compare recipe.yaml train.steps=500 --dry-run
    dograph compare recipe.yaml --mixers 'dograph,paper=dograph\\[recipe=paper]'
    dograph compare recipe.yaml --budget compute   equal FLOPs, plans counted
    dograph compare recipe.yaml --proxy train.steps=400 --replan

    Runs with the same seed are a pair: the same first weights and shuffles. With
    5 seeds and more a difference may be claimed (paired t interval, Holm over the
    rows). After Ctrl-C, a kill or a crash the same command goes on; more seeds
    may be added. OUT has compare.json, methods.csv, cells.csv and every run.
    docs/compare.md tells how to read the table.
    """  # noqa: D301
    from dograph.compare.arms import Ask, parse_methods, parse_seeds
    from dograph.config import merge, parse_override, resolve_config

    config = resolve_config(*split_settings(settings or []))
    methods = parse_methods(mixers, config, baseline)
    numbers = tuple(parse_seeds(seeds, config.seed))
    if not (planned := any(method.is_planned for method in methods)) and (replan or proxy):
        raise ConfigError("--replan and --proxy are for methods that plan; --mixers names none")
    # Not before names and seeds are known to be right: torch takes seconds to import.
    from dograph.compare.session import forecast_lines, open_corpus
    from dograph.plan.lab import default_proxy

    config = with_corpus(config, resolve=True)
    changes = merge({}, *map(parse_override, proxy or []))
    ask = Ask(
        config=config,
        proxy=default_proxy(config, changes) if planned else None,
        methods=tuple(methods),
        seeds=numbers,
        budget=budget,
        replan=replan,
        out=out,
        lab=lab,
        command=command(),
    )
    if dry_run:
        print("\n".join(forecast_lines(ask, open_corpus(ask))))
    else:
        _run(ask, open_pool(config.train.device, on, workers, ray_address))


def _run(ask: "Ask", pool: "Pool") -> None:
    """Make the runs, and show what their differences are worth."""
    from dograph.compare.session import run_compare
    from dograph.compare.table import tables
    from dograph.plan.jobs import Stopped
    from dograph.report.render import page_at_end

    out = ask.out
    try:
        with pool:
            findings = run_compare(ask, pool, say)
    except Stopped as stopped:
        say(f"{stopped}; finished cells are in {out}")
        sys.exit(128 + stopped.number)
    console = open_console()
    for table in tables(findings):
        console.print(table)
    for note in findings.notes:
        console.print(f"- {note}", markup=False, highlight=False)
    print(f"any cell again: {findings.cells[-1].command}")
    print(f"all of it: {out}/compare.json, methods.csv, cells.csv; runs: {out}/cells")
    if (page := page_at_end(out)) is not None:
        print(f"page: {page}")
    if findings.failures:
        say(f"failed: {', '.join(findings.failures)}; the same command tries them again")
        sys.exit(1)
