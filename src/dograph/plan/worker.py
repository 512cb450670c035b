"""A process that makes jobs: one in, its result out, until nobody is there to send another."""

import os
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Literal

from dograph.errors import DographError
from dograph.plan.jobs import Job, Result, Stopped, run_job

GRACE_SECONDS = 30.0  # to reach the next checkpoint
STOP: Literal["stop"] = "stop"

# Of every process that makes jobs. By default the allocator of Linux gives the pages of a large
# tensor back when it is freed, to take new ones in the next step: a third of a small model's time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way to the parent; the object itself may not travel."""

    reason: str
    trace: str


def serve(descriptor: int) -> None:
    """Answer on an open connection until told to stop, or until the parent is gone."""
    os.set_inheritable(descriptor, False)
    with Connection(descriptor) as parent:
        jobs: SimpleQueue[Job] = SimpleQueue()
        threading.Thread(target=_listen, args=(parent, jobs), daemon=True).start()
        try:
            while True:
                parent.send(answer(jobs.get()))
        except (Stopped, KeyboardInterrupt, OSError):  # asked once, asked twice, nobody hears it
            return


def _listen(parent: Connection, jobs: SimpleQueue[Job]) -> None:
    """Also while a job runs: a parent that was killed cannot tell anybody."""
    try:
        while True:
            message: Job | Literal["stop"] = parent.recv()
            if message == STOP:
                break
            jobs.put(message)
    except (EOFError, OSError):
        pass
    # A trainer notes it, saves and returns; outside of one it ends the process.
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_SECONDS)
    os._exit(1)


def answer(job: Job) -> Result | Failure:
    """What a job came to, or why it failed. Stopped goes through."""
    try:
        return run_job(job)
    except Stopped:
        raise
    except Exception as error:
        kind = "" if isinstance(error, DographError) else f"{type(error).__name__}: "
        return Failure(f"{kind}{error}", traceback.format_exc())
