"""What `dograph bench` measures: a trainer of its own, without a mixer and in each sketch mode.

Each of them is an `Arm`. All arms have the same model, initial weights and batches.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dograph.choices import Accumulation
from dograph.config import RunConfig, merge, parse_config, resolve_config
from dograph.data.corpus import MANIFEST, Corpus
from dograph.data.inputs import PrepareOptions
from dograph.data.loader import Loader
from dograph.data.pipeline import prepare
from dograph.errors import ConfigError, require_known
from dograph.mixers.dograph import DoGraph
from dograph.mixers.registry import build_mixer, require_compatible
from dograph.models.loss import PerSampleLoss
from dograph.models.presets import PRESETS
from dograph.rng import stream
from dograph.train.distributed import World
from dograph.train.step import Lap
from dograph.train.trainer import Trainer, start_run

WARMUP_STEPS = 12  # CUDA graphs are made on the way; domains of a stream are known after ten
RANDOM_SOURCES = ("first", "second", "third")
_GRAPHS = 64  # compiled graphs of one region: all arms share its code
SEGMENT_WRITES = 2  # of metrics in a segment, so that the wait at its end counts little
RUN_STEPS, SLOW_RUN_STEPS, SLOW_STEP = 200, 60, 0.5  # the last: seconds of a slow one


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Every choice of a measurement; `run` is the run whose step is measured."""

    run: RunConfig
    recipe: str
    modes: tuple[str, ...]
    vocab_size: int
    corpus: str | None = None  # None: random tokens
    steps: int | None = None  # timed in a run; None: as many as `segments` says

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
    def accumulates(self) -> Accumulation | None:
        """How gradients of several micro-batches are accumulated; None if there is only one."""
        batch = self.run.batches.largest
        several = (self.run.train.micro_batch_size or batch) < batch
        return self.run.sketch.accumulation if several else None

    def config(self, mode: str | None) -> RunConfig:
        """The configuration of an arm: DoGraph in a sketch mode, or None for a plain step."""
        values = self.run.model_dump(mode="json")
        if mode is None:
            return parse_config(values | {"mixer": {"name": "natural"}, "sketch": {}}, "plain")
        mixer = build_mixer(self.run.mixer.name, self.run.mixer.options)
        sketch = {"mode": mode, "refresh": mixer.refresh(self.run.sketch.refresh)}  # as in a run
        if self.corpus is None:  # its sources have other names
            values = merge(values, {"mixer": {"sampling": "natural"}})
        return parse_config(merge(values, {"sketch": sketch}), f"mode {mode}")

    def to_json(self) -> dict[str, Any]:
        run, train, sketch = self.run, self.run.train, self.run.sketch
        values: dict[str, Any] = {"model": run.model.preset, "batch": run.batches.largest}
        values |= {"seq_len": run.data.seq_len, "vocab_size": self.vocab_size}
        values |= {"dtype": train.dtype, "compile": train.compile}
        values |= {"micro_batch": train.micro_batch_size, "accumulates": self.accumulates}
        values |= {"modes": list(self.modes), "top_blocks": sketch.top_blocks}
        values |= {"recipe": self.recipe, "dim": sketch.dim, "steps": self.steps}
        return values | {"corpus": self.corpus, "seed": run.seed}


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
    *("model.dropout=0", "log.sinks=[]"),
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
    require_known(model, PRESETS, f'model.preset="{model}" is not known')
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
    if vocab_size is None and (Path(run.data.corpus) / MANIFEST).is_file():
        how |= {"corpus": run.data.corpus, "vocab_size": Corpus(run.data.corpus).vocab_size}
    recipe = DoGraph(**run.mixer.options).options.recipe
    return BenchOptions(run=run, recipe=recipe, modes=tuple(modes), **how)


def open_corpus(options: BenchOptions, folder: Path) -> Corpus:
    """The corpus of the run, or random tokens, written to `folder`.

    These have the frequencies of words, p ~ 1 / (rank + 2.7), so that embedding rows repeat.
    """
    if options.corpus is not None:
        return Corpus(options.corpus)
    kinds = min(options.vocab_size, 1 << 16)  # that two bytes can tell apart
    share_V, run = 1 / (np.arange(kinds) + 2.7), options.run
    size = max(1 << 18, 2 * run.batches.largest * run.data.seq_len)
    for source in RANDOM_SOURCES:
        draw = stream(run.seed, "bench tokens", source)
        token_N = draw.choice(kinds, size=size, p=share_V / share_V.sum()).astype(np.uint16)
        token_N.tofile(folder / f"{source}.bin")
    inputs = tuple(f"{source}={folder / source}.bin" for source in RANDOM_SOURCES)
    out = folder / "corpus"
    prepare(PrepareOptions(inputs=inputs, out=out, vocab_size=options.vocab_size))
    return Corpus(out)


@dataclass(slots=True)
class Arm:
    """A step that can be timed, and the times of its steps so far."""

    step: Callable[[], list[Lap]]
    model: PerSampleLoss
    trainer: Trainer | None = None  # None: a loop by hand, which makes no run
    loader: Loader | None = None
    ms: list[float] = field(default_factory=list)
    laps: list[list[Lap]] = field(default_factory=list)

    def segment(self, steps: int) -> tuple[float, list[float]]:
        """Steps as a run makes them, up to one where metrics are due; then wait for the device.

        Returns milliseconds of a step, and those that each step took to be queued on the device.
        """
        assert self.trainer is not None
        assert self.loader is not None
        trainer, marks = self.trainer, [time.perf_counter()]
        for _ in range(steps):
            trainer.advance(self.loader)
            if trainer.done % trainer.config.log.every == 0:
                trainer.due = (trainer.done, trainer.step.watch.mark())
            marks.append(time.perf_counter())
        trainer.step.watch.wait()
        ms = 1e3 * (time.perf_counter() - marks[0]) / steps
        return ms, [1e3 * (end - start) for start, end in pairwise(marks)]

    def close(self) -> None:
        if self.trainer is not None and self.loader is not None:
            self.loader.close()
            self.trainer.files.close()


def segments(config: RunConfig, seconds: float, asked: int | None = None) -> tuple[int, int]:
    """Timed steps in a run, in whole segments that hold those asked for, and a segment's steps.

    `seconds` is what a step takes. If no number is asked for, a short run sets it.
    """
    segment = SEGMENT_WRITES * config.log.every
    usual = SLOW_RUN_STEPS if seconds >= SLOW_STEP else RUN_STEPS
    asked = asked or max(min(usual, config.train.steps), 2 * segment)
    return -(-asked // segment) * segment, segment


def open_arm(config: RunConfig, device: torch.device) -> Arm:
    """A run that starts, to be trained a segment at a time."""
    if config.train.compile:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _GRAPHS)
    trainer = start_run(config, World(rank=0, size=1, device=device))
    trainer.files.open(0)
    loader = trainer.open_loader()

    def step() -> list[Lap]:
        batch, done = loader.load(trainer.done), trainer.done
        trainer.done += 1
        return trainer.step(batch, done).laps

    return Arm(step, trainer.state.model, trainer, loader)
