"""Everything that `dograph data prepare` can be asked for, and what a corpus is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dograph.data.chunks import Fields, Input
from dograph.data.corpus import Manifest
from dograph.data.inputs import EMBEDDED, RECIPES, Recipe
from dograph.errors import ConfigError, did_you_mean

DEFAULT_VOCAB_SIZE = 4096
STAGING = ".preparing"
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options of a preparation; see the command's help for what each one does.

    Every step of a preparation, and every worker process, is given this one object.
    """

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
    bad_records: Literal["refuse", "repair"] = "refuse"
    workers: int | None = None
    overwrite: bool = False
    restart: bool = False

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ConfigError("name at least one input, for example: dograph data prepare demo")
        held_out = self.held_out([])
        if not 0 <= held_out < 1:
            raise ConfigError(f"--validation-fraction must be in [0, 1), got {held_out}")
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
        recipe = self.known_corpus
        if recipe is not None and self.source_field is not None:
            raise ConfigError(
                f"the recipe {recipe.name} takes sources from {recipe.source_field}; leave out "
                "--source-field, or the recipe"
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
    def fields(self) -> Fields:
        recipe = self.known_corpus
        return Fields(self.text_field, recipe.source_field if recipe else self.source_field)

    @property
    def only(self) -> frozenset[str] | None:
        """Documents of other sources are left out; None: of no source."""
        recipe = self.known_corpus
        return frozenset(recipe.table) if recipe and recipe.closed else None

    @property
    def repair(self) -> bool:
        return self.bad_records == "repair"

    @property
    def staging(self) -> Path:
        """Where everything lies until the corpus is complete."""
        return self.out / STAGING

    @property
    def bpe_vocab_size(self) -> int:
        return DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size

    def held_out(self, inputs: list[Input]) -> float:
        """Share of the documents kept for validation: none where the inputs bring some."""
        if any(entry.split == "validation" for entry in inputs):
            return 0.0
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.05 if set(self.inputs) <= set(EMBEDDED) else 0.01

    def recorded(self) -> dict[str, Value]:
        """The options that decide the outcome, for the journal and the manifest."""
        return {
            "validation": " ".join(self.validation) or None,
            "validation_fraction": None if self.validation else self.held_out([]),
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

    def refuse_idle(self, inputs: list[Input]) -> None:
        """Refuse an option that would have no effect on these inputs, rather than ignore it."""
        if self.noise and not any(entry.name in ("unigram", "bigram") for entry in inputs):
            raise ConfigError("--noise is for the inputs unigram and bigram; leave it out")
        if self.vocab_size is not None and self.tokenizer != "bpe":
            raise ConfigError(
                f"--vocab-size has no effect with --tokenizer {self.tokenizer}, whose vocabulary "
                "has its size; leave one of the two out"
            )
        tokens = [entry.name for entry in inputs if entry.is_tokens]
        if not tokens:
            if self.eot_id is not None:
                raise ConfigError(
                    "--eot-id is for tokens made elsewhere; for text, name the token with "
                    "--eot TOKEN"
                )
            return
        if self.keep < 1:
            raise ConfigError(
                f"--keep chooses documents by their text, and {tokens[0]} holds tokens; leave it "
                "out, or prepare the text that the tokens were made of"
            )
        given = {
            "--recipe": self.recipe is not None,
            "--source-field": self.source_field is not None,
            "--text-field": self.text_field != "text",
        }
        idle = [name for name, is_given in given.items() if is_given]
        if idle:
            raise ConfigError(
                f"{idle[0]} is for records of text, and {tokens[0]} holds tokens; leave it out, or "
                "name its source as NAME=INPUT"
            )


class SourceRow(NamedTuple):
    """One source of a corpus, beside the paper's table where there is one."""

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
    rows = []
    for source in dict.fromkeys(e.source for e in (*manifest.train, *manifest.validation)):
        train = [entry for entry in manifest.train if entry.source == source]
        known = [entry.bytes for entry in train if entry.bytes is not None]
        rows.append(
            SourceRow(
                source,
                sum(entry.documents for entry in train),
                sum(entry.tokens for entry in train),
                sum(known) if len(known) == len(train) else None,
                None,
                paper.get(source),
                sum(entry.tokens for entry in manifest.validation if entry.source == source),
            )
        )
    if any(row.bytes is None for row in rows):  # shares of tokens and of bytes do not compare
        total = sum(row.tokens for row in rows)
        rows = [row._replace(share=row.tokens / total, paper_share=None) for row in rows]
    else:
        total = sum(row.bytes or 0 for row in rows)
        rows = [row._replace(share=(row.bytes or 0) / total) for row in rows]
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def absent_sources(manifest: Manifest) -> list[str]:
    """Sources of the recipe's table that the corpus does not have."""
    recipe = RECIPES.get(manifest.recipe or "")
    present = {entry.source for entry in manifest.train}
    return [source for source in (recipe.table if recipe else ()) if source not in present]
