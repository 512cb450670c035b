"""dograph plan: a mixture before training, from proxies or from a table of runs."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dograph.cli.console import (
    On,
    RayAddress,
    Workers,
    command,
    duration,
    open_console,
    open_pool,
    require_writable,
    split_settings,
)
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.plan.lab import PlanCost
from dograph.train.assembly import open_sampler
from dograph.train.forecast import planned_epochs, repeat_warnings
from dograph.types import Mixture

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.plan.lab import Plan
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
    _check_out(out, [] if table_plan else table_files(out), force=force or dry_run)
    options = TableOptions(target or [], test_table, surrogate, prior, cap or [], max_epochs, top)
    if from_table is not None:
        _refuse(bool(proxy), workers is not None, on != "local", ray_address is not None, dry_run)
        plan_from_table(method, settings, from_table, options, out, command())
        return
    options.refuse_given()
    run = _resolved(method, settings)
    smaller = _proxies(run, proxy or [])
    if dry_run:
        from dograph.plan.lab import forecast_plan

        print(forecast_plan(run, smaller, lab=lab))
        print("later proxies may depend on what these show; they are told when they come")
        return
    made = _made(run, smaller, lab, open_pool(run.train.device, on, workers, ray_address))
    _finish(run, made, out, settings)


def _check_out(out: Path, beside: Sequence[Path], *, force: bool) -> None:
    """Hours of proxies must not end at a file that cannot be written, or that somebody needs."""
    for file in (out, *beside):
        if file.exists() and not force:
            raise ConfigError(f"{file} already exists; name another with --out, or add --force")
    require_writable(out)


def _refuse(*given: bool) -> None:
    names = ("--proxy", "--workers", "--on", "--ray-address", "--dry-run")
    if any(given):
        wrong = [name for name, there in zip(names, given, strict=True) if there]
        raise ConfigError(f"{', '.join(wrong)}: no proxies are trained with --from-table")


def _resolved(method: str, settings: list[str]) -> "RunConfig":
    """The run to plan for, its mixer being the method."""
    from dograph.config import resolve_config

    name, own = split_settings(settings)
    if any(setting.partition("=")[0] == "mixer.name" for setting in own):
        raise ConfigError(f"mixer.name is METHOD here ({method}); leave it out of the settings")
    config = resolve_config(name, [*own, f"mixer.name={method}"])
    from dograph.cli.console import ensured
    from dograph.mixers.registry import build_planner

    build_planner(config.mixer.name, config.mixer.options)
    data = config.data.model_copy(update={"corpus": str(ensured(config.data.corpus))})
    return config.model_copy(update={"data": data})


def _proxies(run: "RunConfig", settings: list[str]) -> "RunConfig":
    from dograph.config import merge, parse_override
    from dograph.plan.lab import default_proxy

    return default_proxy(run, merge({}, *(parse_override(setting) for setting in settings)))


def _made(run: "RunConfig", proxy: "RunConfig", lab: Path, pool: "Pool") -> "Plan":
    from dograph.plan.jobs import Stopped
    from dograph.plan.lab import make_plan

    try:
        with pool:
            return make_plan(run, proxy, lab=lab, pool=pool, command=command())
    except Stopped as stopped:
        print(f"{stopped}; finished proxies are in {lab}", file=sys.stderr)
        sys.exit(128 + stopped.number)


def _finish(run: "RunConfig", made: "Plan", out: Path, settings: list[str]) -> None:
    from dograph.data.corpus import Corpus
    from dograph.mixtures.file import MixtureFile, write_mixture
    from dograph.mixtures.tables import write_table

    weights = dict(made.mixture.weights)
    write_mixture(
        out, MixtureFile(weights=weights, provenance=made.provenance, findings=made.findings)
    )
    if made.table is not None:  # so that it can be fitted again, without proxies
        write_table(made.table, *table_files(out))
    corpus = Corpus(run.data.corpus)
    print_shares(weights, corpus.tokens_by_source(), "natural", run, corpus)
    print_cost(made.cost)
    print_notes(made.findings, run, corpus, made.mixture)
    if made.table is not None:
        print_fit(made.findings)
        mixtures, losses = table_files(out)
        print(f"the proxies' table: {mixtures}, {losses} (dograph plan --from-table)")
    print_use(out, settings)


def table_files(out: Path) -> tuple[Path, Path]:
    """Where the table of a plan's proxies goes: beside the plan."""
    stem = out.stem if out.suffix in (".yaml", ".yml") else out.name  # eta0.1 has no suffix
    return out.with_name(f"{stem}.mixtures.csv"), out.with_name(f"{stem}.losses.csv")


# What `dograph plan` ends with: shares, cost, warnings, how to use the file.


def print_shares(
    weights: Mapping[str, float],
    before: Mapping[str, float],
    before_name: str,
    run: RunConfig | None = None,
    corpus: Corpus | None = None,
) -> None:
    """Sources down: their share of what is there (or of the prior), of the plan, times read."""
    epochs = {} if run is None or corpus is None else _epochs(run, corpus, Mixture(weights))
    table = Table(box=None, pad_edge=False)
    table.add_column("source", no_wrap=True)
    for title in (before_name, "planned", *(["epochs"] if epochs else [])):
        table.add_column(title, justify="right", no_wrap=True)
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


def _epochs(run: RunConfig, corpus: Corpus, mixture: Mixture) -> dict[str, float]:
    sampler = open_sampler(run, corpus)
    sampler.remix(0, mixture, reason="plan")
    return planned_epochs(run, sampler, Mixer())


def print_cost(cost: PlanCost) -> None:
    cached = f" ({cost.cached} made before)" if cost.cached else ""
    print(
        f"cost: {cost.proxies} proxies{cached}, {duration(cost.seconds)} of training, "
        f"{cost.flops:.2e} FLOPs"
    )


def print_notes(
    findings: Mapping[str, Any],
    run: RunConfig | None = None,
    corpus: Corpus | None = None,
    mixture: Mixture | None = None,
) -> None:
    """What the plan's reader should know; it goes to stderr, as warnings do."""
    lines = [f"note: {text}" for text in findings.get("notes", [])]
    lines += [f"advice: {text}" for text in findings.get("advice", [])]
    if run is not None and corpus is not None and mixture is not None:
        sampler = open_sampler(run, corpus)
        sampler.remix(0, mixture, reason="plan")
        lines += [f"warning: {text}" for text in repeat_warnings(run, sampler, Mixer())]
    for line in lines:
        print(line, file=sys.stderr)


def print_fit(findings: Mapping[str, Any]) -> None:
    """How far the fit may be trusted: on runs it has not seen, then what it expects."""
    chosen = findings["surrogate"]
    print(f"surrogate: {chosen['name']}: {chosen['why']}")
    for name, scores in chosen["cross_validated"].items():
        print(f"  {name} on left-out runs: {_scores(scores)}")
    held_out = findings.get("held_out")
    if held_out is not None:
        parts = held_out["targets"] | (
            {"the objective": held_out["objective"]} if held_out["objective"] else {}
        )
        for name, scores in parts.items():
            print(f"  {name} on the test table ({held_out['runs']} runs): {_scores(scores)}")
        for note in held_out["notes"]:
            print(f"note: {note}", file=sys.stderr)
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
