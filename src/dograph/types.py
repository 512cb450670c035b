"""The common types: Mixture, Batch, Signals, Domains.

Shapes: B samples of the world batch of one optimizer step (all ranks and micro-batches, in global
order), T tokens, K sketch, M domains, S sources.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from dograph.errors import ConfigError, did_you_mean

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
            if name not in known:
                raise ConfigError(
                    f'the mixture names "{name}", which is not in the corpus; '
                    f"{did_you_mean(name, known)}"
                )


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
        return Domains(
            **{field.name: getattr(self, field.name).to(device) for field in fields(self)}
        )
