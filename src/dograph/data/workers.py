"""Chunks encoded by several processes at once, handed back in the order they were read."""

import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from dograph.data.chunks import Chunk
from dograph.data.encode import Encoded, Encoder, Encoding
from dograph.errors import CorpusError

SMALL_CHUNKS = 4  # an input of fewer is done sooner than processes start
_AHEAD = 3  # chunks in flight for each worker

# Not `multiprocessing`: its processes first import the main module once more, with all that a
# training script or a notebook imports, and fork is no choice beside the tokenizer's threads.
_PROGRAM = "import sys; sys.path[:] = {path!r}; import dograph.data.worker as w; w.serve({fd})"


class Workers:
    """Processes that encode. They may be started before it is known how, to be ready by then."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._free: SimpleQueue[Connection] = SimpleQueue()
        self._threads = ThreadPoolExecutor(number)  # each waits for one worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that is not here
        self._threads.shutdown(cancel_futures=True)
        for process, connection in zip(self._processes, self._connections, strict=True):
            process.wait()
            connection.close()

    def start(self) -> None:
        """Start the processes, unless they are running."""
        while len(self._processes) < self.number:
            ours, theirs = Pipe()
            program = _PROGRAM.format(path=sys.path, fd=theirs.fileno())
            with theirs, _interrupts_held():
                process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
                self._processes.append(process)
                self._connections.append(ours)

    def encode_in_order(
        self, chunks: Iterator[Chunk], encoding: Encoding
    ) -> Generator[Encoded, None, None]:
        """Encode chunks, in order, with a bounded number of them in memory.

        What the reader raises comes after the chunks read before it, so that the first bad record
        in reading order is the one that is reported, and nothing read is lost.
        """
        stream = _with_error_last(chunks)
        head = [] if self._processes else list(islice(stream, SMALL_CHUNKS))
        if self._processes or len(head) == SMALL_CHUNKS:
            yield from self._encode_all(chain(head, stream), encoding)
            return
        encoder = Encoder(encoding)
        for item in head:
            if isinstance(item, CorpusError):
                raise item
            yield encoder(item)

    def _encode_all(
        self, stream: Iterator[Chunk | CorpusError], encoding: Encoding
    ) -> Iterator[Encoded]:
        self.start()
        for connection in self._connections:
            self._tell(connection, encoding)
            self._free.put(connection)
        pending: deque[Future[Encoded]] = deque()
        error = None
        for item in stream:
            if isinstance(item, CorpusError):
                error = item
                break
            pending.append(self._threads.submit(self._encode, item))
            if len(pending) >= _AHEAD * self.number:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        if error is not None:
            raise error

    def _encode(self, chunk: Chunk) -> Encoded:
        connection = self._free.get()
        try:
            self._tell(connection, chunk)
            answer: Encoded | Exception = connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        finally:
            self._free.put(connection)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _tell(self, connection: Connection, message: Encoding | Chunk) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._died() from error

    def _died(self) -> CorpusError:
        return CorpusError(
            "a worker process died, most likely for want of memory; the same command goes on "
            f"where it stopped: try it with fewer workers than {self.number} (--workers)"
        )


def _with_error_last(chunks: Iterator[Chunk]) -> Iterator[Chunk | CorpusError]:
    try:
        yield from chunks
    except CorpusError as error:
        yield error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started meanwhile hold them too: Ctrl-C is for the parent, which tells them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
