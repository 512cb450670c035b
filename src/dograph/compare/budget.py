"""What a method may spend: the same tokens, or the same FLOPs with plans and sketches counted.

Equal compute: the dearest run at train.steps sets the total, plan + steps x step; every other run
takes as many whole steps as its own plan and step leave room for. The learning-rate schedule is
stretched to them: warm-up keeps its share of the run, and the decay ends at the last step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from dograph.config import RunConfig

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Price:
    """FLOPs of a run's plan (0: none is needed) and of each of its steps."""

    plan: float
    step: float

    def total(self, steps: int) -> float:
        return self.plan + steps * self.step


def equal_compute(prices: Mapping[Key, Price], steps: int) -> dict[Key, int]:
    """Steps of each run under the total of the dearest one at `steps`."""
    total = max((price.total(steps) for price in prices.values()), default=0.0)
    # A part in 1e9 of a step is rounding, and must not cost the dearest run a step.
    return {
        key: max(int((total - price.plan) / price.step + 1e-9), steps)
        for key, price in prices.items()
    }


def stretched(config: RunConfig, steps: int) -> RunConfig:
    """The same run over another number of steps, its warm-up as large a part of them."""
    if steps == config.train.steps:
        return config
    train = config.train.model_copy(update={"steps": steps})
    optim = config.optim.model_copy(update={"warmup_steps": config.warmup_over(steps)})
    return config.model_copy(update={"train": train, "optim": optim})
