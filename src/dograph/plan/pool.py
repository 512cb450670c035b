"""Pool: something that makes many jobs, beside each other where it can."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from dograph.errors import RunError
from dograph.plan.jobs import Job, Result, log_of

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
