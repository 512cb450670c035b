"""Pool: something that makes many jobs, beside each other where it can."""

import os
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from dograph import processes
from dograph.errors import ConfigError, DographError, RunError
from dograph.plan.jobs import Job, Result, Stopped, log_of, run_job
from dograph.processes import Died, Workers
from dograph.train.trainer import Interrupts

RETRIES = 3  # of a job whose process died
POLL_SECONDS = 0.3

# Of every process that makes jobs. By default the allocator of Linux gives the pages of a large
# tensor back when it is freed, to take new ones in the next step: a third of a small model's time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}


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

    def __exit__(self, *_: object) -> None: ...

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


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way to the parent; the object itself may not travel."""

    reason: str
    trace: str


def job_failed(job: Job, reason: str, trace: str | None = None) -> JobError:
    """A job raised something."""
    error = JobError(job, f" failed: {reason}")
    if trace is not None:
        error.add_note(trace)
    return error


def job_lost(job: Job, why: str) -> JobError:
    """A job's process died too often."""
    return JobError(
        job,
        f": its process died {RETRIES + 1} times ({why}), most likely for want of memory; the same "
        "command goes on where it stopped: try it with fewer --workers",
    )


def default_workers(device: str) -> int:
    """One for each GPU where jobs use them, else one for each core."""
    on_gpus = torch.cuda.device_count() if device != "cpu" else 0
    return on_gpus or os.cpu_count() or 1


class LocalPool(Workers):
    """Long-lived processes of this machine that make one job after another."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"--workers={workers}: at least one process must do the work")
        super().__init__(workers, __name__, ENVIRONMENT)

    def run(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Result], None] | None = None,
        on_start: Callable[[Job], None] | None = None,
        on_death: Callable[[Job, str], None] | None = None,
    ) -> list[Result]:
        """See Pool."""
        todo = deque(range(len(jobs)))
        results: dict[int, Result] = {}
        deaths: Counter[int] = Counter()
        # Python lets the main thread alone have handlers; elsewhere whoever started it decides.
        in_main = threading.current_thread() is threading.main_thread()
        try:
            with Interrupts() if in_main else nullcontext() as interrupts:
                while len(results) < len(jobs):
                    if interrupts is not None and interrupts.asked:
                        raise Stopped(interrupts.asked)
                    while todo and not (worker := self.least_busy()).jobs:
                        index = todo.popleft()
                        self.give(worker, index, _placed(jobs[index], worker.place))
                        if on_start is not None:
                            on_start(jobs[index])
                    for index, answered in self.answers(POLL_SECONDS):
                        if isinstance(answered, Died):
                            deaths[index] += 1
                            if deaths[index] > RETRIES:
                                raise job_lost(jobs[index], answered.why)
                            if on_death is not None:
                                on_death(jobs[index], answered.why)
                            todo.appendleft(index)  # the next to be done, by whoever is free
                        elif isinstance(answered, Failure):
                            raise job_failed(jobs[index], answered.reason, answered.trace)
                        else:
                            results[index] = answered
                            if on_done is not None:
                                on_done(jobs[index], answered)
        except Exception:
            self.stop()
            raise
        return [results[index] for index in range(len(jobs))]


def _placed(job: Job, place: int) -> Job:
    """On a machine with several GPUs, workers take turns on them."""
    gpus = torch.cuda.device_count()
    if not gpus or job.config.train.device not in ("auto", "cuda"):
        return job
    train = job.config.train.model_copy(update={"device": f"cuda:{place % gpus}"})
    return Job(job.label, job.config.model_copy(update={"train": train}))


def answer(job: Job) -> Result | Failure:
    """In a worker: what a job came to, or why it failed. Stopped goes through."""
    try:
        return run_job(job)
    except Stopped:
        raise
    except Exception as error:
        kind = "" if isinstance(error, DographError) else f"{type(error).__name__}: "
        return Failure(f"{kind}{error}", traceback.format_exc())


def serve(descriptor: int) -> None:
    """What a worker process runs."""
    with suppress(Stopped, KeyboardInterrupt):  # asked to stop once, asked twice
        processes.serve(descriptor, answer)
