"""The forward pass of a step, and the signals that it computes: those in `mixer.needs`, no others.

Shapes: B samples of the world batch, b those of a micro-batch, T tokens, K sketch.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import SIGNALS, Mixer
from dograph.models.build import load_model
from dograph.models.loss import PerSampleLoss, compile_regions, mean_over_predictions
from dograph.rng import key64
from dograph.sketch.coverage import unwrapped
from dograph.sketch.gradients import (
    MicroBatchResult,
    RetainedGraph,
    WorldRows,
    gather_signals,
    joined,
)
from dograph.sketch.sketcher import Sketcher
from dograph.train.distributed import World
from dograph.types import Batch, Signals

ALLOWED = "a run directory, a model folder or a Hugging Face name"


class Reference:
    """The model that a sample's loss is compared with; no gradient, no dropout."""

    def __init__(self, model: PerSampleLoss) -> None:
        self.model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def compare(self, token_bT: Tensor, nll_bT: Tensor) -> tuple[Tensor, Tensor]:
        """The reference's losses, and by how much `nll_bT` exceeds it in the mean over tokens.

        max(l_t - ref_t, 0), then the mean: averaging first would let tokens cancel.
        """
        reference_bT = self.model(token_bT, per_token=True)
        excess_bT = (nll_bT.detach() - reference_bT).clamp_min(0)
        return mean_over_predictions(reference_bT), mean_over_predictions(excess_bT)


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
        folder = Path(name)
        is_run = (folder / "config.yaml").is_file()
        if is_run and not (folder / "model").exists():
            raise ConfigError(
                f"this run has not ended, so it has no model yet; dograph train --resume {folder}"
            )
        place = str(folder / "model") if is_run else name
        model = load_model(place, vocab_size=0, seed=config.seed, pretrained=True)
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


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that this rank computes at once."""

    token_bT: Tensor
    step: int
    number: int  # among those of the step on this rank
    last: bool


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a step starts from."""

    step: int
    lr: float
    batch: Batch
    rows: WorldRows
    micro_batches: list[MicroBatch]  # this rank's samples, on the device


class SignalCollector:
    """Runs the forward pass and computes the signals in `mixer.needs`."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        model: nn.Module,
        mixer: Mixer,
        lap: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`lap` is told what the time since its last call was spent on."""
        if missing := mixer.needs - SIGNALS:
            raise ConfigError(
                f"the mixer needs {sorted(missing)}, which this step does not compute; "
                f"it computes {sorted(SIGNALS)}"
            )
        self.config, self.world, self.model, self.mixer = config, world, model, mixer
        self.lap, self.half = lap, config.train.half
        loss, how = unwrapped(model), config.sketch
        assert isinstance(loss, PerSampleLoss)
        self.vocab_size = loss.vocab_size
        self.reference: Reference | None = None
        if "reference_loss" in mixer.needs:
            self.reference = open_reference(config, mixer, self.vocab_size, world.device)
        self.sketcher: Sketcher | None = None
        if "sketch" in mixer.needs:
            if how.mode == "head":
                loss.require_plain_head()
            self.sketcher = Sketcher(
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

    def autocast(self) -> torch.autocast:
        """Inside it, forwards run in train.dtype; weights stay float32."""
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.half)

    def losses(self, micro: MicroBatch, *, per_token: bool = False) -> Tensor:
        """Loss of each sample of a micro-batch, or of each of its tokens.

        Dropout is a function of (seed, step, place).
        """
        place = (micro.step, self.world.rank, micro.number)
        torch.manual_seed(key64(self.config.seed, "dropout", *place) >> 1)
        options = {"per_token": True} if per_token else {}
        with self.autocast():
            loss: Tensor = self.model(micro.token_bT, **options)
        return loss

    def collect(self, taps: ExitStack, micro: MicroBatch, *, keep: bool) -> MicroBatchResult:
        """Forward and sketch a micro-batch; `taps` hold as long as its gradient may be asked for.

        Without `keep`, nothing is held that a gradient could be made of.
        """
        sketcher, token_bT = self.sketcher, micro.token_bT
        if sketcher is not None:
            if not keep:
                taps.enter_context(self.world.accumulating(self.model, last=False))
            with self.autocast():  # what is kept of every layer is of the precision it ran in
                taps.enter_context(sketcher.record(token_bT, micro.step))
        reference_loss_b = excess_loss_b = None
        with torch.set_grad_enabled(keep or sketcher is not None):
            loss_b = self.losses(micro, per_token=self.reference is not None)
            if self.reference is not None:
                with self.autocast():
                    reference_loss_b, excess_loss_b = self.reference.compare(token_bT, loss_b)
                loss_b = mean_over_predictions(loss_b)
        self.lap("forward")
        if sketcher is None:
            result = MicroBatchResult(loss_b, RetainedGraph(loss_b))
        else:
            result = sketcher.sketch(loss_b, keep=keep)
            self.lap("sketch")  # the backward to the layers' outputs, with the sketches
        result.reference_loss_B, result.excess_loss_B = reference_loss_b, excess_loss_b
        return result if keep else result.without_gradient()

    def signals(self, results: Sequence[MicroBatchResult], given: StepInput) -> Signals:
        """What every rank computed, in the order of the world batch."""
        batch, device, needs = given.batch, self.world.device, self.mixer.needs
        source_B = batch.source_B.to(device, non_blocking=True) if "source" in needs else None
        stratum_B = torch.from_numpy(batch.ids.stratum_B) if self.sketcher else None
        return gather_signals(
            [joined(results)] if results else [],
            [given.rows] if results else [],
            losses="loss" in needs,
            step=given.step,
            num_samples=len(batch.source_B),
            device=device,
            source_B=source_B,
            stratum_B=None if stratum_B is None else stratum_B.to(device, non_blocking=True),
            projection=self._projection(given.step),
            lr=given.lr,
            vocab_size=self.vocab_size,
        )

    def own_signals(self, result: MicroBatchResult, step: int) -> Signals:
        """What is known of one micro-batch before the others are looked at."""
        num, epoch = len(result.loss_B), self._projection(step)
        alone = WorldRows(num, self.world.device, sizes=[num])
        return gather_signals([result], [alone], losses=False, step=step, projection=epoch)

    def _projection(self, step: int) -> int:
        return self.sketcher.projection.epoch(step) if self.sketcher else 0
