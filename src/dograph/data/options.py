"""Everything that `dograph data prepare` can be asked for."""

import os
from dataclasses import dataclass
from pathlib import Path

from dograph.data.inputs import EMBEDDED
from dograph.data.journal import Value
from dograph.data.readers import BadRecords
from dograph.data.recipes import RECIPES, Recipe
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
