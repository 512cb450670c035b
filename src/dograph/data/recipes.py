"""The paper's two corpora: where they are, how their records are labelled, what they are made of.

Shares are those of the paper's data tables: byte proportions for SlimPajama-6B; effective sizes
in GiB for the Pile, over the 17 of its 22 sets that are still available.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dograph.data.manifest import Split


@dataclass(frozen=True, slots=True)
class Recipe:
    """A known corpus."""

    name: str
    hub: str  # Hugging Face dataset
    splits: Mapping[str, Split]  # split of the dataset -> where it goes
    source_field: str
    table: Mapping[str, float]  # source -> size in the paper, in any unit
    closed: bool  # documents of a source outside the table are left out

    @property
    def validation_split(self) -> str:
        """The split of the dataset to validate on."""
        return next(part for part, into in self.splits.items() if into == "validation")

    def shares(self) -> dict[str, float]:
        """Share of bytes of each source in the paper."""
        total = sum(self.table.values())
        return {source: size / total for source, size in self.table.items()}


_SLIMPAJAMA = Recipe(
    name="slimpajama-6b",
    hub="DKYoon/SlimPajama-6B",
    splits={"train": "train", "test": "validation"},
    source_field="meta.redpajama_set_name",
    table={
        "RedPajamaCommonCrawl": 54.1,
        "RedPajamaC4": 28.7,
        "RedPajamaGithub": 4.2,
        "RedPajamaBook": 3.7,
        "RedPajamaArXiv": 3.4,
        "RedPajamaWikipedia": 3.1,
        "RedPajamaStackExchange": 2.8,
    },
    closed=False,
)

_PILE = Recipe(
    name="pile",
    hub="monology/pile-uncopyrighted",
    splits={"train": "train", "validation": "validation"},
    source_field="meta.pile_set_name",
    table={
        "Pile-CC": 227.12,
        "PubMed Central": 180.55,
        "ArXiv": 112.42,
        "Github": 95.16,
        "FreeLaw": 76.73,
        "StackExchange": 64.39,
        "USPTO Backgrounds": 45.81,
        "PubMed Abstracts": 38.53,
        "Gutenberg (PG-19)": 27.19,
        "Wikipedia (en)": 19.13,
        "DM Mathematics": 15.49,
        "Ubuntu IRC": 11.03,
        "EuroParl": 9.17,
        "HackerNews": 7.80,
        "PhilPapers": 4.76,
        "NIH ExPorter": 3.79,
        "Enron Emails": 1.76,
    },
    closed=True,
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (_SLIMPAJAMA, _PILE)}
