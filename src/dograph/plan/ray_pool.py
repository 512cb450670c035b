"""Jobs on a Ray cluster: one that is given by its address, or one started here for the while."""

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

from dograph.errors import RunError, require
from dograph.plan.jobs import Job, Result, Stopped, log_of
from dograph.plan.pool import ENVIRONMENT, RETRIES, Failure, answer, job_failed, job_lost
from dograph.processes import GRACE_SECONDS
from dograph.train.trainer import Interrupts

POLL_SECONDS = 0.5
STORE_BYTES = 100_000_000  # results are small: they go by value, models stay on disk


class RayPool:
    """Every job is a task of one CPU, and of one GPU where the cluster has any.

    `address` is a cluster's ("auto" for the one of this machine, "ray://host:10001", ...); without
    one, $RAY_ADDRESS; without that, a cluster of `workers` processes is started here, and ended
    with the pool. The folders of the jobs and the corpus must be on a file system that all nodes
    share.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        self._ray: Any = require("ray", "ray")
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.workers = workers
        self._is_ours = False

    def __enter__(self) -> Self:
        if self._ray.is_initialized():
            return self
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray will leave a task without a GPU the devices that it sees, and says so at length.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        own: dict[str, Any] = {
            "address": "local",
            "num_cpus": self.workers or os.cpu_count(),
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        }
        try:
            self._ray.init(
                **(own if self.address is None else {"address": self.address}),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise RunError(
                f"no Ray cluster {where}: {error}. Start one with `ray start --head`, or leave "
                "--ray-address out to have one started for the while"
            ) from error
        self._is_ours = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False

    def run(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Result], None] | None = None,
        on_start: Callable[[Job], None] | None = None,
        on_death: Callable[[Job, str], None] | None = None,
    ) -> list[Result]:
        """See Pool. Ray makes a job again without telling, so `on_death` is never called."""
        in_main = threading.current_thread() is threading.main_thread()
        results: dict[int, Result] = {}
        with _marked(jobs) as marks, Interrupts() if in_main else nullcontext() as interrupts:
            waiting = {self._submit(job, marks): index for index, job in enumerate(jobs)}
            starts = _Starts(jobs)
            try:
                while waiting:
                    if interrupts is not None and interrupts.asked:
                        raise Stopped(interrupts.asked)
                    ready, _ = self._ray.wait(list(waiting), timeout=POLL_SECONDS)
                    for job in starts.new() if on_start is not None else []:
                        assert on_start is not None
                        on_start(job)
                    for task in ready:
                        index = waiting.pop(task)
                        results[index] = self._result(jobs[index], task)
                        if on_done is not None:
                            on_done(jobs[index], results[index])
            except Exception:
                self._cancel(list(waiting))
                raise
        return [results[index] for index in range(len(jobs))]

    def _submit(self, job: Job, marks: Sequence[Path]) -> Any:
        gpus = self._ray.cluster_resources().get("GPU", 0)
        on_gpu = bool(gpus) and job.config.train.device != "cpu"
        if on_gpu:  # Ray shows a task its own GPU alone
            train = job.config.train.model_copy(update={"device": "cuda"})
            job = Job(job.label, job.config.model_copy(update={"train": train}))
        task = self._ray.remote(_task).options(
            num_cpus=1,
            num_gpus=1 if on_gpu else 0,
            max_retries=RETRIES,
            name=job.label,
            runtime_env={"env_vars": ENVIRONMENT},
        )
        return task.remote(job, list(marks))

    def _result(self, job: Job, task: Any) -> Result:
        try:
            answered: Result | Failure = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            raise job_failed(job, str(error)) from error
        except self._ray.exceptions.RayError as error:
            raise job_lost(job, type(error).__name__) from error
        if isinstance(answered, Failure):
            raise job_failed(job, answered.reason, answered.trace)
        return answered

    def _cancel(self, tasks: list[Any]) -> None:
        """Ask all to save and leave; those that take too long end with the cluster, or by force."""
        for task in tasks:
            self._ray.cancel(task, force=False)
        deadline = time.monotonic() + GRACE_SECONDS
        while tasks and time.monotonic() < deadline:
            _, tasks = self._ray.wait(tasks, num_returns=len(tasks), timeout=POLL_SECONDS)
        for task in tasks:
            self._ray.cancel(task, force=True)


class _Starts:
    """Which jobs have begun: a job opens its log first, on the file system that all share."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._before = {log_of(job.config): job for job in jobs}
        self._sizes = {log: _size(log) for log in self._before}

    def new(self) -> list[Job]:
        begun = [log for log in self._before if _size(log) != self._sizes[log]]
        return [self._before.pop(log) for log in begun]


def _size(log: Path) -> int:
    return log.stat().st_size if log.is_file() else -1


@contextmanager
def _marked(jobs: Sequence[Job]) -> Iterator[list[Path]]:
    """Files that a task must see where the jobs' folders are to be."""
    folders = {Path(job.config.run).resolve().parent for job in jobs}
    marks = [folder / f".shared-{secrets.token_hex(8)}" for folder in folders]
    try:
        for mark in marks:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        yield marks
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)


def _task(job: Job, marks: list[Path]) -> Result | Failure:
    """In a process of the cluster."""
    unseen = [mark for mark in marks if not mark.is_file()]
    if unseen:
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
        os._exit(1)  # for Ray a death: the job is made again
