"""Which samples a step sees: a pure function of (seed, step, weight log).

Every step draws a world batch of B samples. Quotas (quota.py) say how many from each stratum; the
n-th draw of a stratum ever made is sample n mod blocks of epoch n div blocks, shuffled anew in
each epoch by a keyed bijection; the order inside the step is keyed too. Ranks take their slices
of the finished world batch, so the world size changes nothing, and a change of mixture moves only
the counters' future: no sample is lost or repeated. S here counts strata.
"""

import numpy as np

from dograph.data.permutation import permute
from dograph.data.quota import advance
from dograph.data.tokens import StratumTokens
from dograph.data.weight_log import WAYPOINT_STEPS, WeightEntry, WeightLog
from dograph.errors import ConfigError
from dograph.rng import key64, stream
from dograph.types import Mixture, SampleIds


class Sampler:
    """Draws world batches from the strata of a corpus."""

    def __init__(
        self, strata: list[StratumTokens], *, seq_len: int, batch_size: int, seed: int
    ) -> None:
        self.strata = strata
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.names = [stratum.entry.stratum for stratum in strata]
        self.blocks_S = np.array([s.num_blocks(seq_len) for s in strata], dtype=np.int64)
        self.log = WeightLog(self.names)
        self._latest = (-1, np.zeros(len(strata), dtype=np.int64))  # (step, drawn_S): a cache

    def remix(self, step: int, mixture: Mixture, reason: str) -> None:
        """Draw from `mixture` from `step` on."""
        drawn_S = self.drawn(step) if self.log.entries else np.zeros_like(self.blocks_S)
        self.log.append(
            WeightEntry(
                step=step,
                weight_S=self.weights_of(mixture),
                drawn_S=drawn_S,
                base_step=step,
                base_drawn_S=drawn_S,
                reason=reason,
            )
        )
        self._latest = (-1, drawn_S)

    def drawn(self, step: int) -> np.ndarray:
        """How often each stratum was drawn before `step`."""
        entry = self.log.find(step)
        at, drawn_S = self._latest
        if not entry.step <= at <= step:
            at, drawn_S = entry.step, entry.drawn_S
        for made in range(at, step):
            since_S = drawn_S - entry.base_drawn_S
            drawn_S = entry.base_drawn_S + advance(since_S, entry.weight_S, self.batch_size)
            if (made + 1 - entry.base_step) % WAYPOINT_STEPS == 0 and entry is self.log.entries[-1]:
                entry = WeightEntry(
                    step=made + 1,
                    weight_S=entry.weight_S,
                    drawn_S=drawn_S,
                    base_step=entry.base_step,
                    base_drawn_S=entry.base_drawn_S,
                    reason="waypoint",
                )
                self.log.append(entry)
        self._latest = (step, drawn_S)
        return drawn_S

    def draw(self, step: int) -> SampleIds:
        """The world batch of `step`, in its global order."""
        before_S = self.drawn(step)
        # The step after may belong to a new mixture; its quota starts where this step ends.
        entry = self.log.find(step)
        since_S = before_S - entry.base_drawn_S
        count_S = advance(since_S, entry.weight_S, self.batch_size) - since_S

        stratum_B = np.repeat(np.arange(len(count_S)), count_S)
        rank_B = np.arange(self.batch_size) - np.repeat(np.cumsum(count_S) - count_S, count_S)
        order_B = stream(self.seed, "order", step).permutation(self.batch_size)
        return self._read(stratum_B[order_B], (before_S[stratum_B] + rank_B)[order_B])

    def _read(self, stratum_B: np.ndarray, draw_B: np.ndarray) -> SampleIds:
        """The samples that are draw number draw_B[i] of stratum stratum_B[i]."""
        blocks_B = self.blocks_S[stratum_B]
        epoch_B, position_B = np.divmod(draw_B, blocks_B)
        pairs = list(zip(stratum_B.tolist(), epoch_B.tolist(), strict=True))
        key = {(s, e): key64(self.seed, "shuffle", self.names[s], e) for s, e in set(pairs)}
        key_B = np.array([key[pair] for pair in pairs], dtype=np.uint64)
        block_B = permute(position_B, blocks_B, key_B)
        places = [
            self.strata[s].locate(token)
            for s, token in zip(stratum_B.tolist(), (block_B * self.seq_len).tolist(), strict=True)
        ]
        document_B, offset_B = np.array(places, dtype=np.int64).T
        return SampleIds(stratum_B, block_B, document_B, offset_B, epoch_B)

    def epochs(self, step: int) -> dict[str, float]:
        """How many times each source had been read through before `step`."""
        return self.epochs_of(self.drawn(step))

    def epochs_of(self, drawn_S: np.ndarray) -> dict[str, float]:
        """How many times each source has been read through, given the draws of each stratum."""
        drawn, blocks = self.by_source(drawn_S), self.by_source(self.blocks_S)
        return {source: drawn[source] / max(blocks[source], 1) for source in drawn}

    def by_source(self, value_S: np.ndarray) -> dict[str, float]:
        """Sums over the strata of each source."""
        sums: dict[str, float] = {}
        for stratum, value in zip(self.strata, value_S.tolist(), strict=True):
            sums[stratum.entry.source] = sums.get(stratum.entry.source, 0.0) + value
        return sums

    def weights_of(self, mixture: Mixture) -> np.ndarray:
        """Weights over strata. A source's weight is shared among its strata by their tokens."""
        sources = [stratum.entry.source for stratum in self.strata]
        mixture.require_names([*self.names, *sources])
        share_S = np.array([s.entry.tokens for s in self.strata], dtype=np.float64)
        share_S[self.blocks_S == 0] = 0.0
        weight_S: np.ndarray = np.zeros(len(self.strata))
        for name, weight in mixture.weights.items():
            members = [s for s, source in enumerate(sources) if source == name]
            if not members:
                members = [self.names.index(name)]
            if weight > 0 and share_S[members].sum() == 0:
                tokens = sum(self.strata[s].entry.tokens for s in members)
                raise ConfigError(
                    f'"{name}" holds {tokens} tokens, less than one block of '
                    f"data.seq_len={self.seq_len}; lower data.seq_len or give it weight 0"
                )
            if weight > 0:
                weight_S[members] += weight * share_S[members] / share_S[members].sum()
        weight_S /= weight_S.sum()
        return weight_S
