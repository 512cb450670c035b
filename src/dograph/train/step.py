"""One training step, from batch to update: the file to read first.

Algorithm 1 of the paper, on the batch of one step (`TrainStep.backward` is the body):

    R, R' g_i                 per-sample gradients, projected     TrainStep.collect
    D_1 .. D_m, their means   the batch clustered into domains    Mixer.weigh: c_i = w_j / |D_j|
    w on the simplex          argmin of L_opt                     for sample i in domain j
    sum_i c_i g_i             the weighted gradient, in full      MicroBatchResult.backward
    theta                     clipped, AdamW                      TrainStep.__call__

Other mixers need less. For all of them weight_B >= 0 sums to 1 over the *world batch* (every rank
and micro-batch of the step) and the loss is sum(weight * loss), with no further division by the
number of micro-batches or ranks. After the first step nothing here waits for the device.
`strategy_of` chooses the order of forward, weighing and backward of several micro-batches.

Shapes: B samples of the world batch, b those of a micro-batch, T tokens, K sketch.
"""

import math
import time
from collections.abc import Sequence, Set
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dograph.choices import Mode
from dograph.config import OptimConfig, RunConfig, SketchConfig
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer, Report
from dograph.mixers.registry import require_compatible
from dograph.models.build import load_model
from dograph.models.loss import PerSampleLoss, compile_regions, mean_over_predictions
from dograph.rng import key64
from dograph.sketch.gradients import MicroBatchResult, WorldRows, gather_signals, unwrapped
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher
from dograph.train.capture import StepGraphs
from dograph.train.distributed import World
from dograph.train.watch import SampleWatch, WatchedStep
from dograph.types import Batch, BatchSizes, Signals

Lap = tuple[str, Any, Any]  # name; start and end: seconds, or CUDA events on a GPU
Weighted = tuple[Tensor, Tensor, Signals]  # weight_B, loss_B, the mixer's signals
Strategy = Literal["keep", "ahead", "two_sweeps", "lagged"]
OF_A_FORWARD = frozenset({"loss", "reference_loss", "sketch"})  # signals that take a forward pass
REFERENCES = "a run directory, a model folder or a Hugging Face name"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that this rank computes at once."""

    token_bT: Tensor
    step: int
    number: int  # within the step, on this rank
    last: bool


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The results of one step, still on the device."""

    step: int
    loss_B: Tensor
    weight_B: Tensor
    source_B: Tensor
    grad_norm: Tensor
    signals: Signals  # the input of the mixer
    halted: Tensor  # 1.0 from the first non-finite loss or gradient on: no update is made
    lr: float
    report: Report  # the mixer's metrics
    laps: list[Lap]
    noise: Report = field(default_factory=dict)  # the noise scale, if there are sketches
    watched: WatchedStep | None = None  # with train.on_spike


class TrainStep:
    """Makes one optimizer step at a time; computes only the signals in `mixer.needs`."""

    def __init__(
        self, config: RunConfig, world: World, model: nn.Module, optimizer: Optimizer, mixer: Mixer
    ) -> None:
        require_compatible(config, mixer, world.size)
        self.config, self.world, self.model = config, world, model
        self.optimizer, self.mixer, self.half = optimizer, mixer, config.train.half
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.plans, self.batches = config.batch_plans(), config.batches
        self.strategy: Strategy  # of the present step
        self.watch = Stopwatch(world.device)
        self.halted = torch.zeros((), device=world.device)
        loss, sketch = unwrapped(model), config.sketch
        assert isinstance(loss, PerSampleLoss)
        self.loss = loss
        self.reference: PerSampleLoss | None = None
        if "reference_loss" in mixer.needs:
            self.reference = open_reference(config, mixer, loss.vocab_size, world)
        self.sketcher: Sketcher | None = None
        self.samples_watch: SampleWatch | None = None
        if (on_spike := config.train.on_spike) is not None:
            self.samples_watch = SampleWatch(skips=on_spike == "skip")
        if "sketch" in mixer.needs or on_spike is not None:
            if sketch.mode == "head":
                loss.require_plain_head()
            kind, refresh = sketch.projection, mixer.refresh(sketch.refresh)
            how = Projection(dim=sketch.dim, kind=kind, seed=config.seed, refresh=refresh)
            self.sketcher = open_sketcher(model, loss.head, sketch, sketch.mode, how)
        self.graphs: StepGraphs | None = None
        alone = world.device.type == "cuda" and world.size == 1 and not world.shards
        if config.train.cuda_graphs and alone and not config.train.activation_checkpointing:
            self.graphs = StepGraphs(self.parameters)

    def __call__(self, batch: Batch, step: int) -> StepRecord:
        """A step; where it is captured, on the stream of its graphs."""
        if self.graphs is None:
            return self.made(batch, step)
        outer, own = torch.cuda.current_stream(), self.graphs.stream
        own.wait_stream(outer)
        with torch.cuda.stream(own):
            record = self.made(batch, step)
        outer.wait_stream(own)
        return record

    def made(self, batch: Batch, step: int) -> StepRecord:
        """Backward, clip, AdamW, which skips the update of a spike, or once `halted` is set."""
        self.watch.start()
        weight_B, loss_B, signals = self.backward(batch, step)
        # Once, since it waits for the device; a sum of NaN passes, and `halted` stops the run.
        if step == 0 and abs(total := float(weight_B.sum()) - 1) > 1e-3:
            raise ConfigError(
                f"the weights of {type(self.mixer).__name__} sum to {1 + total:.4g} in step 1, not "
                "to 1; dograph.testing.check_mixer checks a mixer of your own"
            )
        norm = clip_gradients(self.parameters, self.config.optim.clip_norm)
        finite = torch.isfinite(loss_B).all() & torch.isfinite(norm)
        self.halted = torch.maximum(self.halted, (~finite).float())
        watched, skip = None, self.halted
        if self.samples_watch is not None:
            watched = self.samples_watch.observe(signals, loss_B, norm)
            skip = torch.maximum(skip, watched.skip)
        lr, (beta1, beta2) = rate_of(step, self.config, self.plans), self.config.optim.betas
        beta2 **= self.batches.size(step) / self.batches.reference  # per token as ever
        for group in self.optimizer.param_groups:
            group.update(lr=lr, betas=(beta1, beta2))
        self.optimizer.grad_scale, self.optimizer.found_inf = None, skip  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.watch.lap("update")
        report, laps = self.mixer.report(), self.watch.laps
        known = (step, loss_B, weight_B, batch.source_B, norm, signals, self.halted, lr)
        return StepRecord(*known, report, laps, watched=watched)

    def backward(self, batch: Batch, step: int) -> Weighted:
        """Fill `.grad` with the weighted gradient: Algorithm 1 without the update."""
        token_bT = batch.token_BT.to(self.world.device, non_blocking=True)
        size, world = self.batches.size(step), self.world
        self.strategy = strategy_of(self.config, self.mixer.needs_before_weights, size, world.size)
        rows = WorldRows(len(token_bT), world.device, world.sizes(size) if world.size > 1 else None)
        parts = rows.split(token_bT, self.config.train.micro_batch_size, alike=self.world.shards)
        last = len(parts) - 1
        micros = [MicroBatch(part_bT, step, i, i == last) for i, part_bT in enumerate(parts)]
        if self.strategy in ("ahead", "lagged"):
            return self.backward_each(batch, rows, micros)
        keeps, losses = self.strategy == "keep", []
        with ExitStack() as taps:
            results = [self.collect(taps, micro, keep=keeps) for micro in micros]  # R' g_i
            signals = self.signals(results, batch, rows, step)
            weight_B = self.mixer.weigh(signals)  # domains, their weights, and so c_i
            weight_B = weight_B.to(self.world.device, non_blocking=True)
            weights = rows.local(weight_B).split([len(part_bT) for part_bT in parts])
            self.watch.lap("weigh")
            if keeps:
                for result, weight_b in zip(results, weights, strict=True):  # sum_i c_i g_i
                    result.backward(weight_b)
                    losses.append(result.loss_B.detach())
                if self.sketcher is not None:  # modes that fill `.grad` bypass DDP's reduction
                    self.sketcher.average_gradients()
                self.watch.lap("deferred" if self.sketcher else "backward")
        if not keeps:  # a plain weighted backward gives the same gradient
            for micro, weight_b in zip(micros, weights, strict=True):
                with self.world.accumulating(self.model, last=micro.last), ExitStack() as taps:
                    result = self.collect(taps, micro, keep=True, weighs=True)
                    result.backward(weight_b)
                    self.watch.lap("backward")
                losses.append(result.loss_B.detach())
        return weight_B, rows.gather(torch.cat(losses)), signals

    def backward_each(self, batch: Batch, rows: WorldRows, micros: list[MicroBatch]) -> Weighted:
        """The same, but weights are known before a micro-batch is sketched.

        Either they need no forward pass (ahead), or they come from earlier steps (lagged).
        """
        step, results, weights, ahead_b = micros[0].step, [], [], None
        if self.strategy == "ahead":
            weight_B = self.mixer.weigh(self.signals([], batch, rows, step))
            weight_B = weight_B.to(self.world.device, non_blocking=True)
            ahead_b = weight_B[sum(rows.sizes[: self.world.rank]) :]
        for micro in micros:
            with ExitStack() as taps:
                taps.enter_context(self.world.accumulating(self.model, last=micro.last))
                result = self.collect(taps, micro, keep=True)
                num = len(result.loss_B)
                if ahead_b is None:
                    alone = WorldRows(num, self.world.device, sizes=[num])
                    known = {"step": step, "projection": self.projection_epoch(step)}
                    own = gather_signals([result], [alone], losses=False, **known)
                    weights.append(self.mixer.weigh_lagged(own, len(batch.source_B)))
                    self.watch.lap("weigh")
                else:
                    weights.append(ahead_b[:num])
                    ahead_b = ahead_b[num:]
                result.backward(weights[-1] * self.world.size)
                self.watch.lap("deferred" if self.sketcher else "backward")
            results.append(result.without_gradient())
        if self.sketcher is not None:
            self.sketcher.average_gradients()
        signals = self.signals(results, batch, rows, step)
        if self.strategy == "lagged":
            weight_B = rows.gather(torch.cat(weights))
            self.mixer.observe(signals, weight_B)
            self.watch.lap("weigh")
        return weight_B, rows.gather(torch.cat([r.loss_B for r in results])), signals

    def autocast(self) -> torch.autocast:
        """Inside it forwards run in train.dtype; weights stay float32."""
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.half)

    def collect(
        self, taps: ExitStack, micro: MicroBatch, *, keep: bool, weighs: bool = False
    ) -> MicroBatchResult:
        """Forward and sketch; `taps` stay open until the backward, `keep` activations for it.

        `weighs`: the weights are known, so no sketch is needed. Dropout is a function of (seed,
        step, place).
        """
        sketcher = None if weighs else self.sketcher
        place = (micro.step, self.world.rank, micro.number)
        torch.manual_seed(key64(self.config.seed, "dropout", *place) >> 1)
        if sketcher is not None:
            sketcher.prepare(micro.step)
        compute = partial(self.compute, keep=keep, weighs=weighs)
        several = micro.number > 0 or not micro.last
        if self.graphs is None or (several and self.strategy == "keep"):  # one graph holds one
            return compute(taps, micro.token_bT)
        result = self.graphs.run(taps, micro.token_bT, (keep, weighs), compute)
        self.watch.lap("forward" if sketcher is None else "sketch")  # of a replay: both together
        return result

    def compute(
        self, taps: ExitStack, token_bT: Tensor, *, keep: bool, weighs: bool
    ) -> MicroBatchResult:
        """`collect` without what a CUDA graph cannot repeat."""
        sketcher = None if weighs else self.sketcher
        if sketcher is not None:
            if not keep:
                taps.enter_context(self.world.accumulating(self.model, last=False))
            with self.autocast():  # slots take the dtype that the layers run in
                taps.enter_context(sketcher.record(token_bT, sketcher.step))
        reference = None if weighs else self.reference
        reference_loss_b = excess_loss_b = None
        with torch.set_grad_enabled(keep or sketcher is not None):
            with self.autocast():
                loss_b: Tensor = self.model(token_bT, per_token=reference is not None)
            if reference is not None:
                with torch.no_grad(), self.autocast():
                    reference_bT = reference(token_bT, per_token=True)
                    # max(l_t - ref_t, 0), then the mean: in a mean of both, tokens would cancel.
                    excess_bT = (loss_b.detach() - reference_bT).clamp_min(0)
                    reference_loss_b = mean_over_predictions(reference_bT)
                    excess_loss_b = mean_over_predictions(excess_bT)
                loss_b = mean_over_predictions(loss_b)
        self.watch.lap("forward")
        result = MicroBatchResult(loss_b)
        if sketcher is not None:
            result = sketcher.sketch(loss_b, keep=keep)
            self.watch.lap("sketch")  # the backward to the layers' outputs, with the sketches
        result.reference_loss_B, result.excess_loss_B = reference_loss_b, excess_loss_b
        return result if keep else result.without_gradient()

    def signals(
        self, results: Sequence[MicroBatchResult], batch: Batch, rows: WorldRows, step: int
    ) -> Signals:
        """The mixer's input from every rank, in the order of the world batch."""
        device, needs = self.world.device, self.mixer.needs
        source_B = batch.source_B.to(device, non_blocking=True) if "source" in needs else None
        stratum_B = torch.from_numpy(batch.ids.stratum_B) if self.sketcher else None
        return gather_signals(
            results,
            [rows],
            losses="loss" in needs,
            step=step,
            num_samples=len(batch.source_B),
            device=device,
            source_B=source_B,
            stratum_B=None if stratum_B is None else stratum_B.to(device, non_blocking=True),
            projection=self.projection_epoch(step),
            lr=rate_of(step, self.config, self.plans),
            counted=tuple(self.batches.counted(made) for made in (step, step + 1)),
            vocab_size=self.loss.vocab_size,
        )

    def projection_epoch(self, step: int) -> int:
        return self.sketcher.projection.epoch(step) if self.sketcher else 0


def strategy_of(config: RunConfig, needs: Set[str], size: int, num_ranks: int = 1) -> Strategy:
    """In which order a step of `size` samples runs forward, weighing (all at once) and backward.

    strategy    when                                   order
    keep        one micro-batch, or accumulation=keep  forward all, weigh, backward from the held
                                                       activations
    ahead       the weights need no forward pass       weigh, then forward and backward
    two_sweeps  several micro-batches                  an extra forward that holds nothing, then
                                                       as ahead
    lagged      several, and accumulation=lagged       for each: forward, weigh with what was known
                                                       before the step, backward

    The same on every rank; train/forecast.py counts a step's FLOPs by it.
    """
    if not needs & OF_A_FORWARD:
        return "ahead"
    most = -(-size // num_ranks)  # samples of the first rank
    if most <= (config.train.micro_batch_size or most):
        return "keep"
    return config.sketch.accumulation if "sketch" in needs else "two_sweeps"


def open_reference(config: RunConfig, mixer: Mixer, vocab_size: int, world: World) -> PerSampleLoss:
    """The model that `mixer` compares losses with: frozen, in eval mode, same vocabulary."""
    if (name := mixer.reference) is None:
        raise ConfigError(
            f"mixer {config.mixer.name} needs reference_loss, but names no reference model; set "
            f"mixer.reference to {REFERENCES}"
        )
    given, folder = f'mixer.reference="{name}"', Path(name)
    is_run = (folder / "config.yaml").is_file()
    if is_run and not (folder / "model").exists():
        raise ConfigError(
            f"{given} must be {REFERENCES}: this run has not ended, so it has no model yet; "
            f"dograph train --resume {folder}"
        )
    place = str(folder / "model") if is_run else name
    try:
        options = {"vocab_size": 0, "seed": config.seed, "seq_len": config.data.seq_len}
        model = load_model(place, pretrained=True, **options).to(world.device)
    except ConfigError as error:
        raise ConfigError(f"{given} must be {REFERENCES}: {error}") from error
    if model.vocab_size != vocab_size:
        raise ConfigError(
            f"{given} has a vocabulary of {model.vocab_size} tokens, the model that is trained "
            f"{vocab_size}; their losses can be compared only with one tokenizer: take a reference "
            "that was trained on this corpus"
        )
    if config.train.compile:
        compile_regions(model)
    return model.eval().requires_grad_(False)


def open_sketcher(
    model: nn.Module, head: nn.Module, config: SketchConfig, mode: Mode, projection: Projection
) -> Sketcher:
    """A sketcher for the layers that the configuration names."""
    how = asdict(projection)
    how |= {"projection": how.pop("kind"), "exclude": tuple(config.exclude)}
    return Sketcher(model, mode=mode, top_blocks=config.top_blocks, head=head, **how)


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices; fused, so that `found_inf` can skip an update."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: float, config: OptimConfig, total_steps: float) -> float:
    """Linear from lr_start to lr in the warm-up, then half a cosine to lr_end at the last step."""
    if step < config.warmup_steps:
        return config.lr_start + (config.lr - config.lr_start) * step / config.warmup_steps
    decay_steps = max(total_steps - 1 - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / decay_steps, 1.0)
    return config.lr_end + (config.lr - config.lr_end) * (1 + math.cos(math.pi * progress)) / 2


def rate_of(step: int, config: RunConfig, plans: Sequence[tuple[int, BatchSizes]] = ()) -> float:
    """The learning rate of a run's step, over the length that the run had at the time.

    Warm-up and decay count steps of the reference size, that is, tokens. A batch of B samples is
    less noisy than one of the reference size: its rate is sqrt(B / reference) times as high.
    """
    batches = next(own for until, own in plans or config.batch_plans() if step < until)
    total = batches.counted(batches.steps - 1) + 1
    rate = learning_rate(batches.counted(step), config.optim, total)
    return rate * math.sqrt(batches.size(step) / batches.reference)


def rate_change(old: RunConfig, new: RunConfig, done: int) -> tuple[str, bool]:
    """What other settings do to the learning rate after `done` steps; whether it jumps up."""
    before, after = rate_of(max(done - 1, 0), old), rate_of(done, new)
    text = (
        f"the learning rate follows the schedule of {new.train.steps} steps from here on: "
        f"{before:.3g} in step {done}, {after:.3g} in step {done + 1}"
    )
    if after <= 1.05 * max(before, rate_of(done, old)):
        return text, False
    fork = f"dograph train --fork {old.run} run=NEW train.steps={new.train.steps}"
    low = f"To go on at a low rate instead: {fork} optim.lr={before:.3g} optim.lr_end=0"
    return f"{text}. It jumps up, so the loss may rise for a while. {low}", True


def clip_gradients(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale the gradient down to a norm of `most`; return the norm it had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class Stopwatch:
    """Times the parts of a step without waiting: clock readings, or CUDA events."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.start()

    def start(self) -> None:
        self.laps: list[Lap] = []
        self.last = self.mark()

    def lap(self, name: str) -> None:
        """The time since the last mark was spent on `name`."""
        if self.on_gpu and torch.cuda.is_current_stream_capturing():
            return  # nothing runs
        now = self.mark()
        self.laps.append((name, self.last, now))
        self.last = now

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Wait until the device is idle; for benchmarks, never in a step."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def milliseconds(laps: list[Lap]) -> dict[str, float]:
    """Time of each part of a step; on a GPU, call it after the step has finished."""
    total: dict[str, float] = {}
    for name, start, end in laps:
        spent = 1e3 * (end - start) if isinstance(start, float) else start.elapsed_time(end)
        total[f"time/{name}_ms"] = total.get(f"time/{name}_ms", 0.0) + spent
    return total
