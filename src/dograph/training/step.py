"""One training step, from batch to update: the file to read first.

    draw a world batch  ->  loss_B  ->  weight_B = mixer.weigh(signals)
                        ->  gradient of sum_i weight_i loss_i  ->  clip  ->  AdamW

Weights have one meaning: weight_B >= 0 sums to 1 over the *world batch* (every rank and
micro-batch of the step), the loss is sum(weight * loss), and nothing is divided by the number of
micro-batches or ranks again. Nothing here waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.rng import key64
from dograph.training.config import RunConfig
from dograph.training.optim import learning_rate
from dograph.training.world import World
from dograph.types import Batch, Signals

COMPUTED = frozenset({"loss", "source"})


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
        self.model, self.optimizer, self.mixer = model, optimizer, mixer
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.halted = torch.zeros((), device=world.device)
        if missing := mixer.needs - COMPUTED:
            raise ConfigError(
                f"the mixer needs {sorted(missing)}, which this step does not compute; "
                f"it computes {sorted(COMPUTED)}"
            )

    def __call__(self, batch: Batch, step: int) -> StepRecord:
        token_BT = batch.token_BT.to(self.world.device, non_blocking=True)
        lr = learning_rate(step, self.config.optim, self.config.train.steps)
        weight_B, loss_B = self.backward(token_BT, batch, step)

        grad_norm = nn.utils.clip_grad_norm_(self.parameters, self.config.optim.clip_norm)
        finite = torch.isfinite(loss_B).all() & torch.isfinite(grad_norm)
        self.halted = torch.maximum(self.halted, (~finite).float())
        self.update(lr)
        return StepRecord(
            step=step,
            loss_B=loss_B,
            weight_B=weight_B,
            source_B=batch.source_B,
            grad_norm=grad_norm,
            halted=self.halted,
            signals=self.signals,
            lr=lr,
        )

    def backward(self, token_BT: Tensor, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Fill `.grad` with the weighted gradient; return the weights and losses, both (B,)."""
        num_samples = len(batch.source_B)
        micro_bT = token_BT.split(self.config.train.micro_batch_size or len(token_BT))
        weight_B, needs_loss = None, "loss" in self.mixer.needs
        if needs_loss and self.accumulates(num_samples):
            # Weights need the whole world batch: a first sweep sees it, a second one learns.
            with torch.no_grad():
                loss_b = torch.cat([self.losses(t, step, i) for i, t in enumerate(micro_bT)])
            weight_B = self.weigh(self.world.gather(loss_b, num_samples), batch, step)

        losses, done = [], 0
        for i, token_bT in enumerate(micro_bT):
            last = i == len(micro_bT) - 1
            with self.world.accumulating(self.model, last=last):
                loss_b = self.losses(token_bT, step, i)
                if weight_B is None:
                    seen_B = self.world.gather(loss_b.detach(), num_samples) if needs_loss else None
                    weight_B = self.weigh(seen_B, batch, step)
                weight_b = self.world.local(weight_B)[done : done + len(token_bT)]
                (weight_b * loss_b).sum().backward()
            losses.append(loss_b.detach())
            done += len(token_bT)
        assert weight_B is not None
        return weight_B, self.world.gather(torch.cat(losses), num_samples)

    def losses(self, token_bT: Tensor, step: int, micro: int) -> Tensor:
        """Loss of each sample of a micro-batch. Dropout is a function of (seed, step, place)."""
        torch.manual_seed(key64(self.config.seed, "dropout", step, self.world.rank, micro) >> 1)
        half = self.config.train.dtype == "bfloat16"
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=half):
            loss_b: Tensor = self.model(token_bT)
        return loss_b

    def weigh(self, loss_B: Tensor | None, batch: Batch, step: int) -> Tensor:
        source_B = batch.source_B.to(self.world.device, non_blocking=True)
        self.signals = Signals(
            step=step,
            num_samples=len(source_B),
            device=self.world.device,
            loss_B=loss_B if "loss" in self.mixer.needs else None,
            source_B=source_B if "source" in self.mixer.needs else None,
        )
        return self.mixer.weigh(self.signals).to(self.world.device, non_blocking=True)

    def accumulates(self, num_samples: int) -> bool:
        """Whether any rank needs more than one micro-batch (all ranks must answer alike)."""
        most = -(-num_samples // self.world.size)
        return most > (self.config.train.micro_batch_size or most)

    def update(self, lr: float) -> None:
        """AdamW, which skips the update on the device where `halted` is set."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.grad_scale, self.optimizer.found_inf = None, self.halted  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()
