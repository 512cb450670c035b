"""Training steps of a tiny model on a tiny corpus, in this process or as one rank of several.

The learning rate is next to nothing: weights stand still, so every step of two ways to compute it
can be compared on its own.

Shapes: B samples, K sketch.
"""

from dataclasses import dataclass, field
from unittest.mock import patch

import torch

from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer
from dograph.sketch.gradients import unwrapped
from dograph.train.assembly import CorpusLab, open_model, open_sampler
from dograph.train.distributed import World
from dograph.train.noise import NoiseScale
from dograph.train.step import TrainStep, build_optimizer

ALONE = World(rank=0, size=1, device=torch.device("cpu"))
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.batch_size=7",
    "train.steps=40",
    "optim.lr=1e-12",
    "optim.lr_start=0",
    "optim.lr_end=0",
    "optim.warmup_steps=0",
    "optim.clip_norm=1e9",
    "sketch.dim=64",
    "sketch.top_blocks=1",
    "mixer.name=dograph",
    "mixer.recipe=safe",
    "mixer.num_domains=3",
    "mixer.kmeans_restarts=2",
    "mixer.warmup_ratio=0",
)
# Domains of each batch as the paper has them, and domains that last.
PAPER = ("mixer.recipe=paper",)
STREAM = ("mixer.scope=stream", "mixer.min_effective_fraction=null", "mixer.half_life=5")
PERIOD = ("mixer.scope=period", "mixer.period_steps=2", "mixer.min_effective_fraction=null")
FIT_BATCHES = 2  # in place of ten, so that a stream has domains from the third step on


@dataclass
class Taken:
    """What one step did, with the gradient that the optimizer was given."""

    loss_B: torch.Tensor
    weight_B: torch.Tensor
    sketch_BK: torch.Tensor
    gradients: dict[str, torch.Tensor]
    report: dict[str, float | torch.Tensor]


@dataclass
class Steps:
    """A run without its trainer: `take` steps one after the other."""

    step: TrainStep
    loader: Loader
    model: torch.nn.Module
    done: int = 0
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self):
        self.step.optimizer.register_step_pre_hook(self.keep_gradients)

    def keep_gradients(self, *_):
        named = unwrapped(self.model).named_parameters()
        self.gradients = {name: p.grad.clone() for name, p in named}

    def take(self):
        record = self.step(self.loader.load(self.done), self.done)
        self.done += 1
        return Taken(
            record.loss_B,
            record.weight_B,
            record.signals.sketch_BK,
            self.gradients,
            dict(record.report.items()),  # worked out, to be sent between processes
        )


def open_steps(corpus, *overrides, world=ALONE, mixer=None):
    config = resolve_config(None, [f"data.corpus={corpus}", *SETTINGS, *overrides])
    corpus = Corpus(corpus)
    model = open_model(config, corpus).train()
    if config.train.activation_checkpointing:
        model.model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = build_optimizer(model, config.optim)
    mixer = mixer or build_mixer(config.mixer.name, config.mixer.options)
    sampler = open_sampler(config, corpus)
    sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), "plan")
    wrapped = world.wrap(model)
    loader = Loader(corpus, sampler, rank=world.rank, world_size=world.size)
    return Steps(TrainStep(config, world, wrapped, optimizer, mixer), loader, wrapped)


def take_steps(world, corpus, runs):
    """Two steps of several runs, given as {name: overrides}, once there are domains."""
    taken = {}
    with early_domains():
        for name, overrides in runs.items():
            steps = open_steps(corpus, *overrides, world=world)
            before = FIT_BATCHES if steps.step.mixer.domains_last else 0
            taken[name] = [steps.take() for _ in range(before + 2)][before:]
            steps.loader.close()
    return taken


def watch_steps(world, corpus, *overrides):
    """Two watched steps of equal weights: samples as seen, gradients, state of the noise scale."""
    given = ("mixer.name=natural", "train.on_spike=skip", "sketch.mode=head", *overrides)
    steps, noise, seen = open_steps(corpus, *given, world=world, mixer=Mixer()), NoiseScale(), []
    for number in range(2):
        record = steps.step(steps.loader.load(number), number)
        noise.observe(record.signals)
        seen.append((record.watched.table_B3, steps.gradients))
    steps.loader.close()
    return seen, noise.state_R9


def early_domains():
    return patch("dograph.domains.scopes.FIT_BATCHES", FIT_BATCHES)


def assert_same_gradients(got, expected, tolerance=1e-6):
    """As one vector; and each parameter, of which the short ones cancel and so round more."""
    assert got.keys() == expected.keys()
    joined = [torch.cat([g[name].flatten() for name in expected]) for g in (got, expected)]
    assert relative(*joined) < tolerance
    for name in expected:
        assert relative(got[name], expected[name]) < 3 * tolerance, name


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())
