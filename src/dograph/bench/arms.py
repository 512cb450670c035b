"""The steps that are measured: the trainer's own, plain and in every mode."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from dograph.bench.options import Batches, BenchOptions
from dograph.mixers.registry import build_mixer
from dograph.models.build import build_model
from dograph.models.loss import PerSampleLoss, compile_regions
from dograph.train.distributed import World
from dograph.train.step import Lap, TrainStep, build_optimizer

_GRAPHS = 64  # of one region: all arms share its code


@dataclass(slots=True)
class Arm:
    """Something that makes a step and says where its time went, and its steps in turns so far."""

    name: str
    advance: Callable[[int], list[Lap]]
    model: nn.Module
    done: int = 0
    ms: list[float] = field(default_factory=list)
    laps: list[list[Lap]] = field(default_factory=list)

    def step(self) -> list[Lap]:
        """One more step."""
        laps = self.advance(self.done)
        self.done += 1
        return laps


def open_model(options: BenchOptions, device: torch.device) -> PerSampleLoss:
    """The model of every arm, with the same weights in each."""
    with device:  # weights are drawn where they are wanted: a CPU takes long over a large model
        model = build_model(
            options.model,
            vocab_size=options.vocab_size,
            seq_len=options.seq_len,
            dropout=0.0,
            seed=options.seed,
        ).to(device)
    return model.train()


def open_arm(
    options: BenchOptions, mode: str | None, batches: Batches, device: torch.device
) -> Arm:
    """The trainer's own step, plain (None) or in a mode of the sketch."""
    config = options.config(mode)
    model = open_model(options, device)
    if options.compile:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _GRAPHS)
        compile_regions(model)
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    world = World(rank=0, size=1, device=device)
    step = TrainStep(config, world, model, build_optimizer(model, config.optim), mixer)
    return Arm(mode or "plain", lambda done: step(batches(done), done).laps, model)
