"""Everything that `dograph data prepare` can be asked for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dograph.data.chunks import Input
from dograph.data.corpus import Manifest
from dograph.data.inputs import EMBEDDED, RECIPES, Recipe
from dograph.data.journal import Value
from dograph.data.readers import BadRecords
from dograph.errors import ConfigError, did_you_mean

DEFAULT_VOCAB_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options of a preparation; see the command's help for what each one does."""

    inputs: tuple[str, ...]
    out: Path
    validation: tuple[str, ...] = ()
    validation_fraction: float | None = None  # None: a little, or more of a small embedded corpus
    tokenizer: str = "bpe"
    vocab_size: int | None = None  # of bpe; of tokens made elsewhere, where no tokenizer is given
    eot: str | None = None
    eot_id: int | None = None  # of tokens made elsewhere
    recipe: str | None = None
    text_field: str = "text"
    source_field: str | None = None
    strata: int = 1
    keep: float = 1.0  # share of the training documents
    seed: int = 0
    noise: bool = False  # in the planted corpora
    bad_records: BadRecords = "refuse"
    workers: int | None = None
    overwrite: bool = False
    restart: bool = False

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ConfigError("name at least one input, for example: dograph data prepare demo")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"--validation-fraction must be in [0, 1), got {self.held_out}")
        if not 0 < self.keep <= 1:
            raise ConfigError(
                f"--keep must be above 0 and at most 1, got {self.keep}; it is the share of the "
                "documents to keep, 0.01 for one in a hundred"
            )
        if self.recipe is not None and self.recipe not in RECIPES:
            raise ConfigError(
                f"there is no recipe {self.recipe!r}; {did_you_mean(self.recipe, RECIPES)}"
            )
        for name, value in (("strata", self.strata), ("workers", self.workers)):
            if value is not None and value < 1:
                raise ConfigError(f"--{name} must be at least 1, got {value}")
        if self.known_corpus is not None and self.source_field is not None:
            raise ConfigError(
                f"the recipe {self.known_corpus.name} takes sources from "
                f"{self.known_corpus.source_field}; leave out --source-field, or the recipe"
            )

    @property
    def known_corpus(self) -> Recipe | None:
        """The recipe, given by name or as the input itself."""
        named = {
            name for name in (self.recipe, *self.inputs) if name is not None and name in RECIPES
        }
        if len(named) > 1:
            raise ConfigError(f"one recipe at a time, got {' and '.join(sorted(named))}")
        return RECIPES[named.pop()] if named else None

    @property
    def held_out(self) -> float:
        """Share of the documents kept for validation where no validation text is given."""
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.05 if set(self.inputs) <= set(EMBEDDED) else 0.01

    @property
    def bpe_vocab_size(self) -> int:
        return DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size

    @property
    def num_workers(self) -> int:
        return self.workers if self.workers is not None else os.cpu_count() or 1

    def recorded(self) -> dict[str, Value]:
        """The options that decide the outcome, for the journal and the manifest."""
        return {
            "validation": " ".join(self.validation) or None,
            "validation_fraction": None if self.validation else self.held_out,
            "tokenizer": self.tokenizer,
            "vocab_size": self.bpe_vocab_size if self.tokenizer == "bpe" else self.vocab_size,
            "eot": self.eot,
            "eot_id": self.eot_id,
            "recipe": self.known_corpus.name if self.known_corpus else None,
            "text_field": self.text_field,
            "source_field": self.source_field,
            "strata": self.strata,
            "keep": float(self.keep),
            "seed": self.seed,
            "noise": self.noise,
            "bad_records": self.bad_records,
        }


# Options that would have no effect on these inputs are refused, not ignored.


def refuse_idle_options(options: PrepareOptions, inputs: list[Input]) -> None:
    """Name the first option given that cannot apply."""
    if options.noise and not any(entry.name in ("unigram", "bigram") for entry in inputs):
        raise ConfigError("--noise is for the inputs unigram and bigram; leave it out")
    if options.vocab_size is not None and options.tokenizer != "bpe":
        raise ConfigError(
            f"--vocab-size has no effect with --tokenizer {options.tokenizer}, whose vocabulary "
            "has its size; leave one of the two out"
        )
    tokens = [entry.name for entry in inputs if entry.is_tokens]
    if not tokens:
        if options.eot_id is not None:
            raise ConfigError(
                "--eot-id is for tokens made elsewhere; for text, name the token with --eot TOKEN"
            )
        return
    if options.keep < 1:
        raise ConfigError(
            f"--keep chooses documents by their text, and {tokens[0]} holds tokens; leave it out, "
            "or prepare the text that the tokens were made of"
        )
    given = {
        "--recipe": options.recipe is not None,
        "--source-field": options.source_field is not None,
        "--text-field": options.text_field != "text",
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{name} is for records of text, and {tokens[0]} holds tokens; leave it out, or "
                "name its source as NAME=INPUT"
            )


# What a corpus is made of, source by source, beside the paper's table where there is one.


class SourceRow(NamedTuple):
    """One source of a corpus."""

    source: str
    documents: int  # in training
    tokens: int
    bytes: int | None
    share: float | None  # of the training bytes; of the tokens where bytes are not known
    paper_share: float | None  # of bytes; None where the corpus has no bytes to compare
    validation_tokens: int


def composition(manifest: Manifest) -> list[SourceRow]:
    """The sources, largest first."""
    recipe = RECIPES.get(manifest.recipe or "")
    paper: Mapping[str, float] = recipe.shares() if recipe else {}
    sources = dict.fromkeys(entry.source for entry in (*manifest.train, *manifest.validation))
    sizes = {source: _bytes(manifest, source) for source in sources}
    tokens = {s: sum(e.tokens for e in manifest.train if e.source == s) for s in sources}
    measure = {s: size for s, size in sizes.items() if size is not None}
    if len(measure) < len(sizes):
        measure = tokens
        paper = {}  # shares of tokens and of bytes do not compare
    total = sum(measure.values())
    rows = []
    for source in sources:
        train = [entry for entry in manifest.train if entry.source == source]
        held_out = [entry for entry in manifest.validation if entry.source == source]
        rows.append(
            SourceRow(
                source,
                sum(entry.documents for entry in train),
                tokens[source],
                sizes[source],
                measure[source] / total,
                paper.get(source),
                sum(entry.tokens for entry in held_out),
            )
        )
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def absent_sources(manifest: Manifest) -> list[str]:
    """Sources of the recipe's table that the corpus does not have."""
    recipe = RECIPES.get(manifest.recipe or "")
    present = {entry.source for entry in manifest.train}
    return [source for source in (recipe.table if recipe else ()) if source not in present]


def _bytes(manifest: Manifest, source: str) -> int | None:
    sizes = [entry.bytes for entry in manifest.train if entry.source == source]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
