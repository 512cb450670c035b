"""Pools: processes that run many jobs in parallel, on this machine or on a Ray cluster."""

import logging
import os
import secrets
import signal
import socket
import time
import traceback
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from dograph import processes
from dograph.errors import ConfigError, DographError, RunError, require
from dograph.plan.jobs import Job, Result, Stopped, log_of, run_job
from dograph.processes import GRACE_SECONDS, Died, Workers
from dograph.train.trainer import Interrupts

RETRIES = 3  # of a job whose process dies
POLL_SECONDS, RAY_POLL_SECONDS = 0.3, 0.5
RAY_REMEDY = "look at `ray status`, then run the same command: it goes on from the checkpoints"
STORE_BYTES = 100_000_000  # Ray's object store: results are small, models stay on disk

# Of every process that runs jobs. By default the allocator of Linux returns the memory of a large
# tensor when it is freed and asks for it again in the next step: a third of a small model's time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}


class JobError(RunError):
    """A job that fails every time; `trace` says where."""

    def __init__(self, job: Job, what: str, trace: str | None = None) -> None:
        super().__init__(
            f'"{job.label}"{what}\n  its folder: {job.config.run}\n  its log: {log_of(job.config)}'
        )
        self.job = job
        if trace is not None:
            self.add_note(trace)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text for the parent process; the object itself may not be picklable."""

    reason: str
    trace: str


OnStart = Callable[[Job], None]
OnDeath = Callable[[Job, str], None]
Work = Generator[tuple[int, Result | Failure] | None, None, None]


def job_lost(job: Job, why: str) -> JobError:
    """The error for a job whose process died too often."""
    return JobError(
        job,
        f": its process died {RETRIES + 1} times ({why}), most likely because memory ran out; run "
        "the same command with fewer --workers: it continues from the last checkpoint",
    )


def default_workers(device: str) -> int:
    """One for each GPU if jobs use them, otherwise one for each core."""
    on_gpus = torch.cuda.device_count() if device != "cpu" else 0
    return on_gpus or os.cpu_count() or 1


def on_device(job: Job, device: str) -> Job:
    """The same job on another device."""
    train = job.config.train.model_copy(update={"device": device})
    return Job(job.label, job.config.model_copy(update={"train": train}))


class Pool(AbstractContextManager["Pool", None]):
    """Runs jobs; a context manager."""

    @abstractmethod
    def work(self, jobs: Sequence[Job], on_start: OnStart, on_death: OnDeath) -> Work:
        """Yield each answer with the index of its job, and None while there is none."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all jobs to save and exit; kill those that take too long."""

    def run(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Result], None] = lambda job, result: None,
        on_start: OnStart = lambda job: None,
        on_death: OnDeath = lambda job, how: None,
    ) -> list[Result]:
        """Run all jobs; the results have the order of the jobs.

        A job whose process dies is retried from its last checkpoint. If one raises, the others stop
        at a checkpoint and JobError names it. On a signal to stop, jobs stop at a checkpoint and
        Stopped is raised. `on_death` gets the job of a process that died, and how it died, if the
        pool can see it.
        """
        results: dict[int, Result] = {}
        try:
            with Interrupts() as interrupts, closing(self.work(jobs, on_start, on_death)) as work:
                while len(results) < len(jobs):
                    if interrupts.asked:
                        raise Stopped(interrupts.asked)
                    if (answer := next(work)) is None:
                        continue
                    index, result = answer
                    if isinstance(result, Failure):
                        raise JobError(jobs[index], f" failed: {result.reason}", result.trace)
                    results[index] = result
                    on_done(jobs[index], result)
        except Exception:
            self.stop()
            raise
        return [results[index] for index in range(len(jobs))]


class LocalPool(Workers, Pool):
    """Long-lived processes on this machine that run one job after another."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"--workers={workers}: at least one process is needed")
        super().__init__(workers, __name__, ENVIRONMENT)

    def work(self, jobs: Sequence[Job], on_start: OnStart, on_death: OnDeath) -> Work:
        """See Pool. On a machine with several GPUs, workers take turns on them."""
        todo, gpus = deque(range(len(jobs))), torch.cuda.device_count()
        deaths: Counter[int] = Counter()
        while True:
            while todo and not (worker := self.least_busy()).jobs:
                job = jobs[todo[0]]
                on_gpu = gpus and job.config.train.device in ("auto", "cuda")
                placed = on_device(job, f"cuda:{worker.place % gpus}") if on_gpu else job
                self.give(worker, todo.popleft(), placed)
                on_start(job)
            for index, answered in self.answers(POLL_SECONDS):
                if isinstance(answered, Died):
                    deaths[index] += 1
                    if deaths[index] > RETRIES:
                        raise job_lost(jobs[index], answered.why)
                    on_death(jobs[index], answered.why)
                    todo.appendleft(index)  # the next job of the next free worker
                else:
                    yield index, answered
            yield None


def answer(job: Job) -> Result | Failure:
    """In a worker: the result of a job, or why it failed. Stopped is raised."""
    try:
        return run_job(job)
    except Stopped:
        raise
    except Exception as error:
        kind = "" if isinstance(error, DographError) else f"{type(error).__name__}: "
        return Failure(f"{kind}{error}", traceback.format_exc())


def serve(descriptor: int) -> None:
    """The main function of a worker process."""
    with suppress(Stopped, KeyboardInterrupt):  # asked to stop once, or twice
        processes.serve(descriptor, answer)


class RayPool(Pool):
    """Every job is a task with one CPU, and with one GPU if the cluster has any.

    `address` is that of a cluster ("auto" for the one on this machine, "ray://host:10001", ...);
    otherwise $RAY_ADDRESS is used; otherwise a cluster of `workers` processes is started here and
    stopped with the pool. All nodes must share the file system of the job folders and the corpus.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        self._ray: Any = require("ray", "ray")
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.workers = workers
        self._is_ours = False
        self._waiting: dict[Any, int] = {}  # tasks, and the indices of their jobs

    def __enter__(self) -> Self:
        if self._ray.is_initialized():
            return self
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Lets tasks without a GPU see all devices, and silences Ray's warning about it.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        cluster: dict[str, Any] = {"address": self.address}
        if self.address is None:
            cluster = {"address": "local", "num_cpus": self.workers or os.cpu_count()}
            cluster |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            self._ray.init(**cluster, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise RunError(
                f"no Ray cluster {where}: {error}. Start one with `ray start --head`, or give "
                "--on ray without RAY_ADDRESS to have one started for this command"
            ) from error
        self._is_ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False

    def work(self, jobs: Sequence[Job], on_start: OnStart, on_death: OnDeath) -> Work:
        """See Pool. Ray retries a job by itself, so `on_death` is never called.

        A job has started when its log, on the shared file system, grows.
        """
        folders = {Path(job.config.run).resolve().parent for job in jobs}
        marks = [folder / f".shared-{secrets.token_hex(8)}" for folder in folders]
        sizes = {index: _log_size(job) for index, job in enumerate(jobs)}
        try:
            for mark in marks:  # files that every task must see
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
            self._waiting = {self._submit(job, marks): index for index, job in enumerate(jobs)}
            while True:
                ready, _ = self._ray.wait(list(self._waiting), timeout=RAY_POLL_SECONDS)
                if not ready and not any(node["Alive"] for node in self._ray.nodes()):
                    self._waiting.clear()  # there is nobody to ask to stop
                    raise RunError(f"no node of the Ray cluster is alive any more: {RAY_REMEDY}")
                for index in [i for i in sizes if _log_size(jobs[i]) != sizes[i]]:
                    on_start(jobs[index])
                    del sizes[index]
                for task in ready:
                    index = self._waiting.pop(task)
                    try:
                        answered = self._ray.get(task)
                    except self._ray.exceptions.RayTaskError as error:
                        raise JobError(jobs[index], f" failed: {error}") from error
                    except self._ray.exceptions.RayError as error:
                        name = type(error).__name__
                        if name in ("WorkerCrashedError", "OutOfMemoryError"):
                            raise job_lost(jobs[index], name) from error
                        why = f"Ray lost it, {name} ({str(error).splitlines()[0]})"
                        raise JobError(jobs[index], f" failed: {why}: {RAY_REMEDY}") from error
                    yield index, answered
                yield None
        finally:
            for mark in marks:
                mark.unlink(missing_ok=True)

    def _submit(self, job: Job, marks: Sequence[Path]) -> Any:
        gpus = self._ray.cluster_resources().get("GPU", 0)
        on_gpu = bool(gpus) and job.config.train.device != "cpu"
        task = self._ray.remote(_task).options(
            num_cpus=1,
            num_gpus=1 if on_gpu else 0,
            max_retries=RETRIES,
            name=job.label,
            runtime_env={"env_vars": ENVIRONMENT},
        )
        # A task sees no GPU but its own.
        return task.remote(on_device(job, "cuda") if on_gpu else job, list(marks))

    def stop(self) -> None:
        """Ask all jobs to save and exit; kill those that take too long."""
        tasks = list(self._waiting)
        for task in tasks:
            self._ray.cancel(task, force=False)
        deadline = time.monotonic() + GRACE_SECONDS
        while tasks and time.monotonic() < deadline:
            _, tasks = self._ray.wait(tasks, num_returns=len(tasks), timeout=RAY_POLL_SECONDS)
        for task in tasks:
            self._ray.cancel(task, force=True)


def _log_size(job: Job) -> int:
    log = log_of(job.config)
    return log.stat().st_size if log.is_file() else -1


def _task(job: Job, marks: list[Path]) -> Result | Failure:
    """In a process of the cluster."""
    if unseen := [mark for mark in marks if not mark.is_file()]:
        return Failure(
            f"{socket.gethostname()} does not see {unseen[0].parent}; the lab's folder (--lab) and "
            "the corpus must be on a file system that all nodes of the Ray cluster share",
            "",
        )
    try:
        return answer(job)
    except Stopped as stopped:
        if stopped.number == signal.SIGINT:  # cancelled
            raise KeyboardInterrupt from stopped
        os._exit(1)  # a crash to Ray, which retries the job
