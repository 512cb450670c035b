"""Dynamic loss-based reweighting of samples (Sow et al., ICLR 2025).

Shapes: B samples of the world batch.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dograph.config import Options
from dograph.domains.partition import all_finite
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Mixer
from dograph.mixers.fixed import Sampling, sampling_mixture
from dograph.types import Mixture, Signals

WARMUP = 0.05  # of the run's steps: the authors' 1000 of 20,000
SMALLEST_RANGE = 1e-6  # of the losses of a batch, as in the authors' code
SCORES: dict[str, Callable[[Tensor], Tensor]] = {  # f(h), by strategy
    "linupper": lambda h_B: (h_B + 1).clamp_max(1),
    "quadratic": lambda h_B: 1 - h_B.square(),
    "extremes": lambda h_B: h_B.abs(),
    "upper": lambda h_B: (h_B + 1) / 2,
}


class DynamicLossOptions(Options, owner="dynamic-loss"):
    """The authors' options (`temperature` is their r)."""

    strategy: Literal["linupper", "quadratic", "extremes", "upper"] = "linupper"
    temperature: float = Field(0.4, gt=0)
    warmup_steps: int | None = Field(None, ge=0)  # None: a share of the run
    sampling: Sampling = "uniform"  # or natural, a mixture file, or weights


class DynamicLoss(Mixer):
    """Weigh each sample by its loss, scaled to the lowest and the highest of the batch.

        h_i = (2 l_i - (hi + lo)) / max(hi - lo, 1e-6)     in [-1, 1]
        w   = softmax(f(h) / temperature)

    f is that of the strategy (`SCORES`); lo and hi are of the world batch, over all ranks and
    micro-batches. No gradient flows through w. Equal weights until `warmup_steps`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    reads_mixtures: ClassVar[bool] = True

    def __init__(self, strategy: str = "linupper", **options: Any) -> None:
        self.options = DynamicLossOptions(**{"strategy": strategy, **options})
        self.warmup_steps = self.options.warmup_steps or 0

    def warm_up(self, steps: int) -> None:
        """In proportion to the run, unless `warmup_steps` is set."""
        if self.options.warmup_steps is None:
            self.warmup_steps = round(WARMUP * steps)

    def plan(self, lab: Lab) -> Mixture:
        """Uniform over sources, as the authors draw, unless `sampling` is set."""
        self.warm_up(lab.steps)
        return sampling_mixture(self.options.sampling, lab.tokens)

    def weigh(self, signals: Signals) -> Tensor:
        if signals.loss_B is None:
            raise ConfigError("dynamic-loss weighs by losses; fill Signals.loss_B")
        loss_B = signals.loss_B.detach()
        equal_B = torch.full_like(loss_B, 1 / signals.num_samples)
        weight_B = loss_weights(loss_B, self.options.strategy, self.options.temperature)
        usable = all_finite(loss_B, weight_B) & (signals.step >= self.warmup_steps)
        weight_B = torch.where(usable, weight_B, equal_B)
        self._report = {"weights/max_relative_weight": signals.num_samples * weight_B.max()}
        return weight_B

    def state_dict(self) -> dict[str, Any]:
        return {"warmup_steps": self.warmup_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.warmup_steps = state["warmup_steps"]


def loss_weights(loss_B: Tensor, strategy: str, temperature: float) -> Tensor:
    """Weights of the samples of one batch."""
    lo, hi = loss_B.min(), loss_B.max()
    h_B = (2 * loss_B - (hi + lo)) / (hi - lo).clamp_min(SMALLEST_RANGE)
    return torch.softmax(SCORES[strategy](h_B) / temperature, dim=0)
