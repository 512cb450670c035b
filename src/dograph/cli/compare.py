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


MATCH = ("--match", "--budget")


def compare(
    settings: list[str] | None = argument(None, "the run, as in `dograph train`", console.CONFIG),
    mixers: str = option(
        "all",
        "all that can run, or names with options, separated by commas without spaces: dograph, "
        "paper=dograph\\[recipe=paper], head=dograph\\[sketch.mode=head], my:Mixer\\[a=1]",
    ),
    seeds: str = option("5", console.SEEDS),
    out: Path = option(Path("compare/demo"), "folder of the comparison"),
    baseline: str = option("natural", "the method that the others are compared with"),
    budget: Literal["tokens", "compute", "time"] = option(
        "tokens", "equal tokens, equal FLOPs in all, or equal tokens and equal time", *MATCH
    ),
    rates: str | None = option(
        None, "learning rates, as in 5e-4,1e-3: each method gets its own best one; needs --tune"
    ),
    tune: list[str] | None = option(
        None,
        "settings of the runs that choose it, its seed among them; may be repeated",
        metavar="NAME=VALUE",
    ),
    replan: bool = option(False, "a plan for each seed, instead of one for all", "--replan"),
    proxy: list[str] | None = console.PROXY,
    workers: int | None = console.WORKERS,
    on: str = console.ON,
    lab: Path = console.LAB,
    dry_run: bool = console.DRY_RUN,
) -> None:
    """Train several mixers with several seeds, and test their differences in loss.

    \b
    dograph compare                                all methods on the demo, 5 seeds
    dograph compare --mixers uniform,dograph --seeds 5 --out compare/two
    dograph compare recipe.yaml train.steps=500 --dry-run
    dograph compare recipe.yaml --mixers 'dograph,paper=dograph\\[recipe=paper]'
    dograph compare recipe.yaml --match compute    equal FLOPs, including plans
    dograph compare recipe.yaml --match time --rates 5e-4,1e-3 --tune seed=100
    dograph compare recipe.yaml --proxy train.steps=400 --replan

    Runs with the same seed are a pair: the same initial weights and shuffles. From 5 seeds on
    differences are tested (paired t interval, Holm-corrected over the rows). After Ctrl-C, a kill
    or a crash the same command continues; seeds can be added. OUT has compare.json
    and every run. How to read the table: docs/compare.md.
    """  # noqa: D301
    ask = _ask(settings or [], proxy or [], locals())
    if dry_run:
        from dograph.compare.session import forecast_lines, open_corpus

        print("\n".join(forecast_lines(ask, open_corpus(ask, say))))
    else:
        _run(ask, console.open_pool(ask.config.train.device, on, workers))


def _run(ask: "Ask", pool: "Pool") -> None:
    from dograph.compare.session import run_compare
    from dograph.compare.tables import equal_time_table, tables

    out, shown = ask.out, console.open_console()
    with console.stoppable(f"finished cells are in {out}"), pool:
        findings = run_compare(ask, pool, say)
    for table in filter(None, (equal_time_table(findings), *tables(findings))):
        shown.print(table)
    for note in findings.notes:
        shown.print(f"- {note}", markup=False, highlight=False)
    print(f"to repeat one cell: {findings.cells[-1].command}")
    print(f"results: {out}/compare.json; runs: {out}/cells")
    console.print_page(out)
    if findings.failures:
        say(f"failed: {', '.join(findings.failures)}; the same command tries them again")
        sys.exit(1)


def _ask(settings: list[str], proxy: list[str], given: dict[str, Any]) -> "Ask":
    """The comparison that the options describe; an embedded corpus is prepared."""
    from dograph.compare.arms import Ask, parse_methods, parse_rates, parse_seeds
    from dograph.config import merge, parse_override, resolve_config

    config = resolve_config(*console.split_settings(settings))
    methods = parse_methods(given["mixers"], config, given["baseline"])
    seeds = parse_seeds(given["seeds"], config.seed)
    planned = any(method.is_planned for method in methods)
    if not planned and (given["replan"] or proxy):
        raise ConfigError("--replan and --proxy are for methods that plan; --mixers names none")
    # Imported only now: torch takes seconds, and names and seeds have been checked.
    from dograph.compare.session import without_unable
    from dograph.plan.lab import default_proxy

    rates, tune = parse_rates(given["rates"] or "", given["tune"] or [], seeds)
    config = console.with_corpus(config, resolve=True)
    changes = merge({}, *map(parse_override, proxy))
    own = {"config": config, "methods": tuple(methods), "seeds": tuple(seeds)}
    own |= {"rates": rates, "tune": tune}
    own |= {"proxy": default_proxy(config, changes) if planned else None}
    return without_unable(options_as(Ask, given, **own, command=console.command()), say)
