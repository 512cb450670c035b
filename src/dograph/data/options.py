"""The options of `dograph data prepare`, and the composition of a prepared corpus."""

from collections.abc import Mapping
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


def _refuse(problems: Mapping[str, bool]) -> None:
    """Raise the first problem that applies."""
    for message, applies in problems.items():
        if applies:
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options of a preparation; the help of the command explains each one."""

    inputs: tuple[str, ...]
    out: Path
    validation: tuple[str, ...] = ()
    validation_fraction: float | None = None  # None: 0.01, or 0.05 of an embedded corpus
    tokenizer: str = "bpe"
    vocab_size: int | None = None  # of bpe, or of tokens made elsewhere without a tokenizer
    eot: str | None = None
    eot_id: int | None = None  # of tokens made elsewhere
    recipe: str | None = None
    text_field: str = "text"
    source_field: str | None = None
    strata: int = 1
    toward: tuple[str, ...] = ()  # trusted text
    keep: float = 1.0  # fraction of the training documents
    seed: int = 0
    noise: bool = False  # in the planted corpora
    bad_records: Literal["refuse", "repair"] = "refuse"
    workers: int | None = None

    def __post_init__(self) -> None:
        held_out, recipe, workers = self.held_out([]), self.recipe, self.workers
        near, known = did_you_mean(recipe or "", RECIPES), self.known_corpus
        field = known.source_field if known else None
        _refuse(
            {
                "name at least one input, for example: dograph data prepare demo": not self.inputs,
                f"--validation-fraction must be in [0, 1), got {held_out}": not 0 <= held_out < 1,
                f"--keep must be above 0 and at most 1, got {self.keep}; it is the fraction of the "
                "documents to keep, 0.01 for one in a hundred": not 0 < self.keep <= 1,
                f"there is no recipe {recipe!r}; {near}": recipe not in (None, *RECIPES),
                f"the recipe takes sources from {field}; leave out --source-field, or the "
                "recipe": field is not None and self.source_field is not None,
                f"--strata must be at least 1, got {self.strata}": self.strata < 1,
                f"--workers must be at least 1, got {workers}": workers is not None and workers < 1,
            }
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
        """The sources to take; documents of others are left out. None: all sources."""
        recipe = self.known_corpus
        return frozenset(recipe.table) if recipe and recipe.closed else None

    @property
    def staging(self) -> Path:
        """The folder for everything until the corpus is complete."""
        return self.out / STAGING

    @property
    def bpe_vocab_size(self) -> int:
        return DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size

    def held_out(self, inputs: list[Input]) -> float:
        """Fraction of the documents for validation: 0 if the inputs have validation text."""
        if any(entry.split == "validation" for entry in inputs):
            return 0.0
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.05 if set(self.inputs) <= set(EMBEDDED) else 0.01

    def recorded(self) -> dict[str, Value]:
        """The options that decide the result, for the journal and the manifest."""
        others = ("inputs", "out", "workers", "toward")
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return given | {
            "validation": " ".join(self.validation) or None,
            "validation_fraction": None if self.validation else self.held_out([]),
            "vocab_size": self.bpe_vocab_size if self.tokenizer == "bpe" else self.vocab_size,
            "recipe": self.known_corpus.name if self.known_corpus else None,
            "keep": float(self.keep),
            **({"toward": " ".join(self.toward)} if self.toward else {}),
        }

    def refuse_idle(self, inputs: list[Input]) -> None:
        """Refuse an option that would have no effect on these inputs, rather than ignore it."""
        tokens = next((entry.name for entry in inputs if entry.is_tokens), None)
        is_tokens = tokens is not None
        is_planted = any(entry.name in ("unigram", "bigram") for entry in inputs)
        for_text = f"is for text, and {tokens} holds tokens; leave it out, or name its source as"
        _refuse(
            {
                "--noise is for unigram and bigram; leave it out": self.noise and not is_planted,
                f"--vocab-size has no effect with --tokenizer {self.tokenizer}, which has its own "
                "vocabulary; leave one of the two out": self.vocab_size is not None
                and self.tokenizer != "bpe",
                f"--eot {self.eot_id} is a token id, for tokens made elsewhere; for text, name the "
                "token: --eot TOKEN": self.eot_id is not None and not is_tokens,
                f"--keep chooses documents by their text, and {tokens} holds tokens; leave it out, "
                "or prepare the text that the tokens were made of": self.keep < 1 and is_tokens,
                f"--toward scores text, and {tokens} holds tokens; leave it out, or prepare the "
                "text that the tokens were made of": bool(self.toward) and is_tokens,
                f"--recipe {for_text} NAME=INPUT": self.recipe is not None and is_tokens,
                f"--source-field {for_text} NAME=INPUT": self.source_field is not None
                and is_tokens,
                f"--text-field {for_text} NAME=INPUT": self.text_field != "text" and is_tokens,
            }
        )


class SourceRow(NamedTuple):
    """One source of a corpus, with its share in the paper's table if there is one."""

    source: str
    documents: int  # in training
    tokens: int
    bytes: int | None  # None if those of any source are unknown
    share: float  # of the training bytes; of the tokens if bytes are unknown
    paper_share: float | None  # of bytes; None if the corpus has no bytes to compare
    validation_tokens: int


def composition(manifest: Manifest) -> list[SourceRow]:
    """The sources, largest first."""
    recipe = RECIPES.get(manifest.recipe or "")
    by_bytes = all(entry.bytes is not None for entry in manifest.train)
    # shares of tokens and of bytes are not comparable
    paper = recipe.shares() if recipe and by_bytes else {}
    total = sum((entry.bytes or 0) if by_bytes else entry.tokens for entry in manifest.train)
    rows = []
    for source in dict.fromkeys(e.source for e in (*manifest.train, *manifest.validation)):
        train = [entry for entry in manifest.train if entry.source == source]
        documents, tokens = sum(e.documents for e in train), sum(e.tokens for e in train)
        size = sum(entry.bytes or 0 for entry in train) if by_bytes else None
        share = (tokens if size is None else size) / total
        held_out = sum(entry.tokens for entry in manifest.validation if entry.source == source)
        rows.append(SourceRow(source, documents, tokens, size, share, paper.get(source), held_out))
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def absent_sources(manifest: Manifest) -> list[str]:
    """Sources of the recipe's table that the corpus does not have."""
    recipe = RECIPES.get(manifest.recipe or "")
    present = {entry.source for entry in manifest.train}
    return [source for source in (recipe.table if recipe else ()) if source not in present]
