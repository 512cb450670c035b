"""dograph plan: a mixture before training, from proxies or from a table of runs."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.cli import console
from dograph.cli.console import argument, option, options_as, parse_pairs, print_table, warn
from dograph.errors import ConfigError
from dograph.progress import duration

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.data.corpus import Corpus
    from dograph.mixtures.file import MixtureFile
    from dograph.mixtures.from_table import Method
    from dograph.mixtures.tables import MixtureTable
    from dograph.plan.lab import Plan

Pair = tuple[Path, Path]
TABLE = "MIXTURES.csv LOSSES.csv"
METHODS: dict[str, "Method"] = {"regmix": "regmix", "mixing-law": "mixing-law"}  # from a table
AS_SETTINGS = ("target", "surrogate", "max_epochs", "top")  # of methods that train proxies
SEED = 42  # of a plan from a table
HELP = """\
Decide a mixture before training, and write it to a file for training.

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
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options that --from-table alone has, named as on the command line."""

    target: tuple[str, ...] = ()
    test_table: Pair | None = None
    surrogate: str | None = None
    prior: str | None = None
    cap: tuple[str, ...] = ()
    max_epochs: float | None = None
    top: int | None = None


def plan(
    method: str = argument(..., "doremi, doge, regmix or mixing-law", "METHOD"),
    settings: list[str] | None = argument(
        None,
        "the run that the plan is for, as in `dograph train`; mixer.* are METHOD's options",
        console.CONFIG,
    ),
    out: Path = option(Path("mixture.yaml"), "the mixture file to write"),
    force: bool = option(False, "write over --out", "--force"),
    proxy: list[str] | None = option(
        None, "a setting of the proxies; repeat for more", metavar="NAME=VALUE"
    ),
    workers: int | None = console.WORKERS,
    on: str = console.ON,
    ray_address: str | None = console.RAY_ADDRESS,
    lab: Path = option(Path("runs/lab"), "where proxies are kept, by content"),
    dry_run: bool = option(False, "tell what the first proxies would cost, and stop", "--dry-run"),
    from_table: Pair | None = option(None, "fit on runs that exist; no proxies", metavar=TABLE),
    target: list[str] | None = option(
        None,
        "with --from-table: the loss to lower; repeat for several (default: the mean of all)",
        metavar="NAME[=SHARE]",
    ),
    test_table: Pair | None = option(None, "with --from-table: judge the fit on it", metavar=TABLE),
    surrogate: str | None = option(
        None,
        "with --from-table: lightgbm, exponential, transfer, ridge or linear (default: the "
        "one that best ranks left-out runs); for mixing-law exponential or transfer",
    ),
    prior: str | None = option(
        None,
        "with --from-table: the mixture to start from; presets: dograph export --list",
        metavar="FILE.yaml|PRESET",
    ),
    cap: list[str] | None = option(
        None, "with --from-table: highest weight of a source", metavar="NAME=VALUE"
    ),
    max_epochs: float | None = option(
        None, "with --from-table and CONFIG: caps from how often a source may be read"
    ),
    top: int | None = option(None, "with --from-table: best mixtures averaged by regmix"),
) -> None:
    """Decide a mixture before training, and write it to a file for training."""
    options, settings = options_as(TableOptions, locals()), settings or []
    if from_table is not None:
        _require_free(out, force=force or dry_run)
        trained: dict[str, object] = {"--proxy": proxy, "--workers": workers, "--on": on != "local"}
        trained |= {"--ray-address": ray_address, "--dry-run": dry_run}
        if wrong := [name for name, value in trained.items() if value not in (None, False, [])]:
            raise ConfigError(f"{', '.join(wrong)}: no proxies are trained with --from-table")
        _plan_from_table(method, settings, from_table, options, out)
        return
    from dograph.mixers.registry import require_method

    require_method(method)  # first of all, and before torch is imported: that takes seconds
    _require_free(out, *table_files(out), force=force or dry_run)
    _refuse_given(options)
    where = None if dry_run else (on, workers, ray_address)
    _plan_with_proxies(method, settings, proxy or [], lab, where, out)


def _require_free(out: Path, *beside: Path, force: bool) -> None:
    """Hours of proxies must not end at a file that cannot be written, or that somebody needs."""
    for file in (out, *beside):
        if file.exists() and not force:
            raise ConfigError(f"{file} already exists; name another with --out, or add --force")
    console.require_writable(out)


def _refuse_given(options: TableOptions) -> None:
    """Where proxies are trained, the method's options are settings."""
    for name in (field.name for field in fields(options)):
        if getattr(options, name) not in (None, ()):
            law = " (of mixing-law: mixer.law)" if name == "surrogate" else ""
            hint = (
                f"where proxies are trained, it is the setting mixer.{name}=...{law}"
                if name in AS_SETTINGS
                else "a plan leaves the table of its proxies beside --out, to be fitted so"
            )
            raise ConfigError(f"--{name.replace('_', '-')} is for --from-table; {hint}")


def table_files(out: Path) -> Pair:
    """Where the table of a plan's proxies goes: beside the plan."""
    stem = out.stem if out.suffix in (".yaml", ".yml") else out.name  # eta0.1 has no suffix
    return out.with_name(f"{stem}.mixtures.csv"), out.with_name(f"{stem}.losses.csv")


def _plan_with_proxies(
    method: str,
    settings: list[str],
    proxy: list[str],
    lab: Path,
    where: tuple[str, int | None, str | None] | None,
    out: Path,
) -> None:
    """Train proxies and plan by them; without a place to do it, tell what the first would cost."""
    from dograph.config import merge, parse_override, resolve_config
    from dograph.data.corpus import Corpus
    from dograph.mixers.registry import build_planner
    from dograph.mixtures.file import MixtureFile

    name, own = console.split_settings(settings)
    if any(setting.partition("=")[0] == "mixer.name" for setting in own):
        raise ConfigError(f"mixer.name is METHOD here ({method}); leave it out of the settings")
    config = resolve_config(name, [*own, f"mixer.name={method}"])
    from dograph.plan.lab import default_proxy, forecast_plan, make_plan

    build_planner(config.mixer.name, config.mixer.options)
    run = console.with_corpus(config)
    smaller = default_proxy(run, merge({}, *map(parse_override, proxy)))
    if where is None:
        print(forecast_plan(run, smaller, lab=lab))
        print("later proxies may depend on what these show; they are told when they come")
        return
    pool = console.open_pool(run.train.device, *where)
    with console.stoppable(f"finished proxies are in {lab}"), pool:
        made = make_plan(run, smaller, lab=lab, pool=pool, command=console.command())
    weights, findings = dict(made.mixture.weights), made.findings
    file = MixtureFile(weights=weights, provenance=made.provenance, findings=findings)
    corpus = Corpus(run.data.corpus)
    _deliver(file, corpus.tokens_by_source(), out, settings, run, corpus, made)


def _plan_from_table(
    method: str, settings: list[str], files: Pair, options: TableOptions, out: Path
) -> None:
    """Fit, propose, write, and tell what speaks for it."""
    _require_sound(method, settings, files, options)
    from dograph import __version__
    from dograph.config import resolve_config
    from dograph.data.corpus import Corpus
    from dograph.mixtures.file import MixtureFile, Provenance
    from dograph.mixtures.from_table import propose_from_table
    from dograph.mixtures.proposals import TOP
    from dograph.mixtures.tables import read_table

    table = read_table(*files)
    test = read_table(*options.test_table) if options.test_table else None
    run = corpus = None
    if settings:  # a run is not needed; one that is described says what is there and is read
        run = resolve_config(*console.split_settings(settings))
        corpus = Corpus(console.ensured(run.data.corpus))
        if foreign := [source for source in table.sources if source not in corpus.sources]:
            raise ConfigError(
                f"the table's sources {foreign} are not in the run's corpus, which has "
                f"{corpus.sources}; plan without CONFIG, or for a corpus with the table's sources"
            )
    caps, target = _caps(options, run, corpus), _target(options.target)
    proposal = propose_from_table(
        METHODS[method],
        table,
        target=target,
        prior=_prior(options.prior, corpus, table),
        caps=caps,
        surrogate=options.surrogate,
        seed=SEED,
        test_table=test,
        top=TOP if options.top is None else options.top,
        progress=_progress if sys.stderr.isatty() else None,
    )
    told: dict[str, Any] = {"tables": [str(file) for file in files], "target": target}
    told |= {"caps": caps, "surrogate": options.surrogate, "top": options.top}
    provenance = Provenance(
        method=method,
        made_by=f"dograph {__version__}",
        seeds=[SEED],
        settings={name: value for name, value in told.items() if value},
        command=console.command(),
        target_tokens=None if run is None else run.tokens,
    )
    weights, findings = dict(proposal.mixture.weights), proposal.findings
    file = MixtureFile(weights=weights, provenance=provenance, findings=findings)
    _deliver(file, findings["prior"], out, settings or ["recipe.yaml"], run, corpus)


def _require_sound(method: str, settings: list[str], files: Pair, options: TableOptions) -> None:
    """Refuse what cannot be, before anything is read."""
    if method not in METHODS:
        raise ConfigError(
            f"{method} cannot plan from a table: it needs the proxies themselves. Methods that "
            f"can: {', '.join(METHODS)}"
        )
    if method != "regmix" and options.top is not None:
        raise ConfigError("--top is for regmix; the mixing law's optimum is exact")
    # With a table the method's options are those of the command: a setting would do nothing.
    if wrong := [one for one in settings if one.startswith("mixer.")]:
        raise ConfigError(
            f"{', '.join(wrong)}: with --from-table a method's options are --target, --surrogate, "
            "--cap, --max-epochs and --top; settings describe the run that the plan is for"
        )
    for name, pair in (("--from-table", files), ("--test-table", options.test_table or ())):
        for file in pair:
            # With one file given, the command line takes the next option for the other.
            if str(file).startswith("--") and not file.exists():
                raise ConfigError(
                    f"{name} takes two files, MIXTURES.csv LOSSES.csv; the second is {file}"
                )


def _prior(
    given: str | None, corpus: "Corpus | None", table: "MixtureTable"
) -> Mapping[str, float] | None:
    """The mixture to start from: as given, else the corpus' own, else the table's mean."""
    from dograph.mixtures.file import read_mixture_file
    from dograph.mixtures.published import PRESETS

    if given is not None and given in PRESETS:
        mixture, notes = PRESETS[given].fit(table.sources)
        warn(notes, "note")
        return dict.fromkeys(table.sources, 0.0) | dict(mixture.weights)
    if given is not None:
        return read_mixture_file(Path(given)).weights
    if corpus is None:
        return None
    tokens = corpus.tokens_by_source()
    return {source: float(tokens[source]) for source in table.sources}


def _caps(
    options: TableOptions, run: "RunConfig | None", corpus: "Corpus | None"
) -> dict[str, float]:
    """Highest weights: as given, and such that no source is read more than --max-epochs times."""
    caps = _numbers("--cap", options.cap)
    for name, cap in caps.items():
        if not 0 <= cap <= 1:
            raise ConfigError(f"--cap {name}={cap:g} must be a share from 0 to 1, not a percentage")
    if options.max_epochs is None:
        return caps
    if run is None or corpus is None:
        raise ConfigError(
            "--max-epochs needs the run that the plan is for, to know its tokens and its sources': "
            "give CONFIG or settings, as in data.corpus=data/mine train.steps=2000"
        )
    if not options.max_epochs > 0:
        raise ConfigError(f"--max-epochs={options.max_epochs:g} must be > 0")
    for source, tokens in corpus.tokens_by_source().items():
        caps[source] = min(caps.get(source, 1.0), options.max_epochs * tokens / run.tokens)
    return caps


def _target(given: Sequence[str]) -> "str | dict[str, float]":
    """One name as it is; several, or with shares, as shares."""
    if len(given) <= 1 and "=" not in "".join(given):
        return given[0] if given else "mean"
    return _numbers("--target", [one if "=" in one else f"{one}=1" for one in given])


def _numbers(option: str, given: Sequence[str]) -> dict[str, float]:
    """NAME=NUMBER, cut at the last equals sign: names may hold some."""
    found = {}
    for name, value in parse_pairs(given, option, str.rpartition).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f'{option} {name}: "{value}" is not a number') from None
    return found


def _progress(done: int, total: int, what: str) -> None:
    print(f"\r{what}: {done}/{total}", end="\n" if done == total else "", file=sys.stderr)


def _deliver(
    file: "MixtureFile",
    before: Mapping[str, float],
    out: Path,
    settings: list[str],
    run: "RunConfig | None",
    corpus: "Corpus | None",
    made: "Plan | None" = None,
) -> None:
    """Write a plan, and tell its shares, its cost, what speaks for it and how to use it.

    `before` is shown beside it: what the corpus has; of a plan that no proxies were `made` for, the
    prior. Where the run is known, so is how often it will read a source.
    """
    from dograph.mixers.base import Mixer
    from dograph.mixtures.file import write_mixture
    from dograph.mixtures.tables import write_table
    from dograph.train.assembly import open_sampler
    from dograph.train.forecast import planned_epochs, repeat_warnings

    weights, findings = file.weights, file.findings
    table = None if made is None else made.table
    write_mixture(out, file)
    if table is not None:  # so that it can be fitted again, without proxies
        write_table(table, *table_files(out))
    epochs, repeats = {}, []
    if run is not None and corpus is not None:
        sampler = open_sampler(run, corpus)
        sampler.remix(0, file.mixture, reason="plan")
        epochs = planned_epochs(run, sampler, Mixer())
        repeats = repeat_warnings(run, sampler, Mixer())
    kind, meaning = ("natural", "share of the corpus' tokens")
    if made is None:
        kind, meaning = ("prior", "the mixture that the plan starts from")
    rows, total = [], sum(before.values())
    for name in dict.fromkeys([*before, *weights]):
        cells = [name, f"{before.get(name, 0) / total:.4f}", f"{weights.get(name, 0):.4f}"]
        rows.append([*cells, *([f"{epochs.get(name, 0):.2f}"] if epochs else [])])
    titles = ("source", kind, "planned", *(["epochs"] if epochs else []))
    print_table(titles, rows, box=None, pad_edge=False)
    read = "; epochs: how often the run will read a source through" if epochs else ""
    print(f"{kind}: {meaning}{read}")
    if made is not None:
        cost = made.cost
        cached = f" ({cost.cached} made before)" if cost.cached else ""
        spent = f"{duration(cost.seconds)} of training, {cost.flops:.2e} FLOPs"
        print(f"cost: {cost.proxies} proxies{cached}, {spent}")
    warn(findings.get("notes", []), "note")
    warn(findings.get("advice", []), "advice")
    warn(repeats)
    if made is None or table is not None:
        _print_fit(findings)
    if table is not None:
        mixtures, losses = table_files(out)
        print(f"the proxies' table: {mixtures}, {losses} (dograph plan --from-table)")
    kept = [setting for setting in settings if not setting.startswith("mixer.")]
    use = ["dograph", "train", *kept, "mixer.name=static", f"mixer.file={out}"]
    print(f"{out} is written. Train with it: {shlex.join(use)}")


def _print_fit(findings: Mapping[str, Any]) -> None:
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
        warn(held_out["notes"], "note")
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
