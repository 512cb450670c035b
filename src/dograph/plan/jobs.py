"""A job: one run trained, or resumed, in this process; its result is kept in the run's folder.

On a CPU a job uses one thread, so that its numbers depend neither on the machine nor on other jobs.
A run is identified by its settings, except for where it is stored: equal keys mean equal numbers.
Folders in the settings (a model, a reference) count by their weights and the corpus by its tokens,
so a lab can be moved together with them, and a changed folder gives another key.
"""

import dataclasses
import fcntl
import gc
import hashlib
import json
import os
import re
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
from pydantic import TypeAdapter
from torch import Tensor

from dograph.config import RunConfig
from dograph.data.corpus import SUMMARIES, Corpus
from dograph.errors import DographError, RunError, listed
from dograph.files import sha256_of, write_json
from dograph.mixers.base import ProxyResult
from dograph.progress import Progress, duration
from dograph.records import read_metrics
from dograph.renamed import with_old_settings
from dograph.train.assembly import inner_parameters, settled
from dograph.train.checkpoint import OPTIMIZER, WEIGHTS
from dograph.train.distributed import World, peak_bytes, pick_device, reset_peak
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import Trainer, resume_run, start_run

WAIT_SECONDS = 0.2
FREE_SECONDS = 120.0  # longest wait for a run that another process holds
KEY_FORMAT = 1  # raised when the same settings begin to give other numbers
KEY_LENGTH = 16
RESULT = "result.json"
FORMAT = 1  # of result.json
NAMED = 3  # running jobs that are shown by name
STATE_NUMBERS = 100_000  # a larger tensor of a mixer's state stays in the checkpoint


@dataclass(frozen=True, slots=True)
class Job:
    """A run to train; `config.run` is its directory."""

    label: str  # the name that users see
    config: RunConfig


@dataclass(frozen=True, slots=True)
class Result(ProxyResult):
    """The outcome of a run and its cost."""

    steps: int
    seconds: float  # of training over all resumes, without work lost to a kill
    peak_bytes: int  # peak memory of the process that finished it
    epochs: Mapping[str, float]  # over each source


class JobProgress(Progress):
    """Shows the jobs of one round. Cached ones count as done and take no time."""

    def __init__(self, noun: str, *, total: int, cached: int) -> None:
        super().__init__(f"{{done}}/{{total}} {noun}", total, done=cached)
        self.jobs, self.cached, self.done = total, cached, cached
        self.seconds = 0.0  # of training, in the jobs of this round
        self.running: dict[str, None] = {}  # labels, in the order in which they started

    def on_start(self, job: Job) -> None:
        self.running[job.label] = None  # a job whose worker died starts again
        self.show()

    def on_done(self, job: Job, result: Result) -> None:
        self.running.pop(job.label, None)
        self.done, self.seconds = self.done + 1, self.seconds + result.seconds
        self.show()

    def on_death(self, job: Job, how: str) -> None:
        self.say(f'the process of "{job.label}" died ({how}); another process resumes it')

    def on_failure(self, why: str) -> None:
        """Leave a job out; all others were stopped with it, and start again."""
        self.running.clear()
        self.jobs -= 1
        self.say(why)

    def show(self) -> None:
        parts = [f"{duration(self.seconds)} of training"]
        parts += [f"{self.cached} cached"] if self.cached else []
        parts += [f"running {listed(list(self.running), NAMED)}"] if self.running else []
        self.update(self.done, "; ".join(parts), total=self.jobs)


class Stopped(DographError):
    """A signal asked to stop before all jobs were done."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name}; nothing is lost: the same command goes on")
        self.number = number


def log_of(config: RunConfig) -> Path:
    """The log of a job: next to its run, because a job may fail before the directory exists."""
    run = Path(config.run)
    return run.with_name(f"{run.name}.log")


def numbers_of(config: RunConfig) -> dict[str, Any]:
    """The settings that decide a run's numbers, except for the corpus."""
    no_matter: dict[str, Any] = dict.fromkeys(("run", "log", "checkpoint"), True)
    no_matter |= {"train": {"device", "shard"}, "data": {"corpus", "warn_epochs"}}
    values = config.model_dump(mode="json", exclude=no_matter)
    for part, own in (("model", "path"), ("mixer", "reference")):
        if isinstance(name := values[part].get(own), str):
            # A model folder counts by its weights; a Hugging Face name by itself.
            folder, inside = Path(name), f"model/{WEIGHTS}"
            files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob(inside))
            digests = ",".join(sha256_of(file) for file in files)
            values[part][own] = f"sha256:{digests}" if files else name
    return values


def corpus_digest(corpus: Corpus) -> str:
    """A digest of the training and validation text."""
    held_out = [f"{s.entry.stratum}:{s.entry.sha256}:{s.entry.dtype}" for s in corpus.validation]
    return hashlib.sha256("\n".join([corpus.digest, *held_out]).encode()).hexdigest()


def content_key(config: RunConfig, corpus: Corpus) -> str:
    """The name under which a lab keeps a run."""
    config_numbers = with_old_settings(numbers_of(config))  # a renamed setting keeps the key
    facts = {"format": KEY_FORMAT, "config": config_numbers, "corpus": corpus_digest(corpus)}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def run_job(job: Job) -> Result:
    """Train or resume the run and keep its result; return a result that exists already.

    A run that was killed resumes from its last checkpoint; one with a damaged result is trained
    again; one that another process trains is waited for. Output goes to a file, because many jobs
    share one terminal.
    """
    path = Path(job.config.run)
    if (kept := _kept(job.config)) is not None:
        return kept
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log_of(job.config), "a", encoding="utf-8", buffering=1) as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        try:
            with _claimed(path):
                if (kept := _kept(job.config)) is not None:  # made by the other process
                    return kept
                if (path / RESULT).exists():
                    doomed = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
                    os.rename(path, doomed)  # so that a kill leaves no half-removed run
                    shutil.rmtree(doomed)
                return _trained(job.config)
        except Exception:
            traceback.print_exc()
            raise
        finally:
            gc.collect()  # the model is in reference cycles, and this process may run other jobs
            torch.cuda.empty_cache()  # or idle: the GPU is for others then; does nothing on a CPU


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Let one job at a time work on a run; others wait, however long.

    The lock file is next to the run, which may not exist yet; the lock ends with its process. Then
    the run itself must be free: somebody may train it by hand, or a worker whose parent was killed
    may be saving it.
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
                what = f"{path} has been in use by another process for {FREE_SECONDS:.0f} s"
                raise RunError(f"{what}; wait for it to end, then run the same command again")
            time.sleep(WAIT_SECONDS)
        yield


def read_result(run: Path, corpus: Corpus) -> Result | None:
    """The result of a finished run; None for other runs, and where the result is damaged.

    A result is damaged if its file cannot be read or its model is missing; it is made again.
    """
    try:
        values = json.loads((run / RESULT).read_text(encoding="utf-8"))
        is_ours, trained_on = values.pop("version") == FORMAT, values.pop("corpus")
        result = TypeAdapter(Result).validate_python(values | {"model": str(run / values["model"])})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    if not is_ours or not (Path(result.model) / WEIGHTS).is_file():
        return None
    if trained_on != corpus_digest(corpus):
        raise RunError(f"{run} was trained on another corpus. Remove it, or name another folder")
    return result


def _kept(config: RunConfig) -> Result | None:
    """The result in the run's directory, which must hold this run and no other."""
    run = RunDirectory(Path(config.run))
    if run.config_file.is_file():
        there, asked = numbers_of(run.config()), numbers_of(settled(config))
        differing = sorted(name for name in there if there[name] != asked[name])
        if run.edits_file.exists():
            differing.append("mixtures (edits.jsonl)")
        if differing:
            what = f"{run.path} holds another run: its {', '.join(differing)} differ"
            raise RunError(f"{what} from this one's. Remove it, or name another folder")
    if (result := read_result(run.path, Corpus(config.data.corpus))) is not None:
        _drop_moments(run)  # a kill may have come before it was done
    return result


def _trained(config: RunConfig) -> Result:
    """Train the run to its end, with one thread on a CPU, and write its result."""
    device = pick_device(config.train.device)
    world = World(rank=0, size=1, device=device)
    with ExitStack() as at_end:
        at_end.callback(torch.set_num_threads, torch.get_num_threads())
        if device.type == "cuda":
            torch.cuda.set_device(device)
        elif device.type == "cpu":
            torch.set_num_threads(1)
        reset_peak(device)
        run = RunDirectory(Path(config.run))
        trainer = (resume_run if run.config_file.is_file() else start_run)(config, world)
        at_end.callback(trainer.run.unlock)
        print("".join(f"warning: {text}\n" for text in trainer.warnings), end="")
        if signal_number := trainer.train():
            raise Stopped(signal_number)
        result = _result(trainer)
        inside = str(Path(result.model).relative_to(run.path))
        own = {"model": inside, "version": FORMAT, "corpus": corpus_digest(trainer.corpus)}
        write_json(run.path / RESULT, dataclasses.asdict(result) | own)
        _drop_moments(run)
        return result


def _result(trainer: Trainer) -> Result:
    """The result of a run that has ended, from its metrics and its last state."""
    run, state = trainer.run, trainer.state
    curve, seconds, last = [], 0.0, 0.0
    whole = (b'"time/step_seconds"', b'"valid/mean/loss_nats"')
    for row in read_metrics(run.metrics_file, wanted=lambda line: any(x in line for x in whole)):
        if "time/step_seconds" in row:  # the mean over the steps since the row before
            seconds += row["time/step_seconds"] * (row["step"] - last)
            last = row["step"]
        if "valid/mean/loss_nats" in row:
            found = [re.fullmatch("valid/(.*)/loss_nats", name) for name in row]
            losses = {m[1]: row[m[0]] for m in found if m and m[1] not in SUMMARIES}
            curve.append((int(row["step"]), losses))
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
        tokens=trainer.batches.drawn(trainer.done) * trainer.config.data.seq_len,
        steps=trainer.done,
        seconds=seconds,
        peak_bytes=peak_bytes(trainer.world.device),
        epochs=state.sampler.epochs(state.sampler.drawn(trainer.done)),
    )


def _drop_moments(run: RunDirectory) -> None:
    """A finished run keeps its last model; the optimizer's moments are twice its size."""
    run.rotate(1)
    for step in run.checkpoint_steps():
        (run.checkpoint(step) / OPTIMIZER).unlink(missing_ok=True)
