"""What a step can see of its samples: losses, those of a reference, and sketches in every mode.

The mixer's `needs` say what to look at; nothing else is computed.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from dograph.domains.stream import FIT_BATCHES
from dograph.errors import ConfigError
from dograph.mixers.base import SIGNALS, Mixer
from dograph.mixers.doge_proxy import DoGEProxy
from dograph.mixers.dograph import DoGraph
from dograph.models.loss import PerSampleLoss, mean_over_predictions
from dograph.rng import key64
from dograph.sketch.pending import Pending, RetainedGraph
from dograph.sketch.ranks import average_gradients
from dograph.sketch.recording import unwrapped
from dograph.sketch.sketcher import Sketcher
from dograph.training.config import RunConfig
from dograph.training.optim import learning_rate
from dograph.training.reference import Comparison, Reference, open_reference
from dograph.training.stopwatch import Stopwatch
from dograph.training.world import World
from dograph.types import Batch, Signals

Way = Literal["blind", "keep", "two_sweeps", "lagged"]


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
        self.config, self.world, self.model, self.mixer = config, world, model, mixer
        self.watch = watch
        if missing := mixer.needs - SIGNALS:
            raise ConfigError(
                f"the mixer needs {sorted(missing)}, which this step does not compute; "
                f"it computes {sorted(SIGNALS)}"
            )
        loss = unwrapped(model)
        assert isinstance(loss, PerSampleLoss)
        self.loss = loss
        self.reference: Reference | None = None
        if "reference_loss" in mixer.needs:
            self.reference = open_reference(config, mixer, loss.vocab_size, world.device)
        self.sketches = "sketch" in mixer.needs
        self.sketcher: Sketcher | None = None
        if self.sketches:
            self._open_sketcher()

    def _open_sketcher(self) -> None:
        config, how = self.config, self.config.sketch
        self._require_known_domains()
        refresh = self._refresh()
        if how.mode == "head":
            self.loss.require_plain_head()
        self.sketcher = Sketcher(
            self.model,
            mode=how.mode,
            dim=how.dim,
            projection=how.projection,
            seed=config.seed,
            refresh=refresh,
            exclude=tuple(how.exclude),
            top_blocks=how.top_blocks,
            head=self.loss.head,
        )

    def _refresh(self) -> int | Literal["never", "step"]:
        """When projections are redrawn: as asked for, or as the mixer's domains need it."""
        asked = self.config.sketch.refresh
        if isinstance(self.mixer, DoGEProxy) and asked not in (None, "never"):
            raise ConfigError(
                f"sketch.refresh={asked} with mixer.name={self.config.mixer.name}: a source that "
                "is absent from a batch keeps its last sketch, so all must be under one "
                "projection; set sketch.refresh=never"
            )
        if not isinstance(self.mixer, DoGraph):
            return "never" if asked is None else asked
        options = self.mixer.options
        if options.scope == "batch":
            return "step" if asked is None else asked
        remedy = "set sketch.refresh to never or to some hundreds of steps, or mixer.scope to batch"
        if asked == "step":
            raise ConfigError(
                f"sketch.refresh=step with mixer.scope={options.scope}: domains that last need "
                f"sketches under one projection; {remedy}"
            )
        first = options.every if options.scope == "epoch" else FIT_BATCHES
        if isinstance(asked, int) and 0 < asked <= first:
            raise ConfigError(
                f"sketch.refresh={asked} with mixer.scope={options.scope}: domains are found from "
                f"{first} steps, and would be forgotten before any could use them; {remedy}"
            )
        return "never" if asked is None else asked

    def _require_known_domains(self) -> None:
        """Lagged weights are those of domains that were known before the step."""
        if self.config.sketch.accumulation != "lagged":
            return
        remedy = "use sketch.accumulation=two_sweeps, or keep (mode full)"
        if not isinstance(self.mixer, DoGraph):
            raise ConfigError(
                f"sketch.accumulation=lagged with mixer.name={self.config.mixer.name}, which does "
                f"not say what a sample counts before it has seen the whole batch; {remedy}"
            )
        if not self.mixer.scope.keeps_identity:
            raise ConfigError(
                f"sketch.accumulation=lagged with mixer.scope={self.mixer.options.scope}: weights "
                "of a micro-batch need domains that are known before it; set mixer.scope to "
                f"stream or epoch, or {remedy}"
            )

    def way(self, num_samples: int) -> Way:
        """How weights and gradients come together; every rank must answer alike."""
        if not self.mixer.needs & {"loss", "reference_loss", "sketch"}:
            return "blind"
        most = -(-num_samples // self.world.size)
        if most <= (self.config.train.micro_batch_size or most):
            return "keep"
        return self.config.sketch.accumulation if self.sketches else "two_sweeps"

    def see(self, taps: ExitStack, token_bT: Tensor, step: int, micro: int, *, keep: bool) -> Piece:
        """Look at a micro-batch; `taps` hold as long as its gradient may be asked for."""
        if not self.sketches:
            with torch.set_grad_enabled(keep):
                loss_b, comparison = self._seen_losses(token_bT, step, micro)
            self.watch.lap("forward")
            piece = Piece(loss_b, None, None, RetainedGraph(loss_b), comparison)
        else:
            assert self.sketcher is not None
            if not keep:
                taps.enter_context(self.accumulating(last=False))
            with self._autocast():  # what is kept of every layer is of the precision it ran in
                taps.enter_context(self.sketcher.record(token_bT, step))
            loss_b, comparison = self._seen_losses(token_bT, step, micro)
            self.watch.lap("forward")
            sketch = self.sketcher.sketch(loss_b, keep=keep)
            self.watch.lap("sketch")  # the backward to the layers' outputs, with the sketches
            piece = Piece(loss_b, sketch.sketch_BK, sketch.block_norm_B, sketch.pending, comparison)
        return piece if keep else piece.without_gradient()

    def _seen_losses(
        self, token_bT: Tensor, step: int, micro: int
    ) -> tuple[Tensor, Comparison | None]:
        """Losses of a micro-batch, and how they compare with the reference's if there is one."""
        if self.reference is None:
            return self.losses(token_bT, step, micro), None
        nll_bT = self.losses(token_bT, step, micro, per_token=True)
        with self._autocast():
            comparison = self.reference.compare(token_bT, nll_bT)
        return mean_over_predictions(nll_bT), comparison

    def losses(self, token_bT: Tensor, step: int, micro: int, *, per_token: bool = False) -> Tensor:
        """Loss of each sample of a micro-batch, or of each of its tokens.

        Dropout is a function of (seed, step, place).
        """
        torch.manual_seed(key64(self.config.seed, "dropout", step, self.world.rank, micro) >> 1)
        with self._autocast():
            loss: Tensor = (
                self.model(token_bT, per_token=True) if per_token else self.model(token_bT)
            )
        return loss

    def _autocast(self) -> AbstractContextManager[object]:
        half = self.config.train.dtype == "bfloat16"
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=half)

    def signals(self, pieces: list[Piece], batch: Batch, step: int) -> Signals:
        """What every rank saw, in the order of the world batch, as far as the mixer needs it."""
        num, needs, device = len(batch.source_B), self.mixer.needs, self.world.device
        stratum_B = torch.from_numpy(batch.ids.stratum_B)
        sees = bool(pieces) and self.sketches
        beside = [piece.comparison for piece in pieces if piece.comparison is not None]
        reference = [comparison.reference_loss_b for comparison in beside]
        excess = [comparison.excess_loss_b for comparison in beside]
        return Signals(
            step=step,
            num_samples=num,
            device=device,
            loss_B=self.gathered_losses(pieces, num) if "loss" in needs else None,
            reference_loss_B=self._gathered(reference, num) if beside else None,
            excess_loss_B=self._gathered(excess, num) if beside else None,
            source_B=batch.source_B.to(device, non_blocking=True) if "source" in needs else None,
            stratum_B=stratum_B.to(device, non_blocking=True) if self.sketches else None,
            sketch_BK=self._gathered([p.sketch_bK for p in pieces], num) if sees else None,
            block_norm_B=self._gathered([p.block_norm_b for p in pieces], num) if sees else None,
            projection=self.sketcher.projection.epoch(step) if self.sketcher else 0,
            lr=learning_rate(step, self.config.optim, self.config.train.steps),
            vocab_size=self.loss.vocab_size,
        )

    def gathered_losses(self, pieces: list[Piece], num_samples: int) -> Tensor:
        return self._gathered([piece.loss_b for piece in pieces], num_samples)

    def _gathered(self, parts: Sequence[Tensor | None], num_samples: int) -> Tensor:
        known = [part.detach() for part in parts if part is not None]
        return self.world.gather(torch.cat(known), num_samples)

    def weigh_lagged(self, piece: Piece, num_samples: int, step: int) -> Tensor:
        assert isinstance(self.mixer, DoGraph)
        assert piece.sketch_bK is not None
        assert self.sketcher is not None
        seen = Signals(
            step=step,
            num_samples=len(piece.loss_b),
            device=self.world.device,
            sketch_BK=piece.sketch_bK.detach(),
            block_norm_B=piece.block_norm_b,
            projection=self.sketcher.projection.epoch(step),
        )
        return self.mixer.weigh_lagged(seen, num_samples)

    def observe(self, signals: Signals, weight_B: Tensor) -> None:
        assert isinstance(self.mixer, DoGraph)
        self.mixer.observe(signals, weight_B)

    def accumulating(self, *, last: bool) -> AbstractContextManager[object]:
        return self.world.accumulating(self.model, last=last)

    def average_gradients(self) -> None:
        """Where a mode fills `.grad` itself, no wrapper has averaged it over the ranks."""
        if self.sketcher is not None and self.sketcher.reduces:
            average_gradients(list(self.sketcher.parameters.values()))
