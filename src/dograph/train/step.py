"""One training step, from batch to update: the file to read first.

Algorithm 1 of the paper, with the batch of a step for its data (`TrainStep.backward` is the body):

    R, R' g_i                 per-sample gradients, projected     SignalCollector.collect
    D_1 .. D_m, their means   the batch clustered into domains    Mixer.weigh: c_i = w_j / |D_j|
    w on the simplex          argmin of L_opt                     for sample i in domain j
    sum_i c_i g_i             the weighted gradient, in full      MicroBatchResult.backward
    theta                     clipped, AdamW                      TrainStep.update

Other mixers need less and weigh otherwise. Weights have one meaning: weight_B >= 0 sums to 1 over
the *world batch* (every rank and micro-batch of the step), the loss is sum(weight * loss), and
nothing is divided by the number of micro-batches or ranks again. Nothing here waits for the device.
Where a step has several micro-batches, `train/accumulation.py` says what is done in which order.

Shapes: B samples of the world batch, b those of a micro-batch, T tokens, K sketch.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dograph.config import OptimConfig, RunConfig, require_compatible
from dograph.errors import ConfigError
from dograph.mixers.base import SIGNALS, Mixer, Report
from dograph.models.loss import PerSampleLoss, mean_over_predictions
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
from dograph.train.accumulation import strategy_of
from dograph.train.distributed import World
from dograph.train.reference import Reference, open_reference
from dograph.types import Batch, Signals

Mark = float | torch.cuda.Event
Lap = tuple[str, Mark, Mark]
Weighted = tuple[Tensor, Tensor, Signals]  # weight_B, loss_B, and what the mixer was given


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


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, still on the device."""

    step: int
    loss_B: Tensor
    weight_B: Tensor
    source_B: Tensor
    grad_norm: Tensor
    signals: Signals  # what the mixer was given
    halted: Tensor  # 1.0 from the first non-finite loss or gradient on: no update is made
    lr: float
    report: Report  # what the mixer says of it
    laps: list[Lap]


class TrainStep:
    """Makes one optimizer step at a time."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        mixer: Mixer,
    ) -> None:
        self.config, self.world, self.model = config, world, model
        self.optimizer, self.mixer = optimizer, mixer
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.sizes = world.sizes(config.train.batch_size) if world.size > 1 else None
        self.strategy = strategy_of(config, mixer.needs, world.size)
        require_compatible(config, mixer, world.size)
        self.watch = Stopwatch(world.device)
        self.collector = SignalCollector(config, world, model, mixer, self.watch.lap)
        self.halted = torch.zeros((), device=world.device)

    def __call__(self, batch: Batch, step: int) -> StepRecord:
        self.watch.start()
        given = self.start(batch, step)
        weight_B, loss_B, signals = self.backward(given)
        grad_norm = clip_gradients(self.parameters, self.config.optim.clip_norm)
        finite = torch.isfinite(loss_B).all() & torch.isfinite(grad_norm)
        self.halted = torch.maximum(self.halted, (~finite).float())
        self.update(given.lr)
        self.watch.lap("update")
        return StepRecord(
            step=step,
            loss_B=loss_B,
            weight_B=weight_B,
            source_B=batch.source_B,
            grad_norm=grad_norm,
            halted=self.halted,
            signals=signals,
            lr=given.lr,
            report=self.mixer.report(),
            laps=self.watch.laps,
        )

    def start(self, batch: Batch, step: int) -> StepInput:
        """The batch on the device, cut into micro-batches."""
        token_BT = batch.token_BT.to(self.world.device, non_blocking=True)
        rows = WorldRows(len(token_BT), self.world.device, self.sizes)
        at_once = self.config.train.micro_batch_size
        parts = rows.split(token_BT, at_once, alike=self.world.shards)
        last = len(parts) - 1
        micros = [MicroBatch(part_bT, step, i, i == last) for i, part_bT in enumerate(parts)]
        lr = learning_rate(step, self.config.optim, self.config.train.steps)
        return StepInput(step, lr, batch, rows, micros)

    def backward(self, given: StepInput) -> Weighted:
        """Fill `.grad` with the weighted gradient: Algorithm 1 up to the update."""
        if self.strategy == "lagged":
            return self.backward_lagged(given)
        collector, rows, keeps = self.collector, given.rows, self.strategy == "keep"
        micros = [] if self.strategy == "ahead" else given.micro_batches
        with ExitStack() as taps:
            results = [collector.collect(taps, micro, keep=keeps) for micro in micros]  # R' g_i
            signals = collector.signals(results, given)
            weight_B = self.mixer.weigh(signals)  # domains, their weights, and so c_i
            weight_B = weight_B.to(self.world.device, non_blocking=True)
            if results:
                self.watch.lap("weigh")
            if keeps:  # sum_i c_i g_i
                weights = rows.local(weight_B).split([len(result.loss_B) for result in results])
                for result, weight_b in zip(results, weights, strict=True):
                    result.backward(weight_b)
                self.average_gradients()
                self.watch.lap("deferred" if collector.sketcher else "backward")
        if not keeps:
            return weight_B, self.sweep(given, weight_B), signals
        losses = torch.cat([result.loss_B.detach() for result in results])
        return weight_B, rows.gather(losses), signals

    def backward_lagged(self, given: StepInput) -> Weighted:
        """The same where each micro-batch is weighed by what the mixer knew before this step."""
        num, results, weights = len(given.batch.source_B), [], []
        for micro in given.micro_batches:
            with ExitStack() as taps:
                taps.enter_context(self.world.accumulating(self.model, last=micro.last))
                result = self.collector.collect(taps, micro, keep=True)
                signals = self.collector.own_signals(result, given.step)
                weights.append(self.mixer.weigh_lagged(signals, num))
                self.watch.lap("weigh")
                result.backward(weights[-1] * self.world.size)
                self.watch.lap("deferred")
            results.append(result.without_gradient())
        self.average_gradients()
        weight_B = given.rows.gather(torch.cat(weights))
        signals = self.collector.signals(results, given)
        self.mixer.observe(signals, weight_B)
        self.watch.lap("weigh")
        return weight_B, given.rows.gather(torch.cat([r.loss_B for r in results])), signals

    def sweep(self, given: StepInput, weight_B: Tensor) -> Tensor:
        """The plain weighted backward, micro-batch by micro-batch; returns all losses."""
        losses, done = [], 0
        for micro in given.micro_batches:
            with self.world.accumulating(self.model, last=micro.last):
                loss_b = self.collector.losses(micro)
                self.watch.lap("forward")
                weight_b = given.rows.local(weight_B)[done : done + len(loss_b)]
                (weight_b * loss_b).sum().backward()
                self.watch.lap("backward")
            losses.append(loss_b.detach())
            done += len(loss_b)
        return given.rows.gather(torch.cat(losses))

    def average_gradients(self) -> None:
        """Over the ranks, where a mode of the sketch fills `.grad` itself."""
        if self.collector.sketcher is not None:
            self.collector.sketcher.average_gradients()

    def update(self, lr: float) -> None:
        """AdamW, which skips the update on the device where `halted` is set."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.grad_scale, self.optimizer.found_inf = None, self.halted  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()


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


def learning_rate(step: int, config: OptimConfig, total_steps: int) -> float:
    """Linear from lr_start to lr in the warm-up, then half a cosine to lr_end at the last step."""
    if step < config.warmup_steps:
        return config.lr_start + (config.lr - config.lr_start) * step / config.warmup_steps
    decay_steps = max(total_steps - 1 - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / decay_steps, 1.0)
    return config.lr_end + (config.lr - config.lr_end) * (1 + math.cos(math.pi * progress)) / 2


def clip_gradients(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale the gradient down to a norm of `most`; return the norm it had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class Stopwatch:
    """Where a step's time goes, without waiting: clock readings, or events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.start()

    def start(self) -> None:
        self.laps: list[Lap] = []
        self.last = self.mark()

    def lap(self, name: str) -> None:
        """The time since the last mark was spent on `name`."""
        now = self.mark()
        self.laps.append((name, self.last, now))
        self.last = now

    def mark(self) -> Mark:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Until the device has done all that it was given; for benchmarks, never in a step."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def milliseconds(laps: list[Lap]) -> dict[str, float]:
    """Time of each part; on a GPU, to be asked once the step is over."""
    total: dict[str, float] = {}
    for name, start, end in laps:
        if isinstance(start, float):
            assert isinstance(end, float)
            spent = 1e3 * (end - start)
        else:
            assert not isinstance(end, float)
            spent = start.elapsed_time(end)
        key = f"time/{name}_ms"
        total[key] = total.get(key, 0.0) + spent
    return total
