"""dograph compare: several mixers, several seeds, one table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dograph.cli import console
from dograph.cli.console import argument, option, options_as, say
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.compare.arms import Ask
    from dograph.plan.pool import Pool


def compare(
    settings: list[str] | None = argument(
        None,
        "the run, as in `dograph train`: a YAML file or a preset, then overrides",
        console.CONFIG,
    ),
    mixers: str = option(
        "all",
        "all, or names with options: dograph, paper=dograph\\[recipe=paper], "
        "my:Mixer\\[a=1], with commas and without spaces; or a YAML file",
    ),
    seeds: str = option("5", "how many, or which: 5, or 10,11,12"),
    out: Path = option(
        Path("compare/demo"), "folder of the comparison; the same command goes on in it"
    ),
    baseline: str = option("natural", "the method that the others are compared with"),
    budget: Literal["tokens", "compute"] = option(
        "tokens",
        "what is equal: training tokens, or all FLOPs with plans and sketches counted",
        metavar="tokens|compute",
    ),
    replan: bool = option(False, "a plan for each seed, instead of one for all", "--replan"),
    proxy: list[str] | None = console.PROXY,
    workers: int | None = console.WORKERS,
    on: str = console.ON,
    ray_address: str | None = console.RAY_ADDRESS,
    lab: Path = console.LAB,
    dry_run: bool = console.DRY_RUN,
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
    ask = _asked(settings or [], proxy or [], locals())
    if dry_run:
        from dograph.compare.session import forecast_lines, open_corpus

        print("\n".join(forecast_lines(ask, open_corpus(ask))))
    else:
        _run(ask, console.open_pool(ask.config.train.device, on, workers, ray_address))


def _asked(settings: list[str], proxy: list[str], given: dict[str, Any]) -> "Ask":
    """The comparison that the options describe; its corpus is there afterwards."""
    from dograph.compare.arms import Ask, parse_methods, parse_seeds
    from dograph.config import merge, parse_override, resolve_config

    config = resolve_config(*console.split_settings(settings))
    methods = parse_methods(given["mixers"], config, given["baseline"])
    seeds = parse_seeds(given["seeds"], config.seed)
    planned = any(method.is_planned for method in methods)
    if not planned and (given["replan"] or proxy):
        raise ConfigError("--replan and --proxy are for methods that plan; --mixers names none")
    # Not before names and seeds are known to be right: torch takes seconds to import.
    from dograph.plan.lab import default_proxy

    config = console.with_corpus(config, resolve=True)
    changes = merge({}, *map(parse_override, proxy))
    own = {"config": config, "methods": tuple(methods), "seeds": tuple(seeds)}
    own |= {"proxy": default_proxy(config, changes) if planned else None}
    return options_as(Ask, given, **own, command=console.command())


def _run(ask: "Ask", pool: "Pool") -> None:
    """Make the runs, and show what their differences are worth."""
    from dograph.compare.session import run_compare
    from dograph.compare.tables import tables

    out, shown = ask.out, console.open_console()
    with console.stoppable(f"finished cells are in {out}"), pool:
        findings = run_compare(ask, pool, say)
    for table in tables(findings):
        shown.print(table)
    for note in findings.notes:
        shown.print(f"- {note}", markup=False, highlight=False)
    print(f"any cell again: {findings.cells[-1].command}")
    print(f"all of it: {out}/compare.json, methods.csv, cells.csv; runs: {out}/cells")
    console.print_page(out)
    if findings.failures:
        say(f"failed: {', '.join(findings.failures)}; the same command tries them again")
        sys.exit(1)
