"""The loop around the step: log, validate, checkpoint, stop, resume."""

import gc
import os
import resource
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Self

import torch
from torch import Tensor

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import WeightEntry
from dograph.errors import ConfigError, RunError, require
from dograph.files import write_text
from dograph.mixers.registry import build_mixer
from dograph.models.loss import compile_regions, uncompiled
from dograph.progress import Progress
from dograph.train.assembly import open_lab, open_model, open_sampler
from dograph.train.checkpoint import TrainingState, read_checkpoint, write_checkpoint
from dograph.train.distributed import World, at_rest, require_shardable
from dograph.train.edits import Edits
from dograph.train.metrics import SUMMARIES, Row, step_note, validation_row
from dograph.train.optim import build_optimizer
from dograph.train.run_dir import RunDirectory
from dograph.train.run_files import RunFiles, stop_for_nonfinite
from dograph.train.step import StepRecord, TrainStep
from dograph.train.validation import BlockLosses, validate, validation_blocks

# Ctrl-C and SIGTERM: finish the step, save, leave. A second one leaves at once.


class Interrupts:
    """Remembers the signal that asked the run to stop; 0 while none did."""

    def __init__(self) -> None:
        self.asked = 0
        self._old: dict[int, signal.Handlers] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._note)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number


# The most memory that a run held at once.


_SELF = Path("/proc/self")


def reset_peak(device: torch.device) -> None:
    """Count from now on. A worker makes many runs; each should answer for its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (_SELF / "clear_refs").write_text("5")  # the high-water mark falls to what is held now
    except OSError:
        return  # not Linux, or not allowed: the mark of the whole process is what there is


def peak_bytes(device: torch.device) -> int:
    """Allocated on a GPU; resident on a CPU, the program and its libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = (_SELF / "status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


# Python's garbage collector, kept from looking through what lives as long as the run.
#
# Models, compiled graphs and their guards are hundreds of thousands of objects, and a collection
# that walks through them stops the host for tens of milliseconds in a step.


SETTLED_AFTER = 3  # steps, by which everything is built and compiled


class Collector:
    """Sets aside, once, all that there is; what comes later is collected as ever."""

    def __init__(self) -> None:
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def step(self) -> None:
        self.steps += 1
        if self.steps == SETTLED_AFTER:
            gc.collect()
            gc.freeze()

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()


@dataclass(slots=True)
class Clock:
    """Time and tokens since metrics were last written."""

    tokens_per_step: int
    start: float = field(default_factory=time.monotonic)

    def lap(self, steps: int) -> Row:
        now = time.monotonic()
        seconds, self.start = now - self.start, now
        return {
            "time/step_seconds": seconds / steps,
            "time/tokens_per_second": steps * self.tokens_per_step / seconds,
        }


class Trainer:
    """A run in progress."""

    def __init__(self, config: RunConfig, run: RunDirectory, world: World) -> None:
        world = replace(world, shards=config.train.shard and world.size > 1)
        self.config, self.run, self.world = config, run, world
        if config.train.batch_size < world.size:
            raise ConfigError(
                f"train.batch_size={config.train.batch_size} samples cannot be shared by "
                f"{world.size} processes; raise it or start fewer"
            )
        for name in config.log.sinks:
            require(name, name)
        self.corpus = Corpus(config.data.corpus)
        if taken := set(SUMMARIES) & set(self.corpus.sources):
            raise ConfigError(
                f"a source is called {sorted(taken)}, a name that metrics use for a summary; "
                "prepare the corpus with another: NAME=path"
            )
        if config.train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(config.train.deterministic)
        mixer = build_mixer(config.mixer.name, config.mixer.options)
        require_shardable(config, mixer, world.size)
        model = open_model(config, self.corpus)
        if config.train.activation_checkpointing:
            model.model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        world.place(model)
        self.state = TrainingState(
            model=model,
            optimizer=build_optimizer(model, config.optim),
            mixer=mixer,
            sampler=open_sampler(config, self.corpus),
            corpus_digest=self.corpus.digest,
        )
        self.edits = Edits(config, run, world, self.state)
        if config.train.compile:
            compile_regions(model)
        runnable = world.wrap(model)
        self.step = TrainStep(config, world, runnable, self.state.optimizer, self.state.mixer)
        self.files = RunFiles(
            config, run, self.corpus, self.state, self.step.collector, main=world.is_main
        )
        self.validation_blocks = {
            source: validation_blocks(
                self.corpus, source, config.data.seq_len, config.eval.max_blocks
            )
            for source in self.corpus.sources
        }
        self.unwritten: list[StepRecord] = []  # steps that are not in the metrics yet
        self.done = 0  # steps made
        self.last_weights: WeightEntry | None = None  # the newest that is on disk

    def begin(self) -> None:
        """Start from the beginning: plan, and open the weight log with the plan."""
        mixture = self.state.mixer.plan(open_lab(self.config, self.corpus))
        for later in self.state.mixer.schedule().values():
            self.state.sampler.weights_of(later)  # a wrong name must not wait for its step
        self.state.sampler.remix(0, mixture, reason="plan")

    def resume(self) -> None:
        """Start from the newest checkpoint, or from the beginning where there is none yet."""
        steps = self.run.checkpoint_steps()
        if steps:
            self.done = steps[-1]
            read_checkpoint(self.run, self.done, self.state)
        else:
            self.begin()
        self.edits.open(self.done)
        if self.world.is_main:
            self.run.clean()
            self.run.cut(self.done)
            self.write_weights()
            self.tidy()
        self.world.barrier()

    def train(self) -> int:
        """Train to the end, or until asked to stop; return the signal that asked, or 0."""
        config, total = self.config, self.config.train.steps
        loader = self.open_loader()
        self.files.open(self.done)
        progress = Progress(
            "step {done}/{total}", total, done=self.done, silent=not self.world.is_main
        )
        clock = Clock(config.tokens_per_step)
        asked = 0
        try:
            clock.start += self.files.probe(self.done)
            with Interrupts() as interrupts, Collector() as collector:
                while self.done < total and not asked:
                    record = self.advance(loader)
                    collector.step()
                    asked = self.stop_asked(interrupts)
                    ending = bool(asked) or self.done == total
                    validates = self.done == total or is_due(self.done, config.eval.every)
                    saves = ending or is_due(self.done, config.checkpoint.every)
                    logs = is_due(self.done, config.log.every) or self.halted_now(record)
                    if logs or validates or saves:  # a checkpoint must not outrun the metrics
                        self.write_metrics(clock, progress)
                        self.take_request(progress)
                    if validates:
                        self.write_validation(progress)
                        self.files.write_graph(self.done)
                    clock.start += self.files.probe(self.done)
                    if saves:
                        self.save()
        except OSError as error:
            raise RunError(
                f"{error.filename or self.run.path}: {error.strerror or error}. Mend it (perhaps "
                f"make room), then: dograph train --resume {self.run.path}"
            ) from error
        finally:
            progress.close()
            loader.close()
            self.files.close()
        return asked

    def open_loader(self) -> Loader:
        return Loader(
            self.corpus,
            self.state.sampler,
            rank=self.world.rank,
            world_size=self.world.size,
            pin=self.world.device.type == "cuda",
        )

    def advance(self, loader: Loader) -> StepRecord:
        """One step: draw, compute, update; then draw differently if the mixer says so."""
        batch = loader.load(self.done, ahead=self.done + 1 < self.config.train.steps)
        record = self.step(batch, self.done)
        self.unwritten.append(record)
        self.done += 1
        mixture = self.state.mixer.remix(record.signals)
        if mixture is not None:
            self.state.sampler.remix(self.done, mixture, reason=self.config.mixer.name)
        self.edits.apply(self.done)
        return record

    def stop_asked(self, interrupts: Interrupts) -> int:
        """Every rank must stop at the same step; asking costs a wait, so many GPUs ask seldom."""
        several_gpus = self.world.size > 1 and self.world.device.type == "cuda"
        if several_gpus and self.done % self.config.log.every:
            return 0
        return self.world.agree(interrupts.asked)

    def halted_now(self, record: StepRecord) -> bool:
        """On a CPU a look is free; on a GPU it would wait, and `halted` holds the update anyway."""
        return self.world.device.type == "cpu" and bool(record.halted)

    def write_metrics(self, clock: Clock, progress: Progress) -> None:
        """Bring the steps since the last time to the host, check them, write them."""
        records, self.unwritten = self.unwritten, []
        if bool(records[-1].halted):
            bad = next(i for i, record in enumerate(records) if bool(record.halted))
            self.files.write_samples(records[:bad])
            self.files.write_metrics(self.files.step_rows(records[:bad]))
            self.write_weights()
            stop_for_nonfinite(
                records[bad], self.run, self.corpus, self.state.sampler, main=self.world.is_main
            )
        self.files.write_samples(records)
        rows = self.files.step_rows(records)
        rows[-1] |= clock.lap(len(records))
        rows[-1]["memory/peak_bytes"] = peak_bytes(self.world.device)
        if self.done % self.config.log.every == 0 or self.done == self.config.train.steps:
            # Not where a run merely stopped: its rows must be those of one that did not.
            epochs = self.state.sampler.epochs(self.done)
            rows[-1] |= {f"data/{source}/epochs": value for source, value in epochs.items()}
        self.files.write_metrics(rows)
        self.write_weights()
        progress.update(self.done, step_note(rows[-1]))

    def write_weights(self) -> None:
        """Bring weights.jsonl up to date; it changes seldom, and writing it waits for the disk."""
        log = self.state.sampler.log.cut(self.done)
        if self.world.is_main and log.entries[-1] is not self.last_weights:
            write_text(self.run.weights_file, log.dump())
            self.last_weights = log.entries[-1]

    def take_request(self, progress: Progress) -> None:
        """Draw from here on by the mixture that somebody asks for, if one does."""
        edit = self.edits.look(self.done)
        if edit is not None:
            self.write_weights()
            for line in (edit.line, *self.edits.answer(edit)):
                progress.say(line)

    def write_validation(self, progress: Progress) -> None:
        model, last = self.state.model, self.done == self.config.train.steps
        each = BlockLosses(self.validation_blocks) if last else None
        model.eval()
        with uncompiled():
            nats = validate(
                self.validation_losses,
                self.validation_blocks,
                micro_batch_size=self.config.train.micro_batch_size or 16,
                rank=self.world.rank,
                world_size=self.world.size,
                total=self.total_on_device,
                each=each,
                together=self.world.shards,
            )
        at_rest(model)
        model.train()
        if each is not None:
            each.gather(self.total_on_device)
            if self.world.is_main:
                self.run.write_validation(each.rows(self.done))
        tokens, widths = self.corpus.tokens_by_source(), self.corpus.bytes_per_token("validation")
        row = validation_row(self.done, nats, tokens, widths)
        self.files.write_metrics([row])
        if nats:
            progress.say(
                f"step {self.done}: validation loss {row['valid/mean/loss_nats']:.4f} nats"
            )

    def validation_losses(self, token_bT: Tensor) -> Tensor:
        with self.step.collector.autocast():
            loss_b: Tensor = self.state.model(token_bT.to(self.world.device))
        return loss_b

    def total_on_device(self, values: Tensor) -> Tensor:
        return self.world.total(values.to(self.world.device)).cpu()

    def save(self) -> None:
        self.files.sync()
        tokenizer = self.corpus.manifest.tokenizer.file
        file = self.corpus.directory / tokenizer if tokenizer else None
        write_checkpoint(self.run, self.done, self.state, file, main=self.world.is_main)
        if self.world.is_main:
            self.tidy()
        self.world.barrier()

    def tidy(self) -> None:
        """What follows a checkpoint; done again on resume, where a kill may have come between."""
        self.run.rotate(self.config.checkpoint.keep)
        if self.done == self.config.train.steps:
            self.run.link_model(self.done)


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
