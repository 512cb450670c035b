"""A fixed choice of blocks with equally many from every source, for looking at what a model sees.

No draw is involved: the same corpus and numbers give the same blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dograph.data.corpus import Corpus
from dograph.data.manifest import Split
from dograph.data.tokens import StratumTokens


@dataclass(frozen=True, slots=True)
class Block:
    """One block of one source and its place there."""

    source: int  # index into the corpus' sources
    stratum: StratumTokens
    index: int  # which block of that stratum
    seq_len: int

    def tokens(self) -> np.ndarray:
        return self.stratum.read_block(self.index, self.seq_len).astype(np.int64)

    def place(self) -> dict[str, str | int]:
        """Names to find it by: source, stratum, row (block), document and offset in tokens."""
        document, offset = self.stratum.locate(self.index * self.seq_len)
        return {
            "source": self.stratum.entry.source,
            "stratum": self.stratum.entry.stratum,
            "row": self.index,
            "document": document,
            "offset": offset,
        }

    def text(self, corpus: Corpus) -> str:
        start = self.index * self.seq_len
        return corpus.text(self.stratum, start, start + self.seq_len)


def blocks_by_source(corpus: Corpus, split: Split, seq_len: int) -> dict[str, int]:
    """How many whole blocks each source has in a split."""
    have = dict.fromkeys(corpus.sources, 0)
    for stratum in corpus.strata(split):
        if stratum.entry.source in have:
            have[stratum.entry.source] += stratum.num_blocks(seq_len)
    return have


def even_blocks(
    corpus: Corpus, split: Split, seq_len: int, total: int, *, least: int = 1
) -> list[Block]:
    """At most `total` blocks, source by source, evenly spaced in each source's text.

    Sources with fewer than `least` blocks are passed over.
    """
    have = blocks_by_source(corpus, split, seq_len)
    take = equal_shares({source: n for source, n in have.items() if n >= least}, total)
    return [
        Block(corpus.sources.index(source), stratum, index, seq_len)
        for source, count in take.items()
        for stratum, index in spaced_blocks(
            [s for s in corpus.strata(split) if s.entry.source == source], seq_len, count
        )
    ]


def spaced_blocks(
    strata: Sequence[StratumTokens], seq_len: int, most: int
) -> list[tuple[StratumTokens, int]]:
    """At most `most` blocks, evenly spaced over the strata's text: each one's stratum and index."""
    ends = np.cumsum([0, *(s.num_blocks(seq_len) for s in strata)], dtype=np.int64)
    count = min(most, int(ends[-1]))
    places = np.linspace(0, ends[-1] - 1, count).round().astype(np.int64)
    found = np.searchsorted(ends, places, side="right") - 1
    return [(strata[s], int(place - ends[s])) for s, place in zip(found, places, strict=True)]


def equal_shares(have: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` shared out equally, as far as each has any; what is over goes to the first ones."""
    take = dict.fromkeys(have, 0)
    while left := min(total, sum(have.values())) - sum(take.values()):
        wanting = [name for name in have if take[name] < have[name]]
        each = left // len(wanting)
        for name in wanting if each else wanting[:left]:
            take[name] += min(max(each, 1), have[name] - take[name])
    return take
