"""Validation loss of each source: mean NLL in nats over held-out tokens.

The blocks are a fixed, evenly spaced choice from each source, so every evaluation of every run on
a corpus reads the same text, and the losses of two runs can be compared block by block.
"""

from collections.abc import Callable

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


@torch.no_grad()
def validate(
    losses: Callable[[Tensor], Tensor],
    blocks_of: dict[str, list[np.ndarray]],
    *,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    total: Callable[[Tensor], Tensor] = lambda values: values,
    together: bool = False,
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Loss in nats of each source that has validation text, and of each of its blocks.

    Ranks share the blocks out, and `total` sums over them. `together`: ranks call `losses` equally
    often, as a model in shards needs it; those with fewer blocks repeat one.
    """
    sums_S2 = torch.zeros(len(blocks_of), 2, dtype=torch.float64)  # nats, predictions
    each = [torch.zeros(len(blocks), dtype=torch.float64) for blocks in blocks_of.values()]
    for s, blocks in enumerate(blocks_of.values()):
        batches, mine, done = _batches(blocks[rank::world_size], micro_batch_size), each[s], 0
        for token_bT in batches:
            loss_b = losses(token_bT).double().cpu()
            mine[rank::world_size][done : done + len(loss_b)] = loss_b
            done += len(loss_b)
            predictions = token_bT.shape[1] - 1
            sums_S2[s, 0] += loss_b.sum() * predictions
            sums_S2[s, 1] += len(loss_b) * predictions
        if together and blocks:
            shares = [blocks[other::world_size] for other in range(world_size)]
            most = max(len(_batches(share, micro_batch_size)) for share in shares)
            for _ in range(most - len(batches)):
                losses(_batches(blocks[:1], 1)[0])
    # One reduction for all: a block that a rank did not compute is 0 there.
    sums, *each = total(torch.cat([sums_S2.flatten(), *each])).split(
        [sums_S2.numel(), *map(len, each)]
    )
    found = zip(blocks_of, sums.view(-1, 2).tolist(), strict=True)
    nats = {source: nats / predictions for source, (nats, predictions) in found if predictions}
    return nats, {s: loss_n.tolist() for s, loss_n in zip(blocks_of, each, strict=True)}


def _batches(blocks: list[np.ndarray], at_once: int) -> list[Tensor]:
    """Blocks of equal length stacked `at_once`; one each where lengths differ."""
    batches: list[Tensor] = []
    for first in range(0, len(blocks), at_once):
        rows = [torch.from_numpy(b.astype(np.int64)) for b in blocks[first : first + at_once]]
        alike = len({len(row) for row in rows}) == 1
        batches += [torch.stack(rows)] if alike else [row.unsqueeze(0) for row in rows]
    return batches
