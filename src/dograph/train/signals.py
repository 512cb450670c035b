"""What a step can see of its samples: losses, those of a reference, and sketches in every mode.

The mixer's `needs` say what to look at; nothing else is computed.

Shapes: B samples of the world batch, b those of a micro-batch, T tokens, K sketch.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.models.build import load_model
from dograph.models.loss import PerSampleLoss, compile_regions, mean_over_predictions
from dograph.rng import key64
from dograph.sketch.assembly import Pending, RetainedGraph
from dograph.sketch.sketcher import Sketcher
from dograph.sketch.tap import unwrapped
from dograph.train.accumulation import require_known_needs
from dograph.train.distributed import World
from dograph.train.stopwatch import Stopwatch
from dograph.types import Batch, Signals

# The sketcher of a run, and how long its projections hold.


def open_sketcher(config: RunConfig, model: nn.Module, mixer: Mixer) -> Sketcher:
    """The sketcher that the configuration describes, for a mixer that needs sketches."""
    how, loss = config.sketch, unwrapped(model)
    assert isinstance(loss, PerSampleLoss)
    if how.mode == "head":
        loss.require_plain_head()
    return Sketcher(
        model,
        mode=how.mode,
        dim=how.dim,
        projection=how.projection,
        seed=config.seed,
        refresh=mixer.refresh(how.refresh),
        exclude=tuple(how.exclude),
        top_blocks=how.top_blocks,
        head=loss.head,
    )


# The reference model: what a sample's loss is compared with, token by token.


ALLOWED = "a run directory, a model folder or a Hugging Face name"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A micro-batch's losses beside those of the reference."""

    reference_loss_b: Tensor
    excess_loss_b: Tensor  # clipped at 0 token by token, then averaged


class Reference:
    """A model that is only looked at: no gradient, no dropout."""

    def __init__(self, model: PerSampleLoss) -> None:
        self.model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def compare(self, token_bT: Tensor, nll_bT: Tensor) -> Comparison:
        """max(l_t - ref_t, 0), then the mean: averaging first would let tokens cancel."""
        reference_bT = self.model(token_bT, per_token=True)
        excess_bT = (nll_bT.detach() - reference_bT).clamp_min(0)
        return Comparison(mean_over_predictions(reference_bT), mean_over_predictions(excess_bT))


def open_reference(
    config: RunConfig, mixer: Mixer, vocab_size: int, device: torch.device
) -> Reference:
    """The reference that `mixer` names, for a model of this vocabulary."""
    if (name := mixer.reference) is None:
        raise ConfigError(
            f"mixer {config.mixer.name} needs reference_loss, but names no reference model; set "
            f"mixer.reference to {ALLOWED}"
        )
    try:
        model = load_model(_folder(name), vocab_size=0, seed=config.seed, pretrained=True)
    except ConfigError as error:
        raise ConfigError(f'mixer.reference="{name}" must be {ALLOWED}: {error}') from error
    if model.vocab_size != vocab_size:
        raise ConfigError(
            f'mixer.reference="{name}" has a vocabulary of {model.vocab_size} tokens, the model '
            f"that is trained {vocab_size}; their losses can be compared only with one tokenizer: "
            "take a reference that was trained on this corpus"
        )
    positions = getattr(model.model.config, "max_position_embeddings", config.data.seq_len)
    if positions < config.data.seq_len:
        raise ConfigError(
            f'mixer.reference="{name}" has {positions} positions, fewer than '
            f"data.seq_len={config.data.seq_len}"
        )
    if config.train.compile:
        compile_regions(model)
    return Reference(model.to(device))


def _folder(name: str) -> str:
    """A run's model, where `name` is a run."""
    path = Path(name)
    if not (path / "config.yaml").is_file():
        return name
    if not (path / "model").exists():
        raise ConfigError(
            f"this run has not ended, so it has no model yet; dograph train --resume {path}"
        )
    return str(path / "model")


# The precision that a run computes in; its weights stay float32.


def autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[object]:
    """Inside it, forwards run in train.dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.train.half)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that this rank computes at once."""

    token_bT: Tensor
    step: int
    number: int  # among those of the step on this rank
    last: bool


@dataclass(frozen=True, slots=True)
class Given:
    """What a step starts from."""

    step: int
    lr: float
    batch: Batch
    micros: list[MicroBatch]  # this rank's samples, on the device

    @property
    def num_samples(self) -> int:
        """Of the world batch."""
        return len(self.batch.source_B)


@dataclass(frozen=True, slots=True)
class Piece:
    """One micro-batch that was looked at, and its gradient, which waits for weights."""

    loss_b: Tensor
    sketch_bK: Tensor | None
    block_norm_b: Tensor | None
    pending: Pending | None
    comparison: Comparison | None = None

    def backward(self, weight_b: Tensor) -> None:
        """Add this micro-batch's share of the weighted gradient to `.grad`."""
        assert self.pending is not None
        self.pending.backward(weight_b)

    def without_gradient(self) -> "Piece":
        """What is known of the samples, without the activations that their gradient is made of."""
        return replace(self, loss_b=self.loss_b.detach(), pending=None)


class Eyes:
    """Runs the model so that the mixer sees what it needs."""

    def __init__(
        self, config: RunConfig, world: World, model: nn.Module, mixer: Mixer, watch: Stopwatch
    ) -> None:
        require_known_needs(mixer)
        self.config, self.world, self.model, self.mixer = config, world, model, mixer
        self.watch = watch
        loss = unwrapped(model)
        assert isinstance(loss, PerSampleLoss)
        self.vocab_size = loss.vocab_size
        self.reference: Reference | None = None
        if "reference_loss" in mixer.needs:
            self.reference = open_reference(config, mixer, self.vocab_size, world.device)
        self.sketcher: Sketcher | None = None
        if "sketch" in mixer.needs:
            self.sketcher = open_sketcher(config, model, mixer)

    @property
    def sketches(self) -> bool:
        return self.sketcher is not None

    def see(self, taps: ExitStack, micro: MicroBatch, *, keep: bool) -> Piece:
        """Look at a micro-batch; `taps` hold as long as its gradient may be asked for."""
        if self.sketcher is None:
            piece = self._see_losses(micro, keep=keep)
        else:
            piece = self._see_gradients(self.sketcher, taps, micro, keep=keep)
        return piece if keep else piece.without_gradient()

    def _see_losses(self, micro: MicroBatch, *, keep: bool) -> Piece:
        with torch.set_grad_enabled(keep):
            loss_b, comparison = self._compared(micro)
        self.watch.lap("forward")
        return Piece(loss_b, None, None, RetainedGraph(loss_b), comparison)

    def _see_gradients(
        self, sketcher: Sketcher, taps: ExitStack, micro: MicroBatch, *, keep: bool
    ) -> Piece:
        if not keep:
            taps.enter_context(self.world.accumulating(self.model, last=False))
        # What is kept of every layer is of the precision it ran in.
        with autocast(self.config, self.world.device):
            taps.enter_context(sketcher.record(micro.token_bT, micro.step))
        loss_b, comparison = self._compared(micro)
        self.watch.lap("forward")
        sketch = sketcher.sketch(loss_b, keep=keep)
        self.watch.lap("sketch")  # the backward to the layers' outputs, with the sketches
        return Piece(loss_b, sketch.sketch_BK, sketch.block_norm_B, sketch.pending, comparison)

    def _compared(self, micro: MicroBatch) -> tuple[Tensor, Comparison | None]:
        """Losses of a micro-batch, and how they compare with the reference's if there is one."""
        if self.reference is None:
            return self.losses(micro), None
        nll_bT = self.losses(micro, per_token=True)
        with autocast(self.config, self.world.device):
            comparison = self.reference.compare(micro.token_bT, nll_bT)
        return mean_over_predictions(nll_bT), comparison

    def losses(self, micro: MicroBatch, *, per_token: bool = False) -> Tensor:
        """Loss of each sample of a micro-batch, or of each of its tokens.

        Dropout is a function of (seed, step, place).
        """
        place = (micro.step, self.world.rank, micro.number)
        torch.manual_seed(key64(self.config.seed, "dropout", *place) >> 1)
        with autocast(self.config, self.world.device):
            loss: Tensor = (
                self.model(micro.token_bT, per_token=True)
                if per_token
                else self.model(micro.token_bT)
            )
        return loss

    def signals(self, pieces: list[Piece], given: Given) -> Signals:
        """What every rank saw, in the order of the world batch, as far as the mixer needs it."""
        batch, num = given.batch, given.num_samples
        needs, device = self.mixer.needs, self.world.device
        stratum_B = torch.from_numpy(batch.ids.stratum_B)
        sees = bool(pieces) and self.sketches
        beside = [piece.comparison for piece in pieces if piece.comparison is not None]
        reference = [comparison.reference_loss_b for comparison in beside]
        excess = [comparison.excess_loss_b for comparison in beside]
        return Signals(
            step=given.step,
            num_samples=num,
            device=device,
            loss_B=self.gathered_losses(pieces, num) if "loss" in needs else None,
            reference_loss_B=self._gathered(reference, num) if beside else None,
            excess_loss_B=self._gathered(excess, num) if beside else None,
            source_B=batch.source_B.to(device, non_blocking=True) if "source" in needs else None,
            stratum_B=stratum_B.to(device, non_blocking=True) if self.sketches else None,
            sketch_BK=self._gathered([p.sketch_bK for p in pieces], num) if sees else None,
            block_norm_B=self._gathered([p.block_norm_b for p in pieces], num) if sees else None,
            projection=self._projection(given.step),
            lr=given.lr,
            vocab_size=self.vocab_size,
        )

    def early_signals(self, piece: Piece, step: int) -> Signals:
        """What is known of one micro-batch before the others are looked at."""
        assert piece.sketch_bK is not None
        return Signals(
            step=step,
            num_samples=len(piece.loss_b),
            device=self.world.device,
            sketch_BK=piece.sketch_bK.detach(),
            block_norm_B=piece.block_norm_b,
            projection=self._projection(step),
        )

    def _projection(self, step: int) -> int:
        return self.sketcher.projection.epoch(step) if self.sketcher else 0

    def gathered_losses(self, pieces: list[Piece], num_samples: int) -> Tensor:
        return self._gathered([piece.loss_b for piece in pieces], num_samples)

    def _gathered(self, parts: Sequence[Tensor | None], num_samples: int) -> Tensor:
        known = [part.detach() for part in parts if part is not None]
        return self.world.gather(torch.cat(known), num_samples)
