"""Which samples a step trains on: a pure function of (seed, step, weight log) and the batch sizes.

Every step draws a world batch of B samples. Quotas give the number from each stratum. Draw n of a
stratum, counted over the whole run, is sample n mod blocks of epoch n div blocks; a keyed bijection
shuffles each epoch, and the order inside the step is keyed too. Ranks take slices of the world
batch, so the world size changes nothing; another mixture or batch size only changes later draws: no
sample is lost or repeated. Blocks of skipped documents (`data.skip`) are left out before the rest
is shuffled. S here counts strata.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dograph.data.corpus import Block, Corpus, StratumTokens
from dograph.errors import ConfigError, RunError, did_you_mean
from dograph.records import Skipped, checked_step, read_lines
from dograph.rng import key64, stream
from dograph.types import BatchSizes, Mixture, SampleIds

# Quotas: whole numbers of samples for fractional weights, always close to their share.
#
# Largest remainders alone can take a sample back (the Alabama paradox), and carrying the error from
# step to step alone can drift. Tijdeman's chairman assignment (1980) does neither: draw j of
# stratum s may be made once N q_s >= j - beta and must be made before N q_s > j - 1 + beta, where
# beta = 1 - 1/(2S - 2); the earliest deadline first meets every deadline, so after N draws each
# count is within beta < 1 of N q_s.

SLACK = 1e-9  # absorbs rounding in N * q; far below the 1/(2S - 2) left between beta and 1


def advance(drawn_S: np.ndarray, weight_S: np.ndarray, num_draws: int) -> np.ndarray:
    """Counts after `num_draws` more draws, given counts since the mixture last changed.

    Deadlines are met at the ends of steps; the order inside a step is not decided here.
    O(S + num_draws log num_draws).
    """
    live_S = np.flatnonzero(weight_S > 0)
    weight_L, drawn_L = weight_S[live_S], drawn_S[live_S]
    beta = 1 - 1 / (2 * len(live_S) - 2) if len(live_S) > 1 else 1.0
    total = int(drawn_S.sum()) + num_draws

    released_L = np.floor(total * weight_L + beta + SLACK).astype(np.int64)
    open_L = np.maximum(released_L - drawn_L, 0)
    stratum_N = np.repeat(np.arange(len(live_S)), open_L)
    rank_N = np.arange(len(stratum_N)) - np.repeat(np.cumsum(open_L) - open_L, open_L)
    deadline_N = (drawn_L[stratum_N] + rank_N + beta) / weight_L[stratum_N]

    first_N = np.lexsort((stratum_N, deadline_N))[:num_draws]  # ties by index
    assert len(first_N) == num_draws, "the schedule is feasible by Tijdeman's theorem"
    after_S = drawn_S.copy()
    after_S[live_S] += np.bincount(stratum_N[first_N], minlength=len(live_S))
    return after_S


# A keyed bijection of 0..size-1: a shuffle with random access that is never stored.
#
# A balanced Feistel network permutes the smallest even-bit power of two that holds `size`; values
# outside are permuted again until they are inside (cycle walking), which keeps the map one to one.
# Memory does not depend on `size`, so an epoch of any corpus can be shuffled.

ROUNDS = 6


def permute(position_N: np.ndarray, size_N: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Image of each position (in 0..size-1) under the bijection for its size and key."""
    bits_N = np.array([(size - 1).bit_length() for size in size_N.tolist()], dtype=np.uint64)
    half_bits_N = np.maximum((bits_N + np.uint64(1)) // np.uint64(2), np.uint64(1))
    size_N, key_N = size_N.astype(np.uint64), key_N.astype(np.uint64)
    value_N = _feistel(position_N.astype(np.uint64), half_bits_N, key_N)
    (outside,) = np.nonzero(value_N >= size_N)
    while len(outside):  # at least a quarter of the values of each size are inside: this ends soon
        value_N[outside] = _feistel(value_N[outside], half_bits_N[outside], key_N[outside])
        outside = outside[value_N[outside] >= size_N[outside]]
    return value_N.astype(np.int64)


def _feistel(value_N: np.ndarray, half_bits_N: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    mask_N = (np.uint64(1) << half_bits_N) - np.uint64(1)
    left_N, right_N = value_N >> half_bits_N, value_N & mask_N
    for _ in range(ROUNDS):
        left_N, right_N = right_N, left_N ^ (mix64(right_N ^ key_N) & mask_N)
        key_N = key_N + np.uint64(0x9E3779B97F4A7C15)
    joined_N: np.ndarray = (left_N << half_bits_N) | right_N
    return joined_N


def mix64(value_N: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every bit reaches every bit; uint64 arithmetic wraps around."""
    value_N = (value_N ^ (value_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value_N = (value_N ^ (value_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_N: np.ndarray = value_N ^ (value_N >> np.uint64(31))
    return mixed_N


# The weight log: which mixture applies from which step, with the counters to start from.
#
# Entries hold cumulative counters, so the counts of any step need a bisection and a few steps of
# counting; waypoints (entries that change nothing) keep those few. The file has one JSON object per
# line.

WAYPOINT_STEPS = 256


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """From `step` on, stratum s is drawn with weight_S[s]; before it, drawn_S[s] draws were made.

    The mixture last changed at `base_step`, with counts `base_drawn_S`: quotas count from there.
    """

    step: int
    weight_S: np.ndarray
    drawn_S: np.ndarray
    base_step: int
    base_drawn_S: np.ndarray
    reason: str


class WeightLog:
    """Entries in order of step, append-only, over named strata."""

    def __init__(self, strata: list[str], entries: list[WeightEntry] | None = None) -> None:
        self.strata = strata
        self.entries = entries or []

    def find(self, step: int) -> WeightEntry:
        """The last entry at or before `step`. O(log entries)."""
        index = bisect_right(self.entries, step, key=lambda entry: entry.step)
        if index == 0:
            raise RunError(f"the weight log has no entry for step {step}; set a mixture first")
        return self.entries[index - 1]

    def append(self, entry: WeightEntry) -> None:
        if self.entries and entry.step < self.entries[-1].step:
            raise RunError(
                f"the weight log already reaches step {self.entries[-1].step}; "
                f"an entry for step {entry.step} would change the past"
            )
        if self.entries and entry.step == self.entries[-1].step:
            self.entries.pop()  # of two changes before the same step the later one applies
        self.entries.append(entry)

    def cut(self, step: int) -> "WeightLog":
        """The log as it was after `step` steps."""
        return WeightLog(self.strata, [entry for entry in self.entries if entry.step <= step])

    def dump(self) -> str:
        lines = []
        for entry in self.entries:
            arrays = (entry.weight_S, entry.drawn_S, entry.base_drawn_S)
            weight, drawn, base_drawn = (
                dict(zip(self.strata, value_S.tolist(), strict=True)) for value_S in arrays
            )
            row = {"step": entry.step, "reason": entry.reason, "weight": weight, "drawn": drawn}
            row |= {"base_step": entry.base_step, "base_drawn": base_drawn}
            lines.append(json.dumps(row) + "\n")
        return "".join(lines)

    @classmethod
    def load(cls, path: Path, strata: list[str], skipped: Skipped | None = None) -> "WeightLog":
        """The log in a file. A damaged line is an error, unless `skipped` counts it."""
        damaged = Skipped() if skipped is None else skipped
        entries: list[WeightEntry] = []
        for own, entry in read_lines(path, weight_entry, damaged):
            if own != strata:
                raise RunError(
                    f"{path} line {len(entries) + 1} names the strata {own}, but the corpus has "
                    f"{strata}; use the corpus that the run was made with"
                )
            entries.append(entry)
        if skipped is None and (not entries or damaged.warnings()):
            why = "; ".join(damaged.warnings()) or f"{path} has no mixture"
            raise RunError(f"{why}. Restore it, for example from another checkpoint of the run")
        return cls(strata, entries)


def weight_entry(row: dict[str, Any]) -> tuple[list[str], WeightEntry]:
    """The strata and the entry of a line of a log."""
    weight_S = np.array(list(row["weight"].values()), dtype=np.float64)
    counts = [list(row[name].values()) for name in ("drawn", "base_drawn")]
    drawn_S, base_S = np.array(counts, dtype=np.int64)
    base_step, reason = checked_step({"step": row["base_step"]}), str(row["reason"])
    entry = WeightEntry(checked_step(row), weight_S, drawn_S, base_step, base_S, reason)
    since_S = drawn_S - base_S
    is_mixture = (weight_S >= 0).all() and abs(weight_S.sum() - 1) < 1e-6
    if not is_mixture or (abs(since_S - since_S.sum() * weight_S) >= 1).any():  # see `advance`
        raise ValueError("its weights and counts do not match")
    return list(row["weight"]), entry


class Sampler:
    """Draws world batches from the strata of a corpus."""

    def __init__(
        self, strata: list[StratumTokens], *, seq_len: int, batch_size: int | BatchSizes, seed: int
    ) -> None:
        self.strata = strata
        self.seq_len = seq_len
        self.batches = BatchSizes(batch_size, 1) if isinstance(batch_size, int) else batch_size
        self.seed = seed
        self.names = [stratum.entry.stratum for stratum in strata]
        self.sources = [stratum.entry.source for stratum in strata]  # of each stratum
        self.blocks_S = np.array([s.num_blocks(seq_len) for s in strata], dtype=np.int64)
        self.skipped: Mapping[int, np.ndarray] = {}
        self.log = WeightLog(self.names)
        self._latest = (-1, np.zeros(len(strata), dtype=np.int64))  # (step, drawn_S): a cache

    def skip(self, blocks: Mapping[int, np.ndarray]) -> None:
        """Never draw these blocks, rising, by index of their stratum; before the first mixture."""
        self.skipped = blocks
        for s, skip_N in blocks.items():
            self.blocks_S[s] -= len(skip_N)

    def remix(self, step: int, mixture: Mixture, reason: str) -> None:
        """Draw from `mixture` from `step` on."""
        drawn_S = self.drawn(step) if self.log.entries else np.zeros_like(self.blocks_S)
        weight_S = self.weights_of(mixture)
        self.log.append(WeightEntry(step, weight_S, drawn_S, step, drawn_S, reason))
        self._latest = (-1, drawn_S)

    def drawn(self, step: int) -> np.ndarray:
        """How often each stratum was drawn before `step`."""
        entry = self.log.find(step)
        at, drawn_S = self._latest
        if not entry.step <= at <= step:
            at, drawn_S = entry.step, entry.drawn_S
        for made in range(at, step):
            since_S = drawn_S - entry.base_drawn_S
            drawn_S = entry.base_drawn_S + advance(since_S, entry.weight_S, self.batches.size(made))
            if (made + 1 - entry.base_step) % WAYPOINT_STEPS == 0 and entry is self.log.entries[-1]:
                entry = replace(entry, step=made + 1, drawn_S=drawn_S, reason="waypoint")
                self.log.append(entry)
        self._latest = (step, drawn_S)
        return drawn_S

    def draw(self, step: int) -> SampleIds:
        """The world batch of `step`, in its global order."""
        before_S, size = self.drawn(step), self.batches.size(step)
        # Not drawn(step + 1): the next step may have a new mixture.
        entry = self.log.find(step)
        since_S = before_S - entry.base_drawn_S
        count_S = advance(since_S, entry.weight_S, size) - since_S

        stratum_B = np.repeat(np.arange(len(count_S)), count_S)
        rank_B = np.arange(size) - np.repeat(np.cumsum(count_S) - count_S, count_S)
        order_B = stream(self.seed, "order", step).permutation(size)
        stratum_B, draw_B = stratum_B[order_B], (before_S[stratum_B] + rank_B)[order_B]

        # Sample i is draw number draw_B[i] of stratum stratum_B[i].
        blocks_B = self.blocks_S[stratum_B]
        epoch_B, position_B = np.divmod(draw_B, blocks_B)
        pairs = list(zip(stratum_B.tolist(), epoch_B.tolist(), strict=True))
        key = {(s, e): key64(self.seed, "shuffle", self.names[s], e) for s, e in set(pairs)}
        key_B = np.array([key[pair] for pair in pairs], dtype=np.uint64)
        block_B = permute(position_B, blocks_B, key_B)  # counted without skipped ones
        for s, skip_N in self.skipped.items():
            own_B = stratum_B == s
            kept_before_N = skip_N - np.arange(len(skip_N))
            block_B[own_B] += np.searchsorted(kept_before_N, block_B[own_B], side="right")
        tokens = (block_B * self.seq_len).tolist()
        places = [self.strata[s].locate(at) for (s, _), at in zip(pairs, tokens, strict=True)]
        document_B, offset_B = np.array(places, dtype=np.int64).T
        return SampleIds(stratum_B, block_B, document_B, offset_B, epoch_B)

    def epochs(self, drawn_S: np.ndarray) -> dict[str, float]:
        """How many times each source has been read through, given the draws of each stratum."""
        drawn, blocks = self.by_source(drawn_S), self.by_source(self.blocks_S)
        return {source: drawn[source] / max(blocks[source], 1) for source in drawn}

    def by_source(self, value_S: np.ndarray) -> dict[str, float]:
        """Sums over the strata of each source."""
        sums = dict.fromkeys(self.sources, 0.0)
        for source, value in zip(self.sources, value_S.tolist(), strict=True):
            sums[source] += value
        return sums

    def weights_of(self, mixture: Mixture) -> np.ndarray:
        """Weights over strata. A source's weight is shared among its strata by their tokens."""
        mixture.require_names([*self.names, *self.sources])
        share_S = np.array([s.entry.tokens for s in self.strata], dtype=np.float64)
        share_S[self.blocks_S == 0] = 0.0
        weight_S: np.ndarray = np.zeros(len(self.strata))
        for name, weight in mixture.weights.items():
            members = [s for s, source in enumerate(self.sources) if source == name]
            members = members or [self.names.index(name)]
            if weight == 0:
                continue
            if share_S[members].sum() == 0:
                tokens = sum(self.strata[s].entry.tokens for s in members)
                rest = " outside data.skip" if self.skipped else ""
                raise ConfigError(
                    f'"{name}" holds {tokens} tokens, less than one block of '
                    f"data.seq_len={self.seq_len}{rest}; lower data.seq_len or give it weight 0"
                )
            weight_S[members] += weight * share_S[members] / share_S[members].sum()
        weight_S /= weight_S.sum()
        return weight_S


def skipped_blocks(corpus: Corpus, places: Sequence[str], seq_len: int) -> dict[int, np.ndarray]:
    """Blocks with a token of these documents (INPUT:LINE), rising, by index of their stratum."""
    inputs, wanted = corpus.manifest.inputs, dict[int, str]()
    for place in places:
        name, _, line = place.rpartition(":")
        if name not in inputs or not line.isdecimal():
            raise ConfigError(
                f'data.skip names "{place}"; give INPUT:LINE as `dograph show spikes` prints it, '
                f"INPUT being an input of {corpus.directory}: {did_you_mean(name, inputs)}"
            )
        wanted[(inputs.index(name) << 40) + int(line) - 1] = place
    blocks, found = dict[int, np.ndarray](), set[int]()
    for s, stratum in enumerate(corpus.train if wanted else ()):
        key_D = (stratum.documents["input"].astype(np.int64) << 40) + stratum.documents["record"]
        document_N = np.flatnonzero(np.isin(key_D, list(wanted)))
        found.update(key_D[document_N].tolist())
        start_N, end_N = stratum.spans(document_N)
        first_N, past_N = start_N // seq_len, -(-end_N // seq_len)
        spans = (range(*pair) for pair in zip(first_N.tolist(), past_N.tolist(), strict=True))
        whole = range(stratum.num_blocks(seq_len))  # the tail that fills no block is never drawn
        if own := {block for span in spans for block in span if block in whole}:
            blocks[s] = np.array(sorted(own))
    if absent := [place for key, place in wanted.items() if key not in found]:
        raise ConfigError(
            f"data.skip names {', '.join(absent[:5])}, but {corpus.directory} has no training "
            "document from there; lines count from 1"
        )
    return blocks


def sample_text(corpus: Corpus, ids: SampleIds, row: int, seq_len: int) -> str | None:
    """The text of a sample of a batch; None if the corpus has only tokens."""
    block = Block(corpus.train[ids.stratum_B[row]], int(ids.block_B[row]), seq_len)
    return block.text(corpus) if corpus.manifest.tokenizer.file is not None else None


def sample_place(corpus: Corpus, ids: SampleIds, row: int) -> str:
    """The origin of a sample in words."""
    own = sample_origin(corpus, ids, row)
    return f"{own['stratum']} document {own['document']} ({own['input']} line {own['line']})"


def sample_origin(corpus: Corpus, ids: SampleIds, row: int) -> dict[str, str | int]:
    """Where a sample of a batch is from: its document, and the input file and line of that."""
    stratum, document = corpus.train[ids.stratum_B[row]], int(ids.document_B[row])
    _, record, number, *_ = stratum.documents[document].tolist()
    return {
        "source": stratum.entry.source,
        "stratum": stratum.entry.stratum,
        "document": document,
        "offset": int(ids.offset_B[row]),
        "input": corpus.manifest.inputs[number],
        "line": record + 1,
    }
