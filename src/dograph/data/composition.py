"""What a corpus is made of, source by source, beside the paper's table where there is one."""

from collections.abc import Mapping
from typing import NamedTuple

from dograph.data.manifest import Manifest
from dograph.data.recipes import RECIPES


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
