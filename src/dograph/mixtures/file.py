"""Mixture files: weights by source name, their provenance, and the method's diagnostics.

    weights:            # share of training tokens by source
      C4: 0.7
      Book: 0.3
    provenance:         # optional: how they were made, and for what
      method: regmix
      ...
    findings: {...}     # optional: the method's diagnostics

Weights made with one tokenizer, sample length or corpus may not suit another, so a file records
what it was made with, and `mismatches` compares that with the run that uses it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ValidationError, field_validator

from dograph.errors import ConfigError, did_you_mean, require_known
from dograph.files import load_yaml, package_text, write_text
from dograph.types import Mixture

BUDGET_FACTOR = 4.0  # warn about plans for a token budget this many times smaller or larger
_REGMIX = re.compile(r"^train_(the_pile_(unzip_)?)?")  # before a source, in RegMix's files
EXAMPLE = "weights:\n  C4: 0.7\n  Book: 0.3"


class Provenance(BaseModel, extra="allow", frozen=True):
    """How a mixture was made. Unknown keys are kept; `mismatches` warns about them."""

    method: str
    made_by: str  # the program and its version, or the authors
    corpus: str | None = None  # digest of the training text
    tokenizer: str | None = None  # sha256 of tokenizer.json
    tokenizer_name: str | None = None
    vocab_size: int | None = None
    seq_len: int | None = None
    proxy: dict[str, Any] | None = None  # model, parameters, steps, batch_size, tokens, number
    target_tokens: int | None = None  # training tokens of the run that the plan is for
    seeds: list[int] = []
    settings: dict[str, Any] = {}
    command: str | None = None
    published: str | None = None  # where it was published
    licence: str | None = None
    note: str | None = None

    def record(self) -> dict[str, Any]:
        """The fields that are set, as plain JSON and YAML values."""
        known = {k: v for k, v in self.model_dump().items() if v not in (None, [], {})}
        return dict(_plain(known, "provenance"))


class MixtureFile(BaseModel, extra="forbid", frozen=True):
    """The content of a mixture file. Weights sum to 1."""

    weights: dict[str, float]
    provenance: Provenance | None = None
    findings: dict[str, Any] = {}

    @field_validator("weights")
    @classmethod
    def _is_a_mixture(cls, weights: dict[str, float]) -> dict[str, float]:
        return dict(Mixture({name: float(weight) for name, weight in weights.items()}).weights)

    @property
    def mixture(self) -> Mixture:
        return Mixture(self.weights)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts about a run and its corpus that a mixture's provenance is compared with."""

    sources: Sequence[str]
    corpus: str  # digest of the training text
    tokenizer: str | None  # sha256 of tokenizer.json
    tokenizer_name: str
    vocab_size: int
    seq_len: int
    tokens: int  # training tokens of the whole run


def as_yaml(content: Any) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))


def write_mixture(path: Path, file: MixtureFile) -> None:
    """Write a mixture file: weights first, then provenance, then findings."""
    parts = {
        "weights": file.weights,
        "provenance": file.provenance and file.provenance.record(),
        "findings": _plain(file.findings, "findings"),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, as_yaml({name: part for name, part in parts.items() if part}))
    except OSError as error:
        raise ConfigError(f"the mixture file {path} cannot be written: {error}") from error


def read_mixture_file(path: Path) -> MixtureFile:
    """Read a mixture file. Only `weights` are required; they are divided by their sum.

    RegMix's configurations are read too: `train` has its weights by train_the_pile_NAME.
    """
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the mixture file {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    train = content.get("train") if isinstance(content, Mapping) else None
    if isinstance(train, Mapping) and "weights" not in content:
        content = {"weights": {_REGMIX.sub("", str(name)): w for name, w in train.items()}}
    if not isinstance(content, Mapping) or "weights" not in content:
        raise ConfigError(f"{path} has no `weights`; a mixture file looks like:\n{EXAMPLE}")
    findings = content.get("findings") or {}
    if not isinstance(findings, Mapping):
        raise ConfigError(f"{path}: findings must be a mapping, got {findings!r}")
    weights = dict(as_mixture(content["weights"], f"{path}: weights").weights)
    provenance = as_provenance(content.get("provenance"), f"{path}: provenance")
    return MixtureFile(weights=weights, provenance=provenance, findings=dict(findings))


def as_mixture(weights: Any, where: str) -> Mixture:
    """A mixture from YAML; weights are divided by their sum."""
    if not isinstance(weights, Mapping) or not weights:
        raise ConfigError(f"{where} must be a mapping of source: weight, got {weights!r}")
    if bare := [name for name in weights if isinstance(name, bool) or name is None]:
        raise ConfigError(f"{where}: YAML reads a bare yes, no or ~ as {bare[0]}; quote the name")
    try:
        given = {str(name): float(value) for name, value in weights.items()}
        if wrong := {name: value for name, value in given.items() if not value >= 0}:
            raise ValueError(f"got {wrong}")
        return Mixture.normalised(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} must hold numbers >= 0: {error}") from error


def as_provenance(content: Any, where: str) -> Provenance | None:
    """Provenance from YAML; None where there is none."""
    if content is None or isinstance(content, Provenance):
        return content
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} must be a mapping with at least a `method`, got {content!r}")
    try:
        return Provenance.model_validate({"made_by": "unknown", **content})
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(str(part) for part in wrong["loc"])
        what = f"{where}.{name}: {wrong['msg']}"
        raise ConfigError(f"{what}; correct it, or delete the optional provenance") from error


def mismatches(
    provenance: Provenance | None, facts: RunFacts, weights: Mapping[str, float] | None = None
) -> list[str]:
    """Warnings about using a mixture in this run, one line each. Nothing is refused."""
    notes: list[str] = []
    if provenance is not None:
        notes = [
            f"provenance.{key} is unknown to this version of dograph and ignored; the file was "
            f"made by {provenance.made_by}; {did_you_mean(key, Provenance.model_fields)}"
            for key in provenance.model_extra or {}
        ]
        if (other := _other_tokenizer(provenance, facts)) is not None:
            notes.append(other)
        if provenance.seq_len not in (None, facts.seq_len):
            notes.append(
                f"the mixture was made with samples of {provenance.seq_len} tokens, here "
                f"data.seq_len={facts.seq_len}; losses by source change with the length"
            )
        if provenance.corpus not in (None, facts.corpus):
            notes.append(
                "note: the mixture was made on another corpus or another preparation of this one "
                f"(digest {str(provenance.corpus)[:12]}, here {facts.corpus[:12]})"
            )
        planned, here = provenance.target_tokens, facts.tokens
        if planned and here and max(planned / here, here / planned) > BUDGET_FACTOR:
            notes.append(
                f"the mixture was planned for {planned:.3g} training tokens, this run has "
                f"{here:.3g}; the best weights change with the budget and with repeats"
            )
    if weights is not None:
        named = {*weights, *(name.rpartition("/")[0] for name in weights)}  # sources of strata
        if left_out := [name for name in facts.sources if name not in named]:
            notes.append(f"the mixture does not name {', '.join(left_out)}: not drawn in this run")
    return notes


def _other_tokenizer(provenance: Provenance, facts: RunFacts) -> str | None:
    """A warning if tokenizers differ: by content if both are known, else by vocabulary and name."""
    certain = True
    if provenance.tokenizer is not None and facts.tokenizer is not None:
        differ = provenance.tokenizer != facts.tokenizer
    else:
        certain = provenance.vocab_size not in (None, facts.vocab_size)
        names = (provenance.tokenizer_name or facts.tokenizer_name, facts.tokenizer_name)
        # the last part of a path or of a name on the Hugging Face hub
        differ = certain or len({squash(n.rstrip("/").rsplit("/", 1)[-1]) for n in names}) > 1
    if not differ:
        return None
    there = provenance.tokenizer_name or f"sha256 {str(provenance.tokenizer)[:12]}"
    if provenance.vocab_size is not None:
        there += f" ({provenance.vocab_size} tokens)"
    return (
        f"the mixture was made with {'' if certain else 'what may be '}another tokenizer: {there}, "
        f"here {facts.tokenizer_name} ({facts.vocab_size} tokens); weights do not transfer between "
        "tokenizers"
    )


def squash(name: str) -> str:
    """Lower case, letters and digits only: "Pile-CC" and "pile_cc" become "pilecc"."""
    return "".join(c for c in name.lower() if c.isalnum())


def _plain(value: Any, where: str) -> Any:
    """Plain values for YAML and JSON; NumPy numbers and arrays become Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), where)
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, int) else str(key): _plain(part, f"{where}.{key}")
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(part, where) for part in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ConfigError(f"{where} holds {value!r}, which a mixture file cannot; give plain values")


# Published mixtures (published.yaml), and how they match a corpus' source names.

LEAST_FIT = 0.5  # a corpus must have sources with at least this share of a preset's weight

BY_NAME = "give weights by the corpus' own names: mixer.weights, or a mixture file"

_PUBLISHED = load_yaml(package_text("mixtures/published.yaml"))
# By collection: a corpus' spelling of a source, squashed, and our name for it.
CANONICAL: Mapping[str, Mapping[str, str]] = {
    collection: {
        prefix + spelling: ours
        for ours, others in known["sources"].items()
        for spelling in (squash(ours), *others)
        for prefix in known["prefixes"]
    }
    for collection, known in _PUBLISHED["collections"].items()
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A published mixture."""

    name: str
    collection: str  # of source names: a key of CANONICAL
    weights: Mapping[str, float]  # as printed
    provenance: Provenance

    def fit(self, sources: Sequence[str]) -> tuple[Mixture, list[str]]:
        """The mixture under a corpus' own source names, and notes on unmatched sources."""
        theirs: dict[str, str] = {}  # our name -> the corpus' own
        for source in sources:
            ours = CANONICAL[self.collection].get(squash(source))
            if ours in theirs:
                both = f'both "{theirs[ours]}" and "{source}", spellings of "{ours}"'
                raise ConfigError(f"the corpus has {both}; {BY_NAME}")
            if ours is not None:
                theirs[ours] = source
        shares = Mixture.normalised(self.weights).weights
        kept = {theirs[ours]: share for ours, share in shares.items() if ours in theirs}
        absent = [ours for ours in shares if ours not in theirs]
        fitting = sum(kept.values())
        if fitting < LEAST_FIT:
            raise ConfigError(
                f"the preset {self.name} does not fit this corpus: its sources are "
                f"{', '.join(shares)}; the corpus has {', '.join(sources)}; {BY_NAME}"
            )
        notes = []
        if absent:
            lacks = f"the corpus has no {', '.join(absent)} of the preset {self.name}"
            lost = f"({1 - fitting:.1%} of its weight)"
            notes.append(f"{lacks} {lost}: the rest was scaled up to sum to 1")
        if others := [source for source in sources if source not in kept]:
            notes.append(f"the preset {self.name} does not name {', '.join(others)}: not drawn")
        return Mixture.normalised(kept), notes


PRESETS: Mapping[str, Preset] = {
    name: Preset(name, own["collection"], own["weights"], Provenance(**own["provenance"]))
    for name, own in _PUBLISHED["presets"].items()
}


def find_preset(name: str) -> Preset:
    what = "published mixture" if Path(name).exists() else "mixture file or published mixture"
    require_known(name, PRESETS, f'no {what} "{name}"')
    return PRESETS[name]


def find_mixture(name: str, sources: Sequence[str] | None = None) -> tuple[MixtureFile, list[str]]:
    """A mixture file, or a published mixture by name; the latter for `sources`, with notes."""
    if Path(name).exists():
        return read_mixture_file(Path(name)), []
    preset = find_preset(name)
    mixture, notes = Mixture.normalised(preset.weights), list[str]()
    if sources is not None:
        mixture, notes = preset.fit(sources)
    return MixtureFile(weights=dict(mixture.weights), provenance=preset.provenance), notes
