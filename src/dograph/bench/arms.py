"""What `dograph bench` measures: the trainer's own step, without a mixer and in each sketch mode.

Each of these steps is an `Arm`. All arms have the same model, initial weights and batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dograph.choices import Accumulation
from dograph.config import RunConfig, merge, parse_config, resolve_config
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.dograph import DoGraph
from dograph.mixers.registry import build_mixer, require_compatible
from dograph.models.build import build_model
from dograph.models.loss import PerSampleLoss, compile_regions
from dograph.models.presets import PRESETS
from dograph.rng import stream
from dograph.train.distributed import World
from dograph.train.step import Lap, TrainStep, build_optimizer
from dograph.types import Batch, SampleIds

LEAST_WARMUP_STEPS = 5
WARMUP_STEPS = {"safe": 12}  # its domains are known after ten steps
NUM_BATCHES = 4  # random ones, used in turn
_GRAPHS = 64  # compiled graphs of one region: all arms share its code
Batches = Callable[[int], Batch]  # by step


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Every choice of a measurement; `run` is the run whose step is measured."""

    run: RunConfig
    recipe: str
    modes: tuple[str, ...]
    vocab_size: int
    steps: int = 30
    profile: bool = False
    peak_tflops: float | None = None

    def __post_init__(self) -> None:
        model, top_blocks = self.run.model.preset or "", self.run.sketch.top_blocks
        layers = PRESETS[model].layers
        if "topdown" in self.modes and top_blocks > layers:
            raise ConfigError(
                f"sketch.top_blocks={top_blocks}, but {model} has {layers} blocks; give 1 to "
                f"{layers}"
            )
        for mode in self.modes:
            config = self.config(mode)
            require_compatible(config, build_mixer(config.mixer.name, config.mixer.options))

    @property
    def accumulation(self) -> Accumulation | None:
        """As it was set; None: by recipe."""
        sketch = self.run.sketch
        return sketch.accumulation if "accumulation" in sketch.model_fields_set else None

    @property
    def accumulates(self) -> Accumulation | None:
        """How gradients of several micro-batches are accumulated; None if there is only one."""
        batch = self.run.batches.largest
        if (self.run.train.micro_batch_size or batch) >= batch:
            return None
        return self.accumulation or ("lagged" if self.recipe == "safe" else "two_sweeps")

    @property
    def warmup_steps(self) -> int:
        return WARMUP_STEPS.get(self.recipe, LEAST_WARMUP_STEPS)

    def config(self, mode: str | None) -> RunConfig:
        """The configuration of an arm: DoGraph in a sketch mode, or None for a plain step."""
        values = self.run.model_dump(mode="json")
        if mode is None:
            return parse_config(values | {"mixer": {"name": "natural"}, "sketch": {}}, "plain")
        # The paper draws a new projection every step; domains that persist keep theirs.
        refresh = self.run.sketch.refresh or ("step" if self.recipe == "paper" else "never")
        sketch = {"mode": mode, "refresh": refresh}
        sketch |= {"accumulation": self.accumulates or "two_sweeps"}
        return parse_config(merge(values, {"sketch": sketch}), f"mode {mode}")

    def to_json(self) -> dict[str, Any]:
        run, train, sketch = self.run, self.run.train, self.run.sketch
        values: dict[str, Any] = {"model": run.model.preset, "batch": run.batches.largest}
        values |= {"seq_len": run.data.seq_len, "vocab_size": self.vocab_size}
        values |= {"dtype": train.dtype, "compile": train.compile}
        values |= {"micro_batch": train.micro_batch_size, "accumulation": self.accumulation}
        values |= {"modes": list(self.modes), "top_blocks": sketch.top_blocks}
        values |= {"recipe": self.recipe, "dim": sketch.dim, "steps": self.steps}
        values |= {"corpus": None, "profile": self.profile, "peak_tflops": self.peak_tflops}
        return values | {"seed": run.seed, "accumulates": self.accumulates}


# Settings without CONFIG: seconds on a CPU, the paper's shapes on a GPU.
_ON_GPU = (
    *("model.preset=gpt2-small", "train.batch_size=48", "data.seq_len=512"),
    *("train.dtype=bfloat16", "train.compile=true"),
)
_ON_CPU = ("model.preset=demo", "train.batch_size=8", "data.seq_len=128")
# A learning rate so low that no arm can diverge, whatever the tokens.
_FIXED = (
    *("train.steps=1000000", "optim.lr=1e-6", "optim.lr_start=1e-6", "optim.lr_end=1e-6"),
    *("optim.warmup_steps=0", "train.shard=false", "train.activation_checkpointing=false"),
)


def resolve_options(
    device: torch.device,
    modes: Sequence[str],
    settings: Sequence[str] = (),
    *,
    config: str | None = None,
    vocab_size: int | None = None,
    **how: Any,
) -> BenchOptions:
    """A configuration (by default one that suits the device) and settings, as `BenchOptions`."""
    on_gpu = device.type == "cuda"
    usual: tuple[str, ...] = ()
    if config is None:
        usual = (*(_ON_GPU if on_gpu else _ON_CPU), "mixer.name=dograph", "mixer.recipe=paper")
    run = resolve_config(config, [*usual, *settings, *_FIXED])
    largest = {"batch_size": run.batches.largest, "reference_batch_size": None}  # of a schedule
    run = run.model_copy(update={"train": run.train.model_copy(update=largest)})
    model = run.model.preset or ""
    if model not in PRESETS:
        raise ConfigError(f'model.preset="{model}": {did_you_mean(model, PRESETS)}')
    if run.mixer.name != "dograph":
        raise ConfigError(
            f"mixer.name={run.mixer.name}: bench measures sketches of DoGraph next to a plain "
            "step; set mixer.name=dograph"
        )
    if "top_blocks" not in run.sketch.model_fields_set:
        top_blocks = min(run.sketch.top_blocks, PRESETS[model].layers)
        sketch = run.sketch.model_copy(update={"top_blocks": top_blocks})
        run = run.model_copy(update={"sketch": sketch})
    how["vocab_size"] = vocab_size or (50257 if on_gpu else 4096)
    recipe = DoGraph(**run.mixer.options).options.recipe
    return BenchOptions(run=run, recipe=recipe, modes=tuple(modes), **how)


def open_batches(options: BenchOptions, device: torch.device) -> Batches:
    """The batch of every step, the same for all arms."""
    pin = device.type == "cuda"
    batches = [_random_batch(options, i, pin=pin) for i in range(NUM_BATCHES)]
    return lambda step: batches[step % NUM_BATCHES]


def _random_batch(options: BenchOptions, number: int, *, pin: bool) -> Batch:
    """Tokens with the frequencies of words, p ~ 1 / (rank + 2.7), so that embedding rows repeat."""
    draw = stream(options.run.seed, "bench tokens", number)
    share_V = 1 / (np.arange(options.vocab_size) + 2.7)
    shape = num, _ = options.run.batches.largest, options.run.data.seq_len
    drawn_BT = draw.choice(options.vocab_size, size=shape, p=share_V / share_V.sum())
    token_BT, source_B = torch.from_numpy(drawn_BT), torch.zeros(num, dtype=torch.int64)
    if pin:
        token_BT, source_B = token_BT.pin_memory(), source_B.pin_memory()
    ids = SampleIds(*[np.zeros(num, dtype=np.int64)] * 5)
    return Batch(token_BT=token_BT, source_B=source_B, ids=ids)


@dataclass(slots=True)
class Arm:
    """A step that can be timed, and the times of its steps so far."""

    advance: Callable[[int], list[Lap]]
    model: PerSampleLoss
    done: int = 0
    ms: list[float] = field(default_factory=list)
    laps: list[list[Lap]] = field(default_factory=list)

    def step(self) -> list[Lap]:
        laps = self.advance(self.done)
        self.done += 1
        return laps


def open_model(options: BenchOptions, device: torch.device) -> PerSampleLoss:
    """The model of every arm, with the same weights in each."""
    with device:  # initialise on the device: a CPU takes long for a large model
        run, sizes = options.run, {"vocab_size": options.vocab_size}
        sizes |= {"seq_len": run.data.seq_len, "seed": run.seed}
        model = build_model(run.model.preset or "", dropout=0.0, **sizes).to(device)
    return model.train()


def open_arm(
    options: BenchOptions, mode: str | None, batches: Batches, device: torch.device
) -> Arm:
    """The trainer's own step, plain (None) or in a mode of the sketch."""
    config = options.config(mode)
    model = open_model(options, device)
    if config.train.compile:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _GRAPHS)
        compile_regions(model)
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    world = World(rank=0, size=1, device=device)
    step = TrainStep(config, world, model, build_optimizer(model, config.optim), mixer)
    return Arm(lambda done: step(batches(done), done).laps, model)
