"""One training step, from batch to update: the file to read first.

Algorithm 1 of the paper, with the batch of a step for its data (`see_weigh_learn` is the body):

    R, R' g_i                 per-sample gradients, projected     Eyes.see: a sketch each
    D_1 .. D_m, their means   the batch clustered into domains    Mixer.weigh: c_i = w_j / |D_j|
    w on the simplex          argmin of L_opt                     for sample i in domain j
    sum_i c_i g_i             the weighted gradient, in full      Piece.backward
    theta                     clipped, AdamW                      update

Other mixers see less and weigh otherwise. Weights have one meaning: weight_B >= 0 sums to 1 over
the *world batch* (every rank and micro-batch of the step), the loss is sum(weight * loss), and
nothing is divided by the number of micro-batches or ranks again. Nothing here waits for the device.

Weights need the whole batch, but memory may not hold it; `way_of` says which way a run goes:

    way         where                                  what is done
    keep        one micro-batch, or accumulation=keep  see all, weigh, learn from what was kept
    blind       the mixer looks at no sample           weigh, then forward and backward
    two_sweeps  several micro-batches                  see all and keep nothing, then as blind
    lagged      several, and accumulation=lagged       one by one: see, weigh by what was known
                                                       before the step, learn

Shapes: B samples of the world batch, b those of a micro-batch, T tokens.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dograph.config import RunConfig
from dograph.mixers.base import Mixer, Report
from dograph.sketch.ranks import average_gradients
from dograph.train.accumulation import require_lagged, way_of
from dograph.train.distributed import World, clip_gradients
from dograph.train.optim import learning_rate
from dograph.train.signals import Eyes, Given, MicroBatch, Piece
from dograph.train.stopwatch import Lap, Stopwatch
from dograph.types import Batch, Signals


@dataclass(frozen=True, slots=True)
class Learned:
    """What a backward leaves beside `.grad`."""

    weight_B: Tensor
    loss_B: Tensor
    signals: Signals  # what the mixer saw


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, still on the device."""

    step: int
    loss_B: Tensor
    weight_B: Tensor
    source_B: Tensor
    grad_norm: Tensor
    signals: Signals  # what the mixer saw
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
        self.way = way_of(config, mixer.needs, world.size)
        require_lagged(config, mixer)
        self.watch = Stopwatch(world.device)
        self.eyes = Eyes(config, world, model, mixer, self.watch)
        self.halted = torch.zeros((), device=world.device)

    def __call__(self, batch: Batch, step: int) -> StepRecord:
        self.watch.start()
        given = self.given(batch, step)
        learned = self.backward(given)
        grad_norm = clip_gradients(self.parameters, self.config.optim.clip_norm)
        finite = torch.isfinite(learned.loss_B).all() & torch.isfinite(grad_norm)
        self.halted = torch.maximum(self.halted, (~finite).float())
        self.update(given.lr)
        self.watch.lap("update")
        return StepRecord(
            step=step,
            loss_B=learned.loss_B,
            weight_B=learned.weight_B,
            source_B=batch.source_B,
            grad_norm=grad_norm,
            halted=self.halted,
            signals=learned.signals,
            lr=given.lr,
            report=self.mixer.report(),
            laps=self.watch.laps,
        )

    def backward(self, given: Given) -> Learned:
        """Fill `.grad` with the weighted gradient, in the way that this run takes."""
        match self.way:
            case "keep":
                return self.see_weigh_learn(given)
            case "blind":
                return self.weigh_blindly(given)
            case "two_sweeps":
                return self.sweep_twice(given)
            case "lagged":
                return self.learn_as_they_come(given)

    def see_weigh_learn(self, given: Given) -> Learned:
        """Way keep, the ordinary one: Algorithm 1 up to the update."""
        with ExitStack() as taps:
            pieces = [self.eyes.see(taps, micro, keep=True) for micro in given.micros]  # R' g_i
            signals = self.eyes.signals(pieces, given)
            weight_B = self.weigh(signals)  # domains, their weights, and so c_i
            self.watch.lap("weigh")
            self.learn(pieces, weight_B)  # sum_i c_i g_i
            self.watch.lap("deferred" if self.eyes.sketches else "backward")
        return Learned(weight_B, self.eyes.gathered_losses(pieces, given.num_samples), signals)

    def weigh_blindly(self, given: Given) -> Learned:
        """Way blind: equal weights, or any that need no look at the samples."""
        signals = self.eyes.signals([], given)
        weight_B = self.weigh(signals)
        return Learned(weight_B, self.sweep(given, weight_B), signals)

    def sweep_twice(self, given: Given) -> Learned:
        """Way two_sweeps: the first one looks and keeps nothing, the second one learns."""
        with ExitStack() as taps:
            pieces = [self.eyes.see(taps, micro, keep=False) for micro in given.micros]
            signals = self.eyes.signals(pieces, given)
            weight_B = self.weigh(signals)
            self.watch.lap("weigh")
        return Learned(weight_B, self.sweep(given, weight_B), signals)

    def learn_as_they_come(self, given: Given) -> Learned:
        """Way lagged: every micro-batch is weighed by what the mixer knew before this step."""
        pieces, weights = [], []
        for micro in given.micros:
            with ExitStack() as taps:
                taps.enter_context(self.world.accumulating(self.model, last=micro.last))
                piece = self.eyes.see(taps, micro, keep=True)
                early = self.eyes.early_signals(piece, given.step)
                weights.append(self.mixer.weigh_lagged(early, given.num_samples))
                self.watch.lap("weigh")
                piece.backward(weights[-1] * self.world.size)
                self.watch.lap("deferred")
            pieces.append(piece.without_gradient())
        self.average()
        weight_B = self.world.gather(torch.cat(weights), given.num_samples)
        signals = self.eyes.signals(pieces, given)
        self.mixer.observe(signals, weight_B)
        self.watch.lap("weigh")
        return Learned(weight_B, self.eyes.gathered_losses(pieces, given.num_samples), signals)

    def given(self, batch: Batch, step: int) -> Given:
        """The batch on the device, cut into micro-batches."""
        token_BT = batch.token_BT.to(self.world.device, non_blocking=True)
        at_once = self.config.train.micro_batch_size
        parts = self.world.split(token_BT, at_once, len(batch.source_B))
        lr = learning_rate(step, self.config.optim, self.config.train.steps)
        last = len(parts) - 1
        micros = [MicroBatch(part_bT, step, i, i == last) for i, part_bT in enumerate(parts)]
        return Given(step, lr, batch, micros)

    def weigh(self, signals: Signals) -> Tensor:
        return self.mixer.weigh(signals).to(self.world.device, non_blocking=True)

    def learn(self, pieces: list[Piece], weight_B: Tensor) -> None:
        """The weighted gradient, from what was kept of every micro-batch."""
        weight_b = self.world.local(weight_B).split([len(piece.loss_b) for piece in pieces])
        for piece, weight in zip(pieces, weight_b, strict=True):
            piece.backward(weight)
        self.average()

    def sweep(self, given: Given, weight_B: Tensor) -> Tensor:
        """The plain weighted backward, micro-batch by micro-batch; returns all losses."""
        losses, done = [], 0
        for micro in given.micros:
            with self.world.accumulating(self.model, last=micro.last):
                loss_b = self.eyes.losses(micro)
                self.watch.lap("forward")
                weight_b = self.world.local(weight_B)[done : done + len(loss_b)]
                (weight_b * loss_b).sum().backward()
                self.watch.lap("backward")
            losses.append(loss_b.detach())
            done += len(loss_b)
        return self.world.gather(torch.cat(losses), given.num_samples)

    def average(self) -> None:
        """Where a mode fills `.grad` itself, no wrapper has averaged it over the ranks."""
        sketcher = self.eyes.sketcher
        if sketcher is not None and sketcher.reduces:
            average_gradients(sketcher.parameters.values())

    def update(self, lr: float) -> None:
        """AdamW, which skips the update on the device where `halted` is set."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.grad_scale, self.optimizer.found_inf = None, self.halted  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()
