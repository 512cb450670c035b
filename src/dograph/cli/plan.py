"""dograph plan: a mixture before training, from proxies (or a table, see plan_table)."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.cli import console
from dograph.cli.console import argument, option, print_table, warn
from dograph.errors import ConfigError
from dograph.progress import duration

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.mixers.base import Planner
    from dograph.mixtures.file import MixtureFile
    from dograph.plan.lab import Plan

Pair = tuple[Path, Path]
TABLE = "MIXTURES.csv LOSSES.csv"
HELP = """\
Find a mixture before training, and write it to a file that training can use.

\b
dograph plan regmix                       for the demo run
dograph plan doremi recipe.yaml           for your run
dograph plan doge recipe.yaml mixer.mu=0.05 --workers 8
dograph plan regmix recipe.yaml --dry-run
dograph plan regmix recipe.yaml --proxy train.steps=400
dograph plan regmix recipe.yaml --on ray --lab /shared/lab
dograph plan regmix recipe.yaml --write-mixtures mixtures.csv
dograph plan regmix --from-table mixtures.csv losses.csv mixer.target=C4
dograph train recipe.yaml mixer.name=static mixer.file=mixture.yaml

A proxy is the run with a smaller model and a quarter of the steps, unless --proxy says otherwise.
Proxies are kept in --lab and never trained twice: after Ctrl-C, a kill or a crash the same command
continues. With --from-table no proxies are trained, and METHOD's options are mixer.target,
mixer.prior, mixer.caps, mixer.max_usage, mixer.max_epochs and those of each method. olmix only
plans from tables. More: docs/plan.md.
"""


def plan(
    method: str = argument(..., "doremi, doge, regmix, mixing-law or olmix", "METHOD"),
    settings: list[str] | None = argument(None, "the run; METHOD's mixer.*", console.CONFIG),
    out: Path = option(Path("mixture.yaml"), "the mixture file to write"),
    force: bool = option(
        False, "overwrite --out, and write a plan that its runs do not support", "--force"
    ),
    proxy: list[str] | None = console.PROXY,
    workers: int | None = console.WORKERS,
    on: str = console.ON,
    lab: Path = console.LAB,
    dry_run: bool = option(False, "print the cost of the first proxies and stop", "--dry-run"),
    from_table: Pair | None = option(None, "fit to finished runs; no proxies", metavar=TABLE),
    write_mixtures: Path | None = option(None, "only the proxies' mixtures, for another trainer"),
) -> None:
    """Find a mixture before training, and write it to a file that training can use."""
    from dograph.mixers.registry import require_method

    given = {"--proxy": proxy, "--workers": workers is not None, "--on": on != "local"}
    wrong = [name for name, value in (given | {"--dry-run": dry_run}).items() if value]
    if wrong and (from_table or write_mixtures):
        flag = "--from-table" if from_table else "--write-mixtures"
        raise ConfigError(f"{', '.join(wrong)}: no proxies are trained with {flag}")
    settings = settings or []
    if from_table is not None:
        if write_mixtures is not None:
            raise ConfigError("--write-mixtures is for new runs, --from-table for finished ones")
        _require_free(out, force=force)
        from dograph.cli.plan_table import plan_from_table

        plan_from_table(method, settings, from_table, out, force)
        return
    if method == "olmix":
        raise ConfigError(
            "olmix plans from a table: let dograph plan regmix or mixing-law train the proxies "
            "and write their table, then add --from-table MIXTURES.csv LOSSES.csv"
        )
    require_method(method)  # before torch is imported, which takes seconds
    if write_mixtures is not None:
        _require_free(write_mixtures, force=force, flag="--write-mixtures")
        _write_mixtures(method, settings, write_mixtures)
        return
    _require_free(out, *table_files(out), force=force or dry_run)
    run, _ = _opened(method, settings)
    from dograph.config import merge, parse_override
    from dograph.data.corpus import Corpus
    from dograph.plan.lab import default_proxy, forecast_plan, make_plan

    smaller = default_proxy(run, merge({}, *map(parse_override, proxy or [])))
    if dry_run:
        print(forecast_plan(run, smaller, lab=lab))
        print("later proxies may depend on the results of these")
        return
    pool = console.open_pool(run.train.device, on, workers)
    with console.stoppable(f"finished proxies are in {lab}"), pool:
        result = make_plan(run, smaller, lab=lab, pool=pool, command=console.command())
    deliver(result, Corpus(run.data.corpus).tokens_by_source(), out, force, settings, run)


def _require_free(out: Path, *tables: Path, force: bool, flag: str = "--out") -> None:
    """Refuse existing or unwritable files before hours of proxies, not after them."""
    for file in (out, *tables):
        if file.exists() and not force:
            raise ConfigError(f"{file} already exists; name another with {flag}, or add --force")
    console.require_writable(out)


def table_files(out: Path) -> Pair:
    """Where the table of a plan's proxies goes: next to the plan."""
    stem = out.stem if out.suffix in (".yaml", ".yml") else out.name  # eta0.1 has no suffix
    return out.with_name(f"{stem}.mixtures.csv"), out.with_name(f"{stem}.losses.csv")


def _opened(method: str, settings: list[str]) -> "tuple[RunConfig, Planner]":
    """The run to plan for, with its corpus, and the method with its options."""
    from dograph.config import resolve_config
    from dograph.mixers.registry import build_planner

    name, own = console.split_settings(settings)
    if any(setting.partition("=")[0] == "mixer.name" for setting in own):
        raise ConfigError(f"mixer.name is METHOD here ({method}); leave it out of the settings")
    config = resolve_config(name, [*own, f"mixer.name={method}"])
    planner = build_planner(config.mixer.name, config.mixer.options)
    return console.with_corpus(config), planner


def _write_mixtures(method: str, settings: list[str], file: Path) -> None:
    """Write the mixtures of a plan's first proxies, and print how to plan with their losses."""
    import numpy as np

    from dograph.data.corpus import Corpus
    from dograph.mixers.sweep import SweepPlanner
    from dograph.mixtures.tables import write_long
    from dograph.train.assembly import CorpusLab

    run, planner = _opened(method, settings)
    if not isinstance(planner, SweepPlanner):
        raise ConfigError(
            f"--write-mixtures: the proxies of {method} decide themselves what they draw; methods "
            "that generate mixtures for proxies: regmix, mixing-law"
        )
    lab = CorpusLab(run, Corpus(run.data.corpus))
    weight_NS = np.array([list(mixture.weights.values()) for mixture in planner.mixtures(lab)])
    names = [f"mixture {n + 1}" for n in range(len(weight_NS))]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_long(file, "mixtures", names, list(lab.tokens), weight_NS)
    if rounds := planner.option("rounds"):
        warn([f"the first of {len(rounds)} rounds; the next ones need its losses"], "note")
    kept = [setting for setting in settings if not setting.startswith("mixer.")]
    then = ["dograph", "plan", method, *kept, "--from-table", str(file), "losses.csv"]
    print(
        f"{len(names)} mixtures are written to {file} (run, source, weight). Train one run each, "
        "write their validation losses to losses.csv (run, target, loss; other layouts: "
        f"docs/tables.md), then: {shlex.join(then)}"
    )


def deliver(
    file: "MixtureFile | Plan",
    before: Mapping[str, float],
    out: Path,
    force: bool,
    settings: list[str],
    run: "RunConfig | None",
) -> None:
    """Write a plan; print its weights next to `before`, its cost, its fit and how to use it.

    Without `force` a plan that its runs do not support is printed, not written. `before` is the
    corpus' own mixture, or without proxies (`file` is no `Plan`) the prior. If the run is known,
    the table also shows how often it will read each source.
    """
    from dograph.mixtures.file import write_mixture
    from dograph.mixtures.tables import write_table

    weights, findings = file.weights, file.findings
    cost, table = getattr(file, "cost", None), getattr(file, "table", None)
    refusal = None if force else _refusal(out, findings, has_proxies=table is not None)
    if refusal is None:
        write_mixture(out, file)
    if table is not None:  # so that it can be fitted again, without proxies
        write_table(table, *table_files(out))
    epochs, repeats = ({}, []) if run is None else _repeats(run, file)
    kind, meaning = "prior", "the mixture that the plan starts from"
    if cost is not None:
        kind, meaning = "natural", "share of the corpus' tokens"
    rows, total = [], sum(before.values())
    for name in dict.fromkeys([*before, *weights]):
        cells = [name, f"{before.get(name, 0) / total:.4f}", f"{weights.get(name, 0):.4f}"]
        rows.append([*cells, f"{epochs.get(name, 0):.2f}"] if epochs else cells)
    titles = ("source", kind, "planned", *(["epochs"] if epochs else []))
    print_table(titles, rows, box=None, pad_edge=False)
    print(f"{kind}: {meaning}{'; epochs: how often the run reads a source' if epochs else ''}")
    if cost is not None:
        cached = f" ({cost.cached} from the lab)" if cost.cached else ""
        spent = f"{duration(cost.seconds)} of training, {cost.flops:.2e} FLOPs"
        print(f"cost: {cost.proxies} proxies{cached}, {spent}")
    warn([note for note in findings.get("notes", []) if note not in str(refusal)], "note")
    warn(findings.get("advice", []), "advice")
    warn(repeats)
    if "surrogate" in findings:
        _print_fit(findings)
    if table is not None:
        mixtures, losses = table_files(out)
        print(f"table of the proxies: {mixtures}, {losses} (for dograph plan --from-table)")
    if refusal is not None:
        raise refusal
    kept = [setting for setting in settings if not setting.startswith("mixer.")]
    use = ["dograph", "train", *kept, "mixer.name=static", f"mixer.file={out}"]
    print(f"{out} is written. Train with it: {shlex.join(use)}")


def _repeats(run: "RunConfig", file: "MixtureFile") -> tuple[dict[str, float], list[str]]:
    """How often the run reads each source, and warnings about it."""
    from dograph.data.corpus import Corpus
    from dograph.mixers.base import Mixer
    from dograph.train.assembly import open_sampler
    from dograph.train.forecast import planned_epochs, repeat_warnings

    sampler = open_sampler(run, Corpus(run.data.corpus))
    sampler.remix(0, file.mixture, reason="plan")
    return planned_epochs(run, sampler, Mixer()), repeat_warnings(run, sampler, Mixer())


def _refusal(out: Path, findings: Mapping[str, Any], has_proxies: bool) -> ConfigError | None:
    """Why a plan is not written, and what to do; None if its runs support it, or it has none."""
    support = findings.get("support", {})
    if not support.get("problems"):
        return None
    near = ", ".join(f"{run} ({away:.2f})" for run, away in support["nearest_runs"].items())
    return ConfigError(
        f"{out} is not written, because the runs do not support it:\n"
        + "\n".join(f"- {problem}" for problem in support["problems"])
        + f"\nruns nearest to it (L1): {near}\n--force writes it all the same"
        + ("; no proxy is trained again" if has_proxies else "")
    )


def _print_fit(findings: Mapping[str, Any]) -> None:
    """How good the fit is on runs it has not seen, then what it predicts."""
    chosen = findings["surrogate"]
    print(f"surrogate: {chosen['name']}: {chosen['why']}")
    kinds = (("Spearman", "spearman"), ("Pearson", "pearson"), ("mean error", "mean_error"))
    for name, scores in chosen["cross_validated"].items():
        shown = [f"{title} {scores[key]:.4f}" for title, key in kinds if scores[key] is not None]
        shown += [scores["note"]] if scores["note"] else []
        print(f"  {name} on left-out runs: {', '.join(shown)}")
    predicted, best = findings["predicted"], findings["predicted"]["best_run"]
    print(
        f"predicted loss: {predicted['proposal']:.4f}, of the prior {predicted['prior']:.4f}; best "
        f"run of the table: {best['run']}, {best['measured']:.4f} measured, "
        f"{best['predicted']:.4f} predicted"
    )
