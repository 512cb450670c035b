"""Everything that `dograph data prepare` can be asked for, and what a corpus is made of."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

from dograph.data.corpus import Manifest
from dograph.data.formats import Fields
from dograph.data.inputs import EMBEDDED, RECIPES, Input, Recipe
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
        held_out, recipe, workers = self.held_out([]), self.recipe, self.workers
        near = did_you_mean(recipe or "", RECIPES)
        wrong = {
            "name at least one input, for example: dograph data prepare demo": not self.inputs,
            f"--validation-fraction must be in [0, 1), got {held_out}": not 0 <= held_out < 1,
            f"--keep must be above 0 and at most 1, got {self.keep}; it is the share of the "
            "documents to keep, 0.01 for one in a hundred": not 0 < self.keep <= 1,
            f"there is no recipe {recipe!r}; {near}": recipe not in (None, *RECIPES),
            f"--strata must be at least 1, got {self.strata}": self.strata < 1,
            f"--workers must be at least 1, got {workers}": workers is not None and workers < 1,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(message)
        known = self.known_corpus
        if known is not None and self.source_field is not None:
            raise ConfigError(
                f"the recipe {known.name} takes sources from {known.source_field}; leave out "
                "--source-field, or the recipe"
            )

    @property
    def known_corpus(self) -> Recipe | None:
        """The recipe, given by name or as the input itself."""
        named = set(RECIPES) & {self.recipe, *self.inputs}
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
        others = ("inputs", "out", "workers", "overwrite", "restart")
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return given | {
            "validation": " ".join(self.validation) or None,
            "validation_fraction": None if self.validation else self.held_out([]),
            "vocab_size": self.bpe_vocab_size if self.tokenizer == "bpe" else self.vocab_size,
            "recipe": self.known_corpus.name if self.known_corpus else None,
            "keep": float(self.keep),
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
                    f"--eot {self.eot_id} is a token id, for tokens made elsewhere; for text, name "
                    "the token: --eot TOKEN"
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
    bytes: int | None  # None where those of any source are not known
    share: float  # of the training bytes; of the tokens where bytes are not known
    paper_share: float | None  # of bytes; None where the corpus has no bytes to compare
    validation_tokens: int


def composition(manifest: Manifest) -> list[SourceRow]:
    """The sources, largest first."""
    recipe = RECIPES.get(manifest.recipe or "")
    by_bytes = all(entry.bytes is not None for entry in manifest.train)
    # shares of tokens and of bytes do not compare
    paper = recipe.shares() if recipe and by_bytes else {}
    total = sum((entry.bytes or 0) if by_bytes else entry.tokens for entry in manifest.train)
    rows = []
    for source in dict.fromkeys(e.source for e in (*manifest.train, *manifest.validation)):
        train = [entry for entry in manifest.train if entry.source == source]
        tokens = sum(entry.tokens for entry in train)
        size = sum(entry.bytes or 0 for entry in train) if by_bytes else None
        rows.append(
            SourceRow(
                source,
                sum(entry.documents for entry in train),
                tokens,
                size,
                (tokens if size is None else size) / total,
                paper.get(source),
                sum(entry.tokens for entry in manifest.validation if entry.source == source),
            )
        )
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def absent_sources(manifest: Manifest) -> list[str]:
    """Sources of the recipe's table that the corpus does not have."""
    recipe = RECIPES.get(manifest.recipe or "")
    present = {entry.source for entry in manifest.train}
    return [source for source in (recipe.table if recipe else ()) if source not in present]
