"""Validation loss of each source: mean NLL in nats over held-out tokens.

The blocks are a fixed, evenly spaced choice from each source, so every evaluation of every run on
a corpus reads the same text, and the losses of two runs can be compared block by block.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dograph.data.corpus import Corpus, spaced_blocks


def validation_blocks(corpus: Corpus, source: str, seq_len: int, most: int) -> list[np.ndarray]:
    """At most `most` blocks of a source; a text shorter than one block is one short block."""
    strata = [s for s in corpus.validation if s.entry.source == source]
    if not any(s.num_blocks(seq_len) for s in strata):
        return [np.asarray(s.token_N) for s in strata if s.entry.tokens >= 2][:most]
    return [s.read_block(index, seq_len) for s, index in spaced_blocks(strata, seq_len, most)]


class BlockLosses:
    """The loss of every validation block, in the order of the blocks, whoever computed it."""

    def __init__(self, blocks_of: dict[str, list[np.ndarray]]) -> None:
        self.blocks_of = blocks_of
        self.loss_of = {
            source: torch.zeros(len(blocks), dtype=torch.float64)
            for source, blocks in blocks_of.items()
        }

    def gather(self, total: Callable[[Tensor], Tensor]) -> None:
        """Bring every rank's blocks together: what a rank did not compute is 0 there."""
        joined = total(torch.cat(list(self.loss_of.values())))
        sizes = [len(blocks) for blocks in self.blocks_of.values()]
        self.loss_of = dict(zip(self.blocks_of, joined.split(sizes), strict=True))

    def rows(self, step: int) -> list[dict[str, Any]]:
        """One a source that has validation text: predictions and loss in nats of each block."""
        return [
            {
                "step": step,
                "source": source,
                "predictions": [len(block) - 1 for block in blocks],
                "loss_nats": self.loss_of[source].tolist(),
            }
            for source, blocks in self.blocks_of.items()
            if blocks
        ]


@torch.no_grad()
def validate(
    losses: Callable[[Tensor], Tensor],
    blocks_of: dict[str, list[np.ndarray]],
    *,
    micro_batch_size: int,
    rank: int,
    world_size: int,
    total: Callable[[Tensor], Tensor],
    each: BlockLosses | None = None,
    together: bool = False,
) -> dict[str, float]:
    """Loss in nats of each source that has validation text; ranks share the blocks out.

    `each` is given the loss of every block that this rank computes. `together`: ranks call
    `losses` equally often, as a model in shards needs it; those with fewer blocks repeat one.
    """
    sums_S2 = torch.zeros(len(blocks_of), 2, dtype=torch.float64)
    for s, (source, blocks) in enumerate(blocks_of.items()):
        calls = done = 0
        for token_bT in _batches(blocks[rank::world_size], micro_batch_size):
            loss_b = losses(token_bT).double().cpu()
            if each is not None:
                each.loss_of[source][rank::world_size][done : done + len(loss_b)] = loss_b
            calls, done = calls + 1, done + len(loss_b)
            predictions = token_bT.shape[1] - 1
            sums_S2[s, 0] += loss_b.sum() * predictions
            sums_S2[s, 1] += len(loss_b) * predictions
        if together and blocks:
            shares = [blocks[other::world_size] for other in range(world_size)]
            most = max(sum(1 for _ in _batches(share, micro_batch_size)) for share in shares)
            for _ in range(most - calls):
                losses(next(_batches(blocks, 1)))
    sums_S2 = total(sums_S2)
    rows = zip(blocks_of, sums_S2.tolist(), strict=True)
    return {source: nats / tokens for source, (nats, tokens) in rows if tokens}


def _batches(blocks: list[np.ndarray], micro_batch_size: int) -> Iterator[Tensor]:
    for first in range(0, len(blocks), micro_batch_size):
        yield from _stack(blocks[first : first + micro_batch_size])


def _stack(blocks: list[np.ndarray]) -> list[Tensor]:
    """One tensor of equal-length blocks, or one each where lengths differ."""
    rows = [torch.from_numpy(block.astype(np.int64)) for block in blocks]
    if len({len(row) for row in rows}) == 1:
        return [torch.stack(rows)]
    return [row.unsqueeze(0) for row in rows]
