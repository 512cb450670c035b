"""Worker processes on this machine: started, given jobs, and ended with the parent process.

Not `multiprocessing`: its processes import the main module again, with everything that a training
script or a notebook imports, and fork is unsafe with the threads of libraries.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

GRACE_SECONDS = 30.0  # for a worker to save its state and exit
_STOP: Final = "stop"
_PROGRAM = "import sys; sys.path[:] = {path!r}; import {module} as w; w.serve({fd})"
# A worker is not a rank, even if torchrun started its parent.
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the container that this process runs in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and limit.read_text().strip().isdigit():
        total = min(total, int(limit.read_text()))
    return total


@dataclass(frozen=True, slots=True)
class Died:
    """In place of an answer: the worker died during the job."""

    why: str


@dataclass(slots=True, eq=False)
class Worker:
    """A process and its jobs, in the order in which it answers them."""

    process: subprocess.Popen[bytes]
    connection: Connection
    place: int  # its number in the pool
    jobs: deque[int] = field(default_factory=deque)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


@dataclass(slots=True)
class Workers(AbstractContextManager["Workers"]):
    """At most `number` processes that run `serve` of a module, until the `with` block ends."""

    number: int
    module: str
    environment: Mapping[str, str]
    _crew: list[Worker] = field(default_factory=list)

    def __exit__(self, *_: object) -> None:
        while self._crew:
            self._crew.pop().end()  # finished work was received or is on disk

    def start(self) -> Worker:
        """Start one more process, with the lowest free number."""
        taken = {worker.place for worker in self._crew}
        place = next(n for n in range(self.number) if n not in taken)
        kept = {name: value for name, value in os.environ.items() if name not in _TORCHRUN}
        ours, theirs = Pipe()
        program = _PROGRAM.format(path=sys.path, module=self.module, fd=theirs.fileno())
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=kept | dict(self.environment),
                process_group=0,  # Ctrl-C goes to the parent only, which stops them
            )
        self._crew.append(Worker(process, ours, place))
        return self._crew[-1]

    def least_busy(self) -> Worker:
        """The worker with the fewest jobs; a new one if all have jobs and the pool is not full."""
        least = min(self._crew, key=lambda worker: len(worker.jobs), default=None)
        if least is None or (least.jobs and len(self._crew) < self.number):
            return self.start()
        return least

    def give(self, worker: Worker, job: int, message: object) -> None:
        worker.jobs.append(job)
        with suppress(OSError):  # it is dead: `answers` notices that
            worker.connection.send(message)

    def answers(self, timeout: float | None) -> Iterator[tuple[int, Any]]:
        """Wait for the next answers, each with its job; Died if the worker died during it."""
        busy = {worker.connection: worker for worker in self._crew if worker.jobs}
        for connection in wait(list(busy), timeout):
            assert isinstance(connection, Connection)
            worker = busy[connection]
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                self._crew.remove(worker)
                worker.end()
                code = worker.process.returncode
                answer = Died(f"signal {-code}" if code < 0 else f"exit status {code}")
            yield worker.jobs.popleft(), answer

    def stop(self) -> None:
        """Ask busy workers to save and exit; end those that take too long."""
        busy = [worker for worker in self._crew if worker.jobs]
        for worker in busy:
            with suppress(OSError):
                worker.connection.send(_STOP)
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in busy:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - time.monotonic(), 0.0))
            worker.end()
            self._crew.remove(worker)


def serve(descriptor: int, answer: Callable[[Any], object]) -> None:
    """In a worker: answer messages in order until asked to stop, or until the parent is gone."""
    os.set_inheritable(descriptor, False)
    messages: SimpleQueue[Any] = SimpleQueue()

    def listen() -> None:
        """Receive also while a job runs, to notice a killed parent, and to never block a send."""
        with suppress(Exception):  # it is gone, or sends what cannot be unpickled here
            while (message := parent.recv()) != _STOP:
                messages.put(message)
        # A trainer saves and returns on this signal; otherwise it ends the process.
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_SECONDS)
        os._exit(1)

    with Connection(descriptor) as parent, suppress(OSError):  # the parent is gone
        threading.Thread(target=listen, daemon=True).start()
        while True:
            parent.send(answer(messages.get()))
