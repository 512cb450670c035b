"""A job: one run made, or gone on with, in this process; what it came to stays beside it.

On a CPU a job computes with one thread, so that its numbers depend neither on where it runs nor
on what runs beside it. A run is known by its settings, apart from where it lies: equal keys mean
equal numbers. Folders that settings name (a model, a reference) count by their weights and the
corpus by its tokens, so that a lab may be moved with them, and a changed one is not mistaken for
the old.
"""

import dataclasses
import fcntl
import gc
import hashlib
import json
import os
import secrets
import shutil
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import DographError, RunError
from dograph.files import sha256_of, write_json
from dograph.mixers.base import ProxyResult
from dograph.progress import Progress, duration
from dograph.renamed import with_old_settings
from dograph.train.assembly import inner_parameters, settled
from dograph.train.checkpoint import OPTIMIZER, WEIGHTS
from dograph.train.distributed import World, peak_bytes, pick_device, reset_peak
from dograph.train.metrics import SUMMARIES, read_metrics
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import Trainer, resume_run, start_run

WAIT_SECONDS = 0.2
FREE_SECONDS = 120.0  # how long a run that another process holds is waited for
KEY_FORMAT = 1  # raised when the same settings come to give other numbers
KEY_LENGTH = 16
RESULT = "result.json"
FORMAT = 1  # of result.json
NAMED = 3  # running jobs that are shown by name
STATE_NUMBERS = 100_000  # a larger tensor of a mixer's state stays in the checkpoint


@dataclass(frozen=True, slots=True)
class Job:
    """A run to make; `config.run` is its directory."""

    label: str  # what users see of it
    config: RunConfig


@dataclass(frozen=True, slots=True)
class Result(ProxyResult):
    """What a run came to, and what it took."""

    steps: int
    seconds: float  # of training over all resumes; what a kill undid is not counted
    peak_bytes: int  # most memory held, in the process that ended it
    epochs: Mapping[str, float]  # how often each source was read through


class JobProgress(Progress):
    """Shows the jobs of one round. Those that were made before count as done, and for no time."""

    def __init__(self, noun: str, *, total: int, cached: int) -> None:
        super().__init__(f"{{done}}/{{total}} {noun}", total, done=cached)
        self.jobs, self.cached, self.done = total, cached, cached
        self.seconds = 0.0  # of training, in those that were made now
        self.running: list[str] = []

    def on_start(self, job: Job) -> None:
        if job.label not in self.running:  # one whose worker died begins again
            self.running.append(job.label)
        self.show()

    def on_done(self, job: Job, result: Result) -> None:
        if job.label in self.running:
            self.running.remove(job.label)
        self.done, self.seconds = self.done + 1, self.seconds + result.seconds
        self.show()

    def on_death(self, job: Job, how: str) -> None:
        self.say(f'the process of "{job.label}" died ({how}); it goes on in another')

    def on_failure(self, why: str) -> None:
        """Leave a job out; all others were stopped with it, and begin again."""
        self.running.clear()
        self.jobs -= 1
        self.say(why)

    def show(self) -> None:
        named = ", ".join(self.running[:NAMED])
        more = f" and {len(self.running) - NAMED} more" if len(self.running) > NAMED else ""
        parts = [f"{duration(self.seconds)} of training"]
        parts += [f"{self.cached} cached"] if self.cached else []
        parts += [f"running {named}{more}"] if named else []
        self.update(self.done, "; ".join(parts), total=self.jobs)


class Stopped(DographError):
    """A signal asked to stop before all was done."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; nothing is lost: the same command goes on")
        self.number = number


class DamagedResultError(DographError):
    """A result that is there, and cannot be read or has lost its model."""


def log_of(config: RunConfig) -> Path:
    """What a job prints: beside its run, because it may end before there is a directory."""
    run = Path(config.run)
    return run.with_name(f"{run.name}.log")


def numbers_of(config: RunConfig) -> dict[str, Any]:
    """The settings that decide a run's numbers, the corpus apart."""
    values = config.model_dump(mode="json", exclude={"run", "log", "checkpoint"})
    for name in ("train.device", "train.shard", "data.corpus", "data.warn_epochs"):
        part, _, own = name.partition(".")
        del values[part][own]
    for part, own in (("model", "path"), ("mixer", "reference")):
        if isinstance(name := values[part].get(own), str):
            # A model folder counts by its weights; a Hugging Face name by itself.
            folder, inside = Path(name), f"model/{WEIGHTS}"
            files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob(inside))
            digests = ",".join(sha256_of(file) for file in files)
            values[part][own] = f"sha256:{digests}" if files else name
    return values


def corpus_digest(corpus: Corpus) -> str:
    """Training and validation text in one string."""
    held_out = [f"{s.entry.stratum}:{s.entry.sha256}:{s.entry.dtype}" for s in corpus.validation]
    return hashlib.sha256("\n".join([corpus.digest, *held_out]).encode()).hexdigest()


def content_key(config: RunConfig, corpus: Corpus) -> str:
    """The name under which a lab keeps a run."""
    config_numbers = with_old_settings(numbers_of(config))  # a renamed setting keeps the key
    facts = {"format": KEY_FORMAT, "config": config_numbers, "corpus": corpus_digest(corpus)}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def run_job(job: Job) -> Result:
    """Make the run, or go on with it, and keep what it came to; at once where that is there.

    A run that a kill cut short goes on from its last checkpoint. One whose result is damaged is
    made anew. One that another job makes is waited for. What is printed goes to a file: many jobs
    share one terminal.
    """
    path = Path(job.config.run)
    if (found := _kept(job.config)) is not None:
        return found
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log_of(job.config), "a", encoding="utf-8", buffering=1) as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        try:
            with _alone(path):
                if (found := _kept(job.config)) is not None:  # the other process has made it
                    return found
                if (path / RESULT).exists():
                    doomed = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
                    os.rename(path, doomed)  # a kill meanwhile leaves no half of a run
                    shutil.rmtree(doomed)
                return _trained(job.config)
        except Exception:
            traceback.print_exc()
            raise
        finally:
            gc.collect()  # the model lies in cycles, and this process may go on to other jobs


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep a run to one job: another that wants the same waits, however long, and finds it made.

    The claim lies beside the run, which may not be there yet; a process that dies lets it go. Then
    the run itself must be free: somebody may train it by hand, or a worker whose parent was killed
    is saving it.
    """
    with open(path.with_name(f".{path.name}.claim"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"another process makes {path}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        deadline = time.monotonic() + FREE_SECONDS
        while RunDirectory(path).use() != "free":
            if time.monotonic() > deadline:
                raise RunError(
                    f"{path} has been in use by another process for {FREE_SECONDS:.0f} s; wait for "
                    "it to end, then the same command goes on"
                )
            time.sleep(WAIT_SECONDS)
        yield


def read_result(run: Path, corpus: Corpus) -> Result | None:
    """The result of a finished run; None where it has none yet."""
    file = run / RESULT
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values.pop("version") != FORMAT:
            raise ValueError(f"it is not of version {FORMAT}")
        trained_on = values.pop("corpus")
        found = TypeAdapter(Result).validate_python(values | {"model": str(run / values["model"])})
        if not (Path(found.model) / WEIGHTS).is_file():
            raise ValueError(f"its model is not there: {found.model}")
    except (OSError, ValueError, KeyError, AttributeError, ValidationError) as error:
        raise DamagedResultError(f"{file} is damaged ({error})") from error
    if trained_on != corpus_digest(corpus):
        raise RunError(f"{run} was trained on another corpus. Remove it, or name another folder")
    return found


def _kept(config: RunConfig) -> Result | None:
    """The result that is there; a directory that holds another run must not pass for this one."""
    run = RunDirectory(Path(config.run))
    if run.config_file.is_file():
        there, asked = numbers_of(run.config()), numbers_of(settled(config))
        differing = sorted(name for name in there if there[name] != asked[name])
        if run.edits_file.exists():
            differing.append("mixtures (edits.jsonl)")
        if differing:
            raise RunError(
                f"{run.path} holds another run: its {', '.join(differing)} differ from what is "
                "asked. Remove it, or name another folder"
            )
    try:
        found = read_result(run.path, Corpus(config.data.corpus))
    except DamagedResultError:
        return None
    if found is not None:
        _drop_moments(run)  # a kill may have come between
    return found


def _trained(config: RunConfig) -> Result:
    """Train the run to its end, with one thread on a CPU, and write what it came to."""
    device = pick_device(config.train.device)
    world = World(rank=0, size=1, device=device)
    with ExitStack() as at_end:
        at_end.callback(torch.set_num_threads, torch.get_num_threads())
        if device.type == "cuda":
            torch.cuda.set_device(device)
        elif device.type == "cpu":
            torch.set_num_threads(1)
        reset_peak(device)
        begun = RunDirectory(Path(config.run)).config_file.is_file()
        trainer = resume_run(config, world) if begun else start_run(config, world)
        run = trainer.run
        at_end.callback(run.unlock)
        if asked := trainer.train():
            raise Stopped(asked)
        found = _summary(trainer)
        inside = str(Path(found.model).relative_to(run.path))
        own = {"model": inside, "version": FORMAT, "corpus": corpus_digest(trainer.corpus)}
        write_json(run.path / RESULT, dataclasses.asdict(found) | own)
        _drop_moments(run)
        return found


def _summary(trainer: Trainer) -> Result:
    """What a run that has ended came to, from its metrics and its last state."""
    run, state = trainer.run, trainer.state
    curve, seconds, last = [], 0.0, 0.0
    for row in read_metrics(run.metrics_file):
        if "time/step_seconds" in row:  # a lap of the clock: over the steps since the one before
            seconds += row["time/step_seconds"] * (row["step"] - last)
            last = row["step"]
        if "valid/mean/loss_nats" in row:
            losses = {
                name.removeprefix("valid/").removesuffix("/loss_nats"): loss
                for name, loss in row.items()
                if name.startswith("valid/") and name.endswith("/loss_nats")
            }
            sources = {name: losses[name] for name in losses if name not in SUMMARIES}
            curve.append((int(row["step"]), sources))
    return Result(
        losses=curve[-1][1] if curve else {},
        curve=curve,
        state={
            name: value.detach().cpu().tolist() if isinstance(value, Tensor) else value
            for name, value in state.mixer.state_dict().items()
            if not isinstance(value, Tensor) or value.numel() <= STATE_NUMBERS
        },
        model=str(run.checkpoint(trainer.done) / "model"),
        parameters=inner_parameters(state.model.model),
        tokens=trainer.done * trainer.config.tokens_per_step,
        steps=trainer.done,
        seconds=seconds,
        peak_bytes=peak_bytes(trainer.world.device),
        epochs=state.sampler.epochs(trainer.done),
    )


def _drop_moments(run: RunDirectory) -> None:
    """A finished run keeps its last model; the optimizer's moments are twice its size."""
    run.rotate(1)
    for step in run.checkpoint_steps():
        (run.checkpoint(step) / OPTIMIZER).unlink(missing_ok=True)
