"""dograph plan --from-table: RegMix, the mixing law or Olmix, fitted to finished runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, model_validator

from dograph import __version__
from dograph.cli import console
from dograph.cli.console import warn
from dograph.cli.plan import TABLE, Pair, deliver
from dograph.config import Options, RunConfig, merge, parse_override, resolve_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixtures.file import MixtureFile, Provenance, find_mixture
from dograph.mixtures.from_table import Method, MixtureReuse, propose_from_table
from dograph.mixtures.mixing_laws import DELTA
from dograph.mixtures.tables import MixtureTable, read_table

SEED = 42


class TableOptions(Options, owner="a plan from a table"):
    """Options mixer.* of a plan from a table."""

    target: Any = "mean"  # a loss of the table, mean, a list of losses, or shares by name
    prior: str | None = None  # a mixture file or a published mixture; None: see _prior
    caps: Any = Field(default_factory=dict)  # highest weight by source
    max_usage: float | None = Field(15.0, ge=1)  # highest weight over the prior's, as for proxies
    max_epochs: float | None = Field(None, gt=0)


class RegMixTable(TableOptions):
    surrogate: str | None = None  # None: the one that best ranks left-out runs
    top: int | None = None  # simulated mixtures that are averaged


class MixingLawTable(TableOptions, owner="mixing-law with a table"):
    delta: float = Field(DELTA, gt=0)  # nats: where Huber's loss of the fit turns linear
    # With losses at several of them: those of the run to plan for.
    tokens: float | None = Field(None, gt=0)
    parameters: float | None = Field(None, gt=0)  # without embeddings


class OlmixTable(TableOptions, owner="olmix"):
    """The authors' values: the documented configuration, and the constants of their fit."""

    max_epochs: float | None = Field(4.0, gt=0)  # with a run only, unless it is given
    delta: float = Field(0.02, gt=0)
    kl: float = Field(0.1, ge=0)  # weight of KL(mixture || prior), in nats of the target
    reuse: str | None = None  # a mixture file: the plan before the corpus changed
    unchanged: list[str] = Field([])  # with reuse: sources that keep their ratios of that plan

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.reuse is None) != (not self.unchanged):
            raise ConfigError(
                f"mixer.reuse={self.reuse} with mixer.unchanged={self.unchanged}: give both, a "
                "mixture file and the sources that keep its ratios, as in "
                "mixer.reuse=old.yaml mixer.unchanged=[web, books]"
            )
        return self


TABLE_METHODS: dict[str, type[TableOptions]] = {
    "regmix": RegMixTable,
    "mixing-law": MixingLawTable,
    "olmix": OlmixTable,
}


def plan_from_table(method: str, settings: list[str], files: Pair, out: Path, force: bool) -> None:
    """Fit to the runs of a table, and write the mixture that the fit predicts to be best."""
    # With one file given, the command line takes the next option for the other.
    if str(files[1]).startswith("--") and not files[1].exists():
        raise ConfigError(f"--from-table takes two files, {TABLE}; the second is {files[1]}")
    if method not in TABLE_METHODS:
        raise ConfigError(
            f"{method} cannot plan from a table: it needs the proxies themselves. Methods that "
            f"can: {', '.join(TABLE_METHODS)}"
        )
    own = [setting for setting in settings if setting.startswith("mixer.")]
    described = [setting for setting in settings if setting not in own]
    given = merge({}, *map(parse_override, own)).get("mixer", {})
    options: Any = TABLE_METHODS[method](**given)
    at = options.model_dump(include={"tokens", "parameters"}, exclude_none=True)
    table = read_table(*files, **at)
    run, tokens = None, dict[str, int]()
    if described:  # optional: the run gives the natural mixture, and how often sources are read
        run = console.with_corpus(resolve_config(*console.split_settings(described)))
        corpus = Corpus(run.data.corpus)
        if foreign := [source for source in table.sources if source not in corpus.sources]:
            raise ConfigError(
                f"the table's sources {foreign} are not in the run's corpus, which has "
                f"{corpus.sources}; plan without CONFIG, or for a corpus with the table's sources"
            )
        all_tokens = corpus.tokens_by_source()
        tokens = {source: all_tokens[source] for source in table.sources}
    caps = _caps(options, run, tokens)
    how = options.model_dump(include={"surrogate", "top", "delta", "kl"}, exclude_none=True)
    used: dict[str, Any] = {"tables": [str(file) for file in files], "target": options.target}
    used |= {"caps": caps} | how | at
    if getattr(options, "reuse", None) is not None:
        used |= {"reuse": options.reuse, "unchanged": options.unchanged}
        earlier = find_mixture(options.reuse)[0].weights
        how["reuse"] = MixtureReuse.of(earlier, options.unchanged, table)
    proposal = propose_from_table(
        cast(Method, method),
        table,
        target=options.target,
        prior=_prior(options.prior, tokens, table),
        caps=caps,
        max_usage=options.max_usage,
        seed=SEED,
        **how,
    )
    provenance = Provenance(
        method=method,
        made_by=f"dograph {__version__}",
        seeds=[SEED],
        settings={name: value for name, value in used.items() if value},
        command=console.command(),
        target_tokens=None if run is None else run.tokens,
    )
    weights, findings = dict(proposal.mixture.weights), proposal.findings
    file = MixtureFile(weights=weights, provenance=provenance, findings=findings)
    deliver(file, findings["prior"], out, force, described or ["recipe.yaml"], run)


def _prior(
    given: str | None, tokens: Mapping[str, int], table: MixtureTable
) -> Mapping[str, float] | None:
    """The mixture to start from: the given one, else the corpus' own, else the table's mean."""
    if given is None:
        return tokens or None
    file, notes = find_mixture(given, table.sources)
    warn(notes, "note")
    # A file must name every source; a published mixture cannot know them.
    unnamed = {} if Path(given).exists() else dict.fromkeys(table.sources, 0.0)
    return unnamed | file.weights


def _caps(options: TableOptions, run: RunConfig | None, tokens: dict[str, int]) -> dict[str, float]:
    """Highest weights: as given, and so that no source is read more than max_epochs times."""
    given = options.caps if isinstance(options.caps, dict) else {}
    caps = {name: float(cap) for name, cap in given.items() if isinstance(cap, int | float)}
    if caps != options.caps or not all(0 <= cap <= 1 for cap in caps.values()):
        raise ConfigError(
            f"mixer.caps={options.caps}: give shares from 0 to 1 by source, as in "
            "mixer.caps={C4: 0.4}"
        )
    is_default = "max_epochs" not in options.model_fields_set
    if options.max_epochs is None or (run is None and is_default):
        return caps
    if run is None:
        raise ConfigError(
            "mixer.max_epochs needs the run to plan for, which says how many tokens are drawn: "
            "give CONFIG or settings, as in data.corpus=data/mine train.steps=2000"
        )
    for source, number in tokens.items():
        caps[source] = min(caps.get(source, 1.0), options.max_epochs * number / run.tokens)
    return caps
