"""One training step, from batch to update: the file to read first.

    draw a world batch  ->  loss_B, sketch_BK  ->  weight_B = mixer.weigh(signals)
                        ->  gradient of sum_i weight_i loss_i  ->  clip  ->  AdamW

Weights have one meaning: weight_B >= 0 sums to 1 over the *world batch* (every rank and
micro-batch of the step), the loss is sum(weight * loss), and nothing is divided by the number of
micro-batches or ranks again. Nothing here waits for the device.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dograph.mixers.base import Mixer, Report
from dograph.training.config import RunConfig
from dograph.training.optim import learning_rate
from dograph.training.seeing import Eyes, Piece
from dograph.training.sharding import clip_gradients
from dograph.training.stopwatch import Lap, Stopwatch
from dograph.training.world import World
from dograph.types import Batch, Signals


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
        self.config, self.world = config, world
        self.optimizer, self.mixer = optimizer, mixer
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.watch = Stopwatch(world.device)
        self.eyes = Eyes(config, world, model, mixer, self.watch)
        self.halted = torch.zeros((), device=world.device)

    def __call__(self, batch: Batch, step: int) -> StepRecord:
        self.watch.start()
        token_BT = batch.token_BT.to(self.world.device, non_blocking=True)
        lr = learning_rate(step, self.config.optim, self.config.train.steps)
        weight_B, loss_B = self.backward(token_BT, batch, step)

        grad_norm = clip_gradients(self.parameters, self.config.optim.clip_norm)
        finite = torch.isfinite(loss_B).all() & torch.isfinite(grad_norm)
        self.halted = torch.maximum(self.halted, (~finite).float())
        self.update(lr)
        self.watch.lap("update")
        return StepRecord(
            step=step,
            loss_B=loss_B,
            weight_B=weight_B,
            source_B=batch.source_B,
            grad_norm=grad_norm,
            halted=self.halted,
            signals=self.signals,
            lr=lr,
            report=self.mixer.report(),
            laps=self.watch.laps,
        )

    def backward(self, token_BT: Tensor, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Fill `.grad` with the weighted gradient; return the weights and losses, both (B,)."""
        at_once = self.config.train.micro_batch_size
        micro_bT = self.world.split(token_BT, at_once, len(batch.source_B))
        way = self.eyes.way(len(batch.source_B))
        if way == "blind":  # equal weights, or any that need no look at the samples
            weight_B = self.weigh([], batch, step)
            return weight_B, self.learn(micro_bT, weight_B, batch, step)
        if way == "lagged":
            return self.learn_as_they_come(micro_bT, batch, step)
        with ExitStack() as taps:
            pieces = [
                self.eyes.see(taps, token_bT, step, i, keep=way == "keep")
                for i, token_bT in enumerate(micro_bT)
            ]
            weight_B = self.weigh(pieces, batch, step)
            self.watch.lap("weigh")
            if way == "two_sweeps":  # nothing was kept of the first: a second one learns
                taps.close()
                return weight_B, self.learn(micro_bT, weight_B, batch, step)
            weight_b = self.world.local(weight_B).split([len(piece.loss_b) for piece in pieces])
            for piece, weight in zip(pieces, weight_b, strict=True):
                piece.backward(weight)
            self.eyes.average_gradients()
            self.watch.lap("deferred" if self.eyes.sketches else "backward")
        return weight_B, self.eyes.gathered_losses(pieces, len(batch.source_B))

    def learn(
        self, micro_bT: tuple[Tensor, ...], weight_B: Tensor, batch: Batch, step: int
    ) -> Tensor:
        """The plain weighted backward, micro-batch by micro-batch; returns all losses."""
        losses, done = [], 0
        for i, token_bT in enumerate(micro_bT):
            with self.eyes.accumulating(last=i == len(micro_bT) - 1):
                loss_b = self.eyes.losses(token_bT, step, i)
                self.watch.lap("forward")
                weight_b = self.world.local(weight_B)[done : done + len(token_bT)]
                (weight_b * loss_b).sum().backward()
                self.watch.lap("backward")
            losses.append(loss_b.detach())
            done += len(token_bT)
        return self.world.gather(torch.cat(losses), len(batch.source_B))

    def learn_as_they_come(
        self, micro_bT: tuple[Tensor, ...], batch: Batch, step: int
    ) -> tuple[Tensor, Tensor]:
        """Every micro-batch is weighed by what the mixer knew before this step."""
        pieces, weights = [], []
        for i, token_bT in enumerate(micro_bT):
            last = i == len(micro_bT) - 1
            with ExitStack() as taps:
                taps.enter_context(self.eyes.accumulating(last=last))
                piece = self.eyes.see(taps, token_bT, step, i, keep=True)
                weights.append(self.eyes.weigh_lagged(piece, len(batch.source_B), step))
                self.watch.lap("weigh")
                piece.backward(weights[-1] * self.world.size)
                self.watch.lap("deferred")
            pieces.append(piece.without_gradient())
        self.eyes.average_gradients()
        weight_B = self.world.gather(torch.cat(weights), len(batch.source_B))
        self.signals = self.eyes.signals(pieces, batch, step)
        self.eyes.observe(self.signals, weight_B)
        self.watch.lap("weigh")
        return weight_B, self.eyes.gathered_losses(pieces, len(batch.source_B))

    def weigh(self, pieces: list[Piece], batch: Batch, step: int) -> Tensor:
        self.signals = self.eyes.signals(pieces, batch, step)
        return self.mixer.weigh(self.signals).to(self.world.device, non_blocking=True)

    def update(self, lr: float) -> None:
        """AdamW, which skips the update on the device where `halted` is set."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.grad_scale, self.optimizer.found_inf = None, self.halted  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()
