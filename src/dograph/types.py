"""The common types: Mixture, Batch, BatchSizes, Signals, Domains.

Shapes: B samples of the world batch of one optimizer step (all ranks and micro-batches, in global
order), T tokens, K sketch, M domains, S sources.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dograph.errors import ConfigError, require_known

if TYPE_CHECKING:  # torch takes seconds to import; preparing a corpus does not need it
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sampling weights over named sources or strata; they sum to 1."""

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        bad = {name: w for name, w in self.weights.items() if not (math.isfinite(w) and w >= 0)}
        if bad:
            raise ConfigError(f"mixture weights must be finite and >= 0, got {bad}")
        total = math.fsum(self.weights.values())
        if not self.weights or abs(total - 1) > 1e-6:
            raise ConfigError(
                f"mixture weights must sum to 1, got {total:.6g} over {len(self.weights)} names; "
                "divide them by their sum, or use Mixture.normalised"
            )

    @classmethod
    def normalised(cls, weights: Mapping[str, float]) -> "Mixture":
        """A mixture proportional to `weights`."""
        total = math.fsum(weights.values())
        if not (math.isfinite(total) and total > 0):
            raise ConfigError(
                f"mixture weights need a positive finite sum, got {total} from {dict(weights)}"
            )
        return cls({name: weight / total for name, weight in weights.items()})

    def require_names(self, known: list[str]) -> None:
        """Refuse names that are not in the corpus."""
        for name in self.weights:
            require_known(name, known, f'the mixture names "{name}", which is not in the corpus')


@dataclass(frozen=True, slots=True)
class SampleIds:
    """Where each sample of a batch comes from in the corpus."""

    stratum_B: np.ndarray  # index into the corpus' training strata
    block_B: np.ndarray  # which block of that stratum
    document_B: np.ndarray  # document in which the block starts, counted within the stratum
    offset_B: np.ndarray  # token of that document at which the block starts
    epoch_B: np.ndarray  # how many times the whole stratum was read before

    def __len__(self) -> int:
        return len(self.stratum_B)


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's samples of one optimizer step, and where those of all ranks come from."""

    token_BT: "Tensor"  # (local samples, T) int64
    source_B: "Tensor"  # (world batch,) int64: source of every sample in the world
    ids: SampleIds  # of the world batch


ENDLESS = 2**62  # steps, or the number of a step that no run reaches
ALWAYS = ((ENDLESS, ENDLESS),)
Schedule = int | list[tuple[int, int]]  # a batch size, or (tokens, size) with rising tokens
Lengths = Sequence[tuple[int, int]]


class BatchPhase(NamedTuple):
    """Steps of one size: the first of them, the samples drawn before it, how many there are."""

    step: int
    drawn: int
    size: int
    steps: int


class BatchSizes:
    """The batch size of every step, fixed or by tokens; steps count from 0.

    With `sizes` [(0, 12), (2000000, 24)] a step has 24 samples once 2M tokens were drawn before.
    A run draws train.steps x reference x seq_len tokens whatever the sizes, so the number of its
    steps follows from them; the last step has the samples that are left. `reference` is the size
    that the settings are for. `lengths`: values of train.steps, after the step until which it held.
    """

    def __init__(
        self, sizes: Schedule, seq_len: int, reference: int | None = None, lengths: Lengths = ALWAYS
    ) -> None:
        entries = [(0, sizes)] if isinstance(sizes, int) else sizes
        first_samples = [-(-tokens // seq_len) for tokens, _ in entries] + [math.inf]
        self.reference = reference or entries[0][1]
        self.phases: list[BatchPhase] = []
        self.scheduled: set[int] = set()  # sizes, without that of a smaller last step
        self.ends: set[int] = set()  # steps after which the run was complete, perhaps for a time
        step = drawn = 0
        for until, length in lengths:
            total = length * self.reference
            while drawn < total and step < until:
                entry = bisect_right(first_samples, drawn) - 1
                self.scheduled.add(entries[entry][1])
                size, end = min(entries[entry][1], total - drawn), first_samples[entry + 1]
                number = min((total - drawn) // size, until - step)
                if end < total:
                    number = min(number, math.ceil((end - drawn) / size))
                self.phases.append(BatchPhase(step, drawn, size, number))
                step, drawn = step + number, drawn + number * size
            if drawn >= total:
                self.ends.add(step)
        self.steps, self.samples = step, drawn

    def phase(self, step: int) -> BatchPhase:
        """The phase of a step; one after the last step is the last phase."""
        return self.phases[bisect_right(self.phases, step, key=lambda own: own.step) - 1]

    def size(self, step: int) -> int:
        return self.phase(step).size

    def drawn(self, step: int) -> int:
        """Samples drawn before `step`."""
        own = self.phase(step)
        return own.drawn + (step - own.step) * own.size

    def counted(self, step: int) -> float:
        """The same in steps of the reference size."""
        return self.drawn(step) / self.reference

    def step_at(self, count: int) -> int:
        """The first step that begins after the samples of `count` steps of the reference size."""
        samples = count * self.reference
        own = self.phases[bisect_right(self.phases, samples, key=lambda own: own.drawn) - 1]
        return own.step - (own.drawn - samples) // own.size

    @property
    def largest(self) -> int:
        return max(own.size for own in self.phases)

    def __str__(self) -> str:
        """As in "16", or "8 to 64"."""
        return " to ".join(map(str, sorted({min(self.scheduled), self.largest})))


@dataclass(frozen=True, slots=True)
class Signals:
    """The samples of one step as a mixer sees them; its `needs` decides which fields are filled."""

    step: int
    num_samples: int  # B, the world batch
    device: "torch.device | None" = None  # of the weights; None: the CPU
    loss_B: "Tensor | None" = None  # mean NLL in nats over each sample's own predicted tokens
    reference_loss_B: "Tensor | None" = None  # the same under a reference model
    excess_loss_B: "Tensor | None" = None  # mean over tokens of max(loss - reference loss, 0)
    num_tokens_B: "Tensor | None" = None  # predicted tokens of each sample; None: equally many
    source_B: "Tensor | None" = None  # index into the corpus' sources
    stratum_B: "Tensor | None" = None  # index into the corpus' training strata
    sketch_BK: "Tensor | None" = None  # projected per-sample gradients
    block_norm_B: "Tensor | None" = None  # norm of the sketch's part from the blocks' matrices
    projection: int = 0  # first step of the sketches' projection
    lr: float | None = None  # learning rate of this step's update
    # steps of the reference batch size before and after this step; None: step and step + 1
    counted: tuple[float, float] | None = None
    vocab_size: int | None = None  # log(vocab_size) is the loss of a uniform prediction


@dataclass(frozen=True, slots=True)
class Domains:
    """Statistics of M domains for the objectives. Entries of empty domains are 0."""

    label_B: "Tensor"  # int64: domain of each sample of this batch
    share_M: "Tensor"  # fraction of the samples in each domain
    gram_MM: "Tensor"  # inner products of the domains' mean gradients
    square_M: "Tensor"  # mean squared gradient norm in each domain
    spread_M: "Tensor"  # mean squared distance to the domain's mean
    spread_variance_M: "Tensor"  # variance over samples of these distances (1/|D|), in float64
    scale: "Tensor"  # (): mean squared gradient norm over all samples

    @property
    def present_M(self) -> "Tensor":
        """Which domains have samples."""
        return self.share_M > 0

    def to(self, device: "torch.device") -> "Domains":
        """The same on another device."""
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self)}
        return Domains(**moved)
