"""dograph plan: a mixture before training, from proxies or from a table of runs."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dograph.cli.console import (
    On,
    RayAddress,
    Workers,
    command,
    open_console,
    open_pool,
    open_table,
    require_writable,
    say,
    split_settings,
    with_corpus,
)
from dograph.errors import ConfigError
from dograph.progress import duration

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.data.corpus import Corpus
    from dograph.data.sampler import Sampler
    from dograph.plan.pool import Pool

Method = Annotated[str, typer.Argument(metavar="METHOD", help="doremi, doge, regmix or mixing-law")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [NAME=VALUE]...",
        help="the run that the plan is for, as in `dograph train`; mixer.* are METHOD's options",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(help="the mixture file to write")]
Force = Annotated[bool, typer.Option("--force", help="write over --out")]
ProxySettings = Annotated[
    list[str] | None,
    typer.Option("--proxy", metavar="NAME=VALUE", help="a setting of the proxies; repeat for more"),
]
LabFolder = Annotated[Path, typer.Option("--lab", help="where proxies are kept, by content")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="tell what the first proxies would cost, and stop")
]
Pair = tuple[Path, Path]
FromTable = Annotated[
    Pair | None,
    typer.Option(metavar="MIXTURES.csv LOSSES.csv", help="fit on runs that exist; no proxies"),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=SHARE]",
        help="with --from-table: the loss to lower; repeat for several (default: the mean of all)",
        show_default=False,
    ),
]
TestTable = Annotated[
    Pair | None,
    typer.Option(metavar="MIXTURES.csv LOSSES.csv", help="with --from-table: judge the fit on it"),
]
Surrogate = Annotated[
    str | None,
    typer.Option(
        help="with --from-table: lightgbm, exponential, transfer, ridge or linear (default: the "
        "one that best ranks left-out runs); for mixing-law exponential or transfer",
        show_default=False,
    ),
]
Prior = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.yaml|PRESET",
        help="with --from-table: the mixture to start from; presets: dograph export --list",
    ),
]
Cap = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="with --from-table: highest weight of a source"),
]
MaxEpochs = Annotated[
    float | None,
    typer.Option(help="with --from-table and CONFIG: caps from how often a source may be read"),
]
Top = Annotated[
    int | None, typer.Option(help="with --from-table: best mixtures averaged by regmix")
]


def plan(
    method: Method,
    settings: Settings = None,
    out: Out = Path("mixture.yaml"),
    force: Force = False,
    proxy: ProxySettings = None,
    workers: Workers = None,
    on: On = "local",
    ray_address: RayAddress = None,
    lab: LabFolder = Path("runs/lab"),
    dry_run: DryRun = False,
    from_table: FromTable = None,
    target: Target = None,
    test_table: TestTable = None,
    surrogate: Surrogate = None,
    prior: Prior = None,
    cap: Cap = None,
    max_epochs: MaxEpochs = None,
    top: Top = None,
) -> None:
    """Decide a mixture before training, and write it to a file for training.

    \b
    dograph plan regmix                       for the demo run
    dograph plan doremi recipe.yaml           for your run
    dograph plan doge recipe.yaml mixer.mu=0.05 --workers 8
    dograph plan regmix recipe.yaml --dry-run
    dograph plan regmix recipe.yaml --proxy train.steps=400
    dograph plan regmix recipe.yaml --on ray --lab /shared/lab
    dograph plan regmix --from-table mixtures.csv losses.csv --target C4
    dograph train recipe.yaml mixer.name=static mixer.file=mixture.yaml

    A proxy is the run with a smaller model and a quarter of the steps, unless
    --proxy says otherwise. Proxies are kept in --lab and never made twice: after
    Ctrl-C, a kill or a crash the same command goes on. docs/plan.md tells more.
    """  # noqa: D301
    from dograph.cli.plan_table import TableOptions, plan_from_table
    from dograph.mixers.registry import require_method

    settings = settings or []
    table_plan = from_table is not None
    if not table_plan:
        require_method(method)  # first of all, and before torch is imported: that takes seconds
    _require_free(out, *(() if table_plan else table_files(out)), force=force or dry_run)
    options = TableOptions(target or [], test_table, surrogate, prior, cap or [], max_epochs, top)
    if from_table is not None:
        idle: dict[str, object] = {"--proxy": proxy, "--workers": workers, "--on": on != "local"}
        idle |= {"--ray-address": ray_address, "--dry-run": dry_run}
        if wrong := [name for name, value in idle.items() if value not in (None, False, [])]:
            raise ConfigError(f"{', '.join(wrong)}: no proxies are trained with --from-table")
        plan_from_table(method, settings, from_table, options, out, command())
        return
    options.refuse_given()
    run, smaller = _resolved(method, settings, proxy or [])
    pool = None if dry_run else open_pool(run.train.device, on, workers, ray_address)
    _run(run, smaller, lab, pool, out, settings)


def _require_free(out: Path, *beside: Path, force: bool) -> None:
    """Hours of proxies must not end at a file that cannot be written, or that somebody needs."""
    for file in (out, *beside):
        if file.exists() and not force:
            raise ConfigError(f"{file} already exists; name another with --out, or add --force")
    require_writable(out)


def _resolved(
    method: str, settings: list[str], proxy: list[str]
) -> tuple["RunConfig", "RunConfig"]:
    """The run to plan for, its mixer being the method, and a proxy of it."""
    from dograph.config import merge, parse_override, resolve_config

    name, own = split_settings(settings)
    if any(setting.partition("=")[0] == "mixer.name" for setting in own):
        raise ConfigError(f"mixer.name is METHOD here ({method}); leave it out of the settings")
    config = resolve_config(name, [*own, f"mixer.name={method}"])
    from dograph.mixers.registry import build_planner
    from dograph.plan.lab import default_proxy

    build_planner(config.mixer.name, config.mixer.options)
    run = with_corpus(config)
    return run, default_proxy(run, merge({}, *(parse_override(setting) for setting in proxy)))


def _run(
    run: "RunConfig",
    proxy: "RunConfig",
    lab: Path,
    pool: "Pool | None",
    out: Path,
    settings: list[str],
) -> None:
    """Make the plan, write it, and tell its shares, cost, what speaks for it and how to use it.

    Without a pool, only tell what the first proxies would cost.
    """
    from dograph.data.corpus import Corpus
    from dograph.mixtures.file import MixtureFile, write_mixture
    from dograph.mixtures.tables import write_table
    from dograph.plan.jobs import Stopped
    from dograph.plan.lab import forecast_plan, make_plan

    if pool is None:
        print(forecast_plan(run, proxy, lab=lab))
        print("later proxies may depend on what these show; they are told when they come")
        return
    try:
        with pool:
            made = make_plan(run, proxy, lab=lab, pool=pool, command=command())
    except Stopped as stopped:
        say(f"{stopped}; finished proxies are in {lab}")
        sys.exit(128 + stopped.number)
    weights, cost = dict(made.mixture.weights), made.cost
    write_mixture(
        out, MixtureFile(weights=weights, provenance=made.provenance, findings=made.findings)
    )
    if made.table is not None:  # so that it can be fitted again, without proxies
        write_table(made.table, *table_files(out))
    corpus = Corpus(run.data.corpus)
    print_shares(weights, corpus.tokens_by_source(), "natural", run, corpus)
    cached = f" ({cost.cached} made before)" if cost.cached else ""
    print(
        f"cost: {cost.proxies} proxies{cached}, {duration(cost.seconds)} of training, "
        f"{cost.flops:.2e} FLOPs"
    )
    print_notes(made.findings, weights, run, corpus)
    if made.table is not None:
        print_fit(made.findings)
        mixtures, losses = table_files(out)
        print(f"the proxies' table: {mixtures}, {losses} (dograph plan --from-table)")
    print_use(out, settings)


def table_files(out: Path) -> tuple[Path, Path]:
    """Where the table of a plan's proxies goes: beside the plan."""
    stem = out.stem if out.suffix in (".yaml", ".yml") else out.name  # eta0.1 has no suffix
    return out.with_name(f"{stem}.mixtures.csv"), out.with_name(f"{stem}.losses.csv")


def _planned(run: "RunConfig", corpus: "Corpus", weights: Mapping[str, float]) -> "Sampler":
    """The run's sampler, drawing by the plan."""
    from dograph.train.assembly import open_sampler
    from dograph.types import Mixture

    sampler = open_sampler(run, corpus)
    sampler.remix(0, Mixture(weights), reason="plan")
    return sampler


def print_shares(
    weights: Mapping[str, float],
    before: Mapping[str, float],
    before_name: str,
    run: "RunConfig | None" = None,
    corpus: "Corpus | None" = None,
) -> None:
    """Sources down: their share of what is there (or of the prior), of the plan, times read."""
    from dograph.mixers.base import Mixer
    from dograph.train.forecast import planned_epochs

    epochs: Mapping[str, float] = {}
    if run is not None and corpus is not None:
        epochs = planned_epochs(run, _planned(run, corpus, weights), Mixer())
    titles = ("source", before_name, "planned", *(["epochs"] if epochs else []))
    table = open_table(*titles, left=("source",), box=None, pad_edge=False)
    total = sum(before.values())
    for name in [*before, *(name for name in weights if name not in before)]:
        cells = [f"{before.get(name, 0) / total:.4f}", f"{weights.get(name, 0):.4f}"]
        cells += [f"{epochs.get(name, 0):.2f}"] if epochs else []
        table.add_row(name, *cells)
    open_console().print(table, highlight=False)
    shares = {
        "natural": "natural: share of the corpus' tokens",
        "prior": "prior: the mixture that the plan starts from",
    }
    read = "; epochs: how often the run will read a source through" if epochs else ""
    print(f"{shares[before_name]}{read}")


def print_notes(
    findings: Mapping[str, Any],
    weights: Mapping[str, float],
    run: "RunConfig | None" = None,
    corpus: "Corpus | None" = None,
) -> None:
    """What the plan's reader should know; it goes to stderr, as warnings do."""
    from dograph.mixers.base import Mixer
    from dograph.train.forecast import repeat_warnings

    for text in findings.get("notes", []):
        say(f"note: {text}")
    for text in findings.get("advice", []):
        say(f"advice: {text}")
    if run is not None and corpus is not None:
        for text in repeat_warnings(run, _planned(run, corpus, weights), Mixer()):
            say(f"warning: {text}")


def print_fit(findings: Mapping[str, Any]) -> None:
    """How far the fit may be trusted: on runs it has not seen, then what it expects."""
    chosen = findings["surrogate"]
    print(f"surrogate: {chosen['name']}: {chosen['why']}")
    for name, scores in chosen["cross_validated"].items():
        print(f"  {name} on left-out runs: {_scores(scores)}")
    held_out = findings.get("held_out")
    if held_out is not None:
        objective = {"the objective": held_out["objective"]} if held_out["objective"] else {}
        for name, scores in (held_out["targets"] | objective).items():
            print(f"  {name} on the test table ({held_out['runs']} runs): {_scores(scores)}")
        for note in held_out["notes"]:
            say(f"note: {note}")
    for row in findings.get("simulation", {}).get("sensitivity", []):
        print(
            f"  averaging the best {row['top']}: predicted loss {row['predicted_loss']:.4f}, "
            f"{row['distance']:.3f} (L1) from the plan"
        )
    predicted = findings["predicted"]
    best = predicted["best_run"]
    print(
        f"predicted loss: {predicted['proposal']:.4f}, of the prior {predicted['prior']:.4f}; best "
        f"run of the table: {best['run']}, {best['measured']:.4f} measured, "
        f"{best['predicted']:.4f} predicted"
    )


def _scores(scores: Mapping[str, Any]) -> str:
    kinds = (("Spearman", "spearman"), ("Pearson", "pearson"), ("mean error", "mean_error"))
    told = [f"{title} {scores[key]:.4f}" for title, key in kinds if scores[key] is not None]
    return ", ".join([*told, *([scores["note"]] if scores["note"] else [])])


def print_use(out: Path, settings: list[str]) -> None:
    """The command that trains with the file."""
    kept = [setting for setting in settings if not setting.startswith("mixer.")]
    use = ["dograph", "train", *kept, "mixer.name=static", f"mixer.file={out}"]
    print(f"{out} is written. Train with it: {shlex.join(use)}")
