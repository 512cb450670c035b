"""dograph plan --from-table: a mixture from runs that somebody has made."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.cli.console import ensured, parse_pairs, say, split_settings
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.config import RunConfig
    from dograph.data.corpus import Corpus
    from dograph.mixtures.from_table import Method
    from dograph.mixtures.tables import MixtureTable

METHODS: dict[str, "Method"] = {"regmix": "regmix", "mixing-law": "mixing-law"}
AS_SETTINGS = ("target", "surrogate", "max_epochs", "top")  # of methods that train proxies
SEED = 42


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options that --from-table alone has, named as on the command line."""

    target: list[str]
    test_table: tuple[Path, Path] | None
    surrogate: str | None
    prior: str | None
    cap: list[str]
    max_epochs: float | None
    top: int | None

    def refuse_given(self) -> None:
        """Where proxies are trained, the method's options are settings."""
        for name, value in asdict(self).items():
            if value not in (None, []):
                law = " (of mixing-law: mixer.law)" if name == "surrogate" else ""
                hint = (
                    f"where proxies are trained, it is the setting mixer.{name}=...{law}"
                    if name in AS_SETTINGS
                    else "a plan leaves the table of its proxies beside --out, to be fitted so"
                )
                raise ConfigError(f"--{name.replace('_', '-')} is for --from-table; {hint}")


def plan_from_table(
    method: str,
    settings: list[str],
    files: tuple[Path, Path],
    options: TableOptions,
    out: Path,
    command: str,
) -> None:
    """Fit, propose, write, and tell what speaks for it."""
    _require_sound(method, settings, files, options)
    from dograph import __version__
    from dograph.cli.plan import print_fit, print_notes, print_shares, print_use
    from dograph.mixtures.file import MixtureFile, Provenance, write_mixture
    from dograph.mixtures.from_table import propose_from_table
    from dograph.mixtures.proposals import TOP
    from dograph.mixtures.tables import read_table

    table = read_table(*files)
    test = read_table(*options.test_table) if options.test_table else None
    run, corpus = _described(settings, table)
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
        command=command,
    )
    if run is not None:
        provenance = provenance.model_copy(update={"target_tokens": run.tokens})
    findings, weights = proposal.findings, dict(proposal.mixture.weights)
    write_mixture(out, MixtureFile(weights=weights, provenance=provenance, findings=findings))
    print_shares(weights, findings["prior"], "prior", run, corpus)
    print_notes(findings, weights, run, corpus)
    print_fit(findings)
    print_use(out, settings or ["recipe.yaml"])


def _require_sound(
    method: str, settings: list[str], files: tuple[Path, Path], options: TableOptions
) -> None:
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
    for option, pair in (("--from-table", files), ("--test-table", options.test_table or ())):
        for file in pair:
            # With one file given, the command line takes the next option for the other.
            if str(file).startswith("--") and not file.exists():
                raise ConfigError(
                    f"{option} takes two files, MIXTURES.csv LOSSES.csv; the second is {file}"
                )


def _described(
    settings: list[str], table: "MixtureTable"
) -> tuple["RunConfig | None", "Corpus | None"]:
    """A run is not needed; one that is described says what is there, and how much is read."""
    if not settings:
        return None, None
    from dograph.config import resolve_config
    from dograph.data.corpus import Corpus

    config = resolve_config(*split_settings(settings))
    corpus = Corpus(ensured(config.data.corpus))
    if foreign := [source for source in table.sources if source not in corpus.sources]:
        raise ConfigError(
            f"the table's sources {foreign} are not in the run's corpus, which has "
            f"{corpus.sources}; plan without CONFIG, or for a corpus with the table's sources"
        )
    return config, corpus


def _prior(
    given: str | None, corpus: "Corpus | None", table: "MixtureTable"
) -> Mapping[str, float] | None:
    from dograph.mixtures.file import read_mixture_file
    from dograph.mixtures.published import PRESETS, find_preset

    if given is not None and given in PRESETS:
        mixture, notes = find_preset(given).fit(table.sources)
        for note in notes:
            say(f"note: {note}")
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


def _target(given: list[str]) -> "str | dict[str, float]":
    """One name as it is; several, or with shares, as shares."""
    if not given:
        return "mean"
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    return _numbers("--target", [one if "=" in one else f"{one}=1" for one in given])


def _numbers(option: str, given: Iterable[str]) -> dict[str, float]:
    """NAME=NUMBER, cut at the last equals sign: names may hold some."""
    found = {}
    for name, value in parse_pairs(list(given), option, str.rpartition).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f'{option} {name}: "{value}" is not a number') from None
    return found


def _progress(done: int, total: int, what: str) -> None:
    print(f"\r{what}: {done}/{total}", end="\n" if done == total else "", file=sys.stderr)
