"""Which text of a corpus would help trusted text, by a model's gradients and by words.

A small step along the mean gradient g_s of a source or stratum lowers the trusted loss in
proportion to <g_s, g_t>, with g_t the mean gradient of the trusted text. It is stated over |g_t|^2:
1 is as good as a step on the trusted text itself, below 0 does harm. Squared norms are means over
pairs of different rows, so noise does not enlarge them. The gradient of a single row says next to
nothing (signal to noise about 0.2), so single rows are listed by their words alone (`TextScorer`).

Shapes: N rows of the corpus, M trusted rows, T tokens, K sketch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from dograph.data.corpus import Block, Corpus
from dograph.data.options import PrepareOptions
from dograph.data.pipeline import trusted_texts
from dograph.data.toward import TextScorer
from dograph.errors import CorpusError
from dograph.stats import Interval, t_interval

LISTED, PREVIEW = 5, 80  # rows at either end, and characters of each
FEW_ROWS = 100  # of a group; its interval is then wide


@dataclass(frozen=True, slots=True)
class GroupHelp:
    """What a source or stratum would do for the trusted text."""

    name: str
    rows: int
    help: float  # <g_s, g_t> / |g_t|^2
    interval: Interval  # 95 %, |g_t|^2 taken as exact
    cosine: float | None  # of g_s and g_t; None if noise hides g_s
    text_score: float  # mean over its rows


@dataclass(frozen=True, slots=True)
class ScoredRow:
    stratum: str
    document: int  # in which it starts
    score: float
    text: str


class TrustedText:
    """Trusted files, and the rows of a corpus scored by their words."""

    def __init__(self, files: tuple[str, ...], corpus: Corpus, blocks: Sequence[Block]) -> None:
        texts = list(trusted_texts(PrepareOptions(inputs=files, toward=files, out=Path())))
        self.blocks, previews = blocks, [block.text(corpus) for block in blocks]
        contents = [text.encode() for text in previews]
        self.score_N = TextScorer.fit(texts, contents)(contents)
        self.previews = [" ".join(text.split())[:PREVIEW] for text in previews]
        end = [] if corpus.manifest.tokenizer.eot_id is None else [corpus.manifest.tokenizer.eot_id]
        ids = corpus.tokenizer.encode_batch([t.decode() for t in texts], add_special_tokens=False)
        self.token_X = np.concatenate([[*own.ids, *end] for own in ids]).astype(np.int64)

    def rows(self, seq_len: int, most: int) -> Tensor:
        """At most `most` rows of trusted tokens, evenly spaced, (M, T)."""
        number = len(self.token_X) // seq_len
        if number < 2:
            raise CorpusError(
                f"--toward has {len(self.token_X)} tokens, and at least two rows of {seq_len} are "
                "needed; give more text, or a smaller data.seq_len"
            )
        token_MT = self.token_X[: number * seq_len].reshape(number, seq_len)
        chosen = np.linspace(0, number - 1, min(most, number)).round().astype(int)
        return torch.from_numpy(token_MT[chosen])

    def ranked(self) -> list[ScoredRow]:
        """The rows with the highest and the lowest text scores."""
        order = np.argsort(-self.score_N, kind="stable").tolist()
        return [
            ScoredRow(
                self.blocks[n].stratum.entry.stratum,
                int(self.blocks[n].place()["document"]),
                float(self.score_N[n]),
                self.previews[n],
            )
            for n in (*order[:LISTED], *order[LISTED:][-LISTED:])
        ]

    def groups(self, sketch_NK: Tensor, trusted_MK: Tensor) -> tuple[list[GroupHelp], list[str]]:
        """Sources, then strata, most helpful first, and notes for the reader."""
        members: dict[str, list[int]] = {}
        for n, block in enumerate(self.blocks):
            for name in {block.stratum.entry.source, block.stratum.entry.stratum}:
                members.setdefault(name, []).append(n)
        large = {name: rows for name, rows in sorted(members.items()) if len(rows) > 1}
        notes = [f"{name} is left out: one row has no interval" for name in members.keys() - large]
        square = _pair_mean(trusted_MK.double())
        if square <= 0:
            few = f"the {len(trusted_MK)} trusted rows show no common gradient to compare with"
            return [], [f"{few}; give more --rows, or more trusted text"]
        if min(map(len, large.values())) < FEW_ROWS:
            notes.append(f"groups of fewer than {FEW_ROWS} rows say little; give more --rows")
        helped = []
        for name, rows in large.items():
            own_NK = sketch_NK[rows].double()
            product_NM = own_NK @ trusted_MK.double().T / square
            # Both sets of rows are samples: the variances of their means add up.
            parts = (product_NM.mean(dim=1), product_NM.mean(dim=0))
            error = sqrt(sum(float(part.var()) / len(part) for part in parts))
            value, own_square = float(product_NM.mean()), _pair_mean(own_NK)
            cosine = value * sqrt(square / own_square) if own_square > 0 else None
            interval = t_interval(value, error, min(product_NM.shape) - 1)
            score = fmean(self.score_N[rows].tolist())
            helped.append(GroupHelp(name, len(rows), value, interval, cosine, score))
        sources = {block.stratum.entry.source for block in self.blocks}
        helped.sort(key=lambda group: (group.name not in sources, -group.help))
        return helped, sorted(notes)


def _pair_mean(sketch_NK: Tensor) -> float:
    """Mean inner product of different rows: the squared norm of their true mean, unbiased."""
    number, total_K = len(sketch_NK), sketch_NK.sum(dim=0)
    return float((total_K @ total_K - sketch_NK.square().sum()) / (number * (number - 1)))
