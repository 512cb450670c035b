"""Pool: something that makes many jobs, beside each other where it can."""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Protocol, Self

import torch

from dograph.errors import ConfigError, RunError
from dograph.plan.jobs import Job, Result, Stopped, log_of
from dograph.plan.worker import ENVIRONMENT, GRACE_SECONDS, STOP, Failure
from dograph.train.trainer import Interrupts

RETRIES = 3  # of a job whose process died


class JobError(RunError):
    """A job that cannot be done, whoever tries."""

    def __init__(self, job: Job, what: str) -> None:
        super().__init__(
            f'"{job.label}"{what}\n  its folder: {job.config.run}\n  its log: {log_of(job.config)}'
        )
        self.job = job


class Pool(Protocol):
    """Processes of this machine, or of a cluster."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def run(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Result], None] | None = None,
        on_start: Callable[[Job], None] | None = None,
        on_death: Callable[[Job, str], None] | None = None,
    ) -> list[Result]:
        """Make all jobs; the results have the order of the jobs.

        A job whose process dies is tried again and goes on from its last checkpoint. One that
        raises ends them all: the others stop at a checkpoint, and JobError says which it was.
        Asked by a signal to stop, jobs stop at a checkpoint and Stopped is raised. `on_death` is
        told of a process that died, and how, where the pool can see it.
        """


def job_failed(job: Job, reason: str) -> JobError:
    """A job raised something."""
    return JobError(job, f" failed: {reason}")


def job_lost(job: Job, why: str) -> JobError:
    """A job's process died too often."""
    return JobError(
        job,
        f": its process died {RETRIES + 1} times ({why}), most likely for want of memory; the same "
        "command goes on where it stopped: try it with fewer --workers",
    )


# Jobs on this machine: long-lived processes that make one job after another.


POLL_SECONDS = 0.3

# Not `multiprocessing`: its processes first import the main module once more, with all that a
# training script or a notebook imports, and fork is no choice beside torch's threads.
_PROGRAM = "import sys; sys.path[:] = {path!r}; import dograph.plan.worker as w; w.serve({fd})"

# A worker is a world of its own, whoever started its parent.
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def default_workers(device: str) -> int:
    """One for each GPU where jobs use them, else one for each core."""
    on_gpus = torch.cuda.device_count() if device != "cpu" else 0
    return on_gpus or os.cpu_count() or 1


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    place: int  # which of the pool's places it fills
    job: int | None = None  # what it is doing: index into the jobs

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


@dataclass(slots=True)
class _Round:
    """Jobs of one call, and how far they are."""

    jobs: Sequence[Job]
    todo: deque[int]
    on_death: Callable[[Job, str], None] | None
    results: dict[int, Result] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return len(self.results) == len(self.jobs)


class LocalPool:
    """`workers` processes, started when there is work and kept until the pool is left."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"--workers={workers}: at least one process must do the work")
        self.workers = workers
        self._crew: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._crew:
            worker.end()  # what is done is on disk; what is not, no one waits for
        self._crew = []

    def run(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Result], None] | None = None,
        on_start: Callable[[Job], None] | None = None,
        on_death: Callable[[Job, str], None] | None = None,
    ) -> list[Result]:
        """See Pool."""
        now = _Round(jobs, deque(range(len(jobs))), on_death)
        # Python lets the main thread alone have handlers; elsewhere whoever started it decides.
        in_main = threading.current_thread() is threading.main_thread()
        try:
            with Interrupts() if in_main else nullcontext() as interrupts:
                while not now.is_over:
                    if interrupts is not None and interrupts.asked:
                        raise Stopped(interrupts.asked)
                    for started in self._hand_out(now):
                        if on_start is not None:
                            on_start(started)
                    for job, result in self._collect(now):
                        if on_done is not None:
                            on_done(job, result)
        except Exception:
            self._stop()
            raise
        return [now.results[index] for index in range(len(jobs))]

    def _hand_out(self, now: _Round) -> list[Job]:
        """Give every idle worker a job, starting workers while there is work for more."""
        started = []
        while now.todo:
            idle = next((worker for worker in self._crew if worker.job is None), None)
            if idle is None and len(self._crew) < self.workers:
                taken = {worker.place for worker in self._crew}
                idle = _start(next(n for n in range(self.workers) if n not in taken))
                self._crew.append(idle)
            if idle is None:
                break
            index = now.todo.popleft()
            idle.job = index
            with suppress(OSError):  # it is dead: seen when its answer is waited for
                idle.connection.send(_placed(now.jobs[index], idle.place))
            started.append(now.jobs[index])
        return started

    def _collect(self, now: _Round) -> list[tuple[Job, Result]]:
        """Wait a little for answers; replace workers that died."""
        busy = {worker.connection: worker for worker in self._crew if worker.job is not None}
        done = []
        for connection in wait(list(busy), timeout=POLL_SECONDS):
            assert isinstance(connection, Connection)
            worker = busy[connection]
            assert worker.job is not None
            job = now.jobs[worker.job]
            try:
                answer: Result | Failure = connection.recv()
            except (EOFError, OSError):
                self._bury(worker, now)
                continue
            if isinstance(answer, Failure):
                worker.job = None
                error = job_failed(job, answer.reason)
                error.add_note(answer.trace)
                raise error
            now.results[worker.job] = answer
            worker.job = None
            done.append((job, answer))
        return done

    def _bury(self, worker: _Worker, now: _Round) -> None:
        """Its job is the next to be done again, by whoever is free."""
        self._crew.remove(worker)
        worker.end()
        code, index = worker.process.returncode, worker.job
        assert index is not None
        now.deaths[index] = now.deaths.get(index, 0) + 1
        why = f"signal {-code}" if code < 0 else f"exit status {code}"
        if now.deaths[index] > RETRIES:
            raise job_lost(now.jobs[index], why)
        if now.on_death is not None:
            now.on_death(now.jobs[index], why)
        now.todo.appendleft(index)

    def _stop(self) -> None:
        """Ask all that are busy to save and leave; end those that take too long."""
        busy = [worker for worker in self._crew if worker.job is not None]
        for worker in busy:
            with suppress(OSError):
                worker.connection.send(STOP)
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in busy:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - time.monotonic(), 0.0))
            worker.end()
            self._crew.remove(worker)


def _placed(job: Job, place: int) -> Job:
    """On a machine with several GPUs, workers take turns on them."""
    gpus = torch.cuda.device_count()
    if not gpus or job.config.train.device not in ("auto", "cuda"):
        return job
    train = job.config.train.model_copy(update={"device": f"cuda:{place % gpus}"})
    return Job(job.label, job.config.model_copy(update={"train": train}))


def _start(place: int) -> _Worker:
    ours, theirs = Pipe()
    program = _PROGRAM.format(path=sys.path, fd=theirs.fileno())
    environment = {name: value for name, value in os.environ.items() if name not in _TORCHRUN}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment | ENVIRONMENT,
            process_group=0,  # Ctrl-C is for the parent, which tells them
        )
    return _Worker(process, ours, place)
