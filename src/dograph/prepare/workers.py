"""Chunks encoded by several processes at once, handed back in the order they were read."""

import os
import signal
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from threading import Thread

from dograph.errors import CorpusError
from dograph.prepare.encode import Encoded, Encoder, Encoding
from dograph.prepare.inputs.chunks import Chunk

_SMALL_CHUNKS = 4  # an input of fewer is done sooner than a pool of processes starts
_AHEAD = 3  # chunks in flight for each worker

_encoder: Encoder | None = None  # of this worker process


def encode_in_order(
    chunks: Iterator[Chunk], encoding: Encoding, workers: int
) -> Generator[Encoded, None, None]:
    """Encode chunks, in order, with a bounded number of them in memory.

    What the reader raises comes after the chunks read before it, so that the first bad record in
    reading order is the one that is reported, and nothing read is lost.
    """
    stream = _with_error_last(chunks)
    head = list(islice(stream, _SMALL_CHUNKS))
    if len(head) < _SMALL_CHUNKS:
        encoder = Encoder(encoding)
        for item in head:
            if isinstance(item, CorpusError):
                raise item
            yield encoder(item)
    else:
        yield from _encode_in_pool(chain(head, stream), encoding, workers)


def _with_error_last(chunks: Iterator[Chunk]) -> Iterator[Chunk | CorpusError]:
    try:
        yield from chunks
    except CorpusError as error:
        yield error


def _encode_in_pool(
    stream: Iterator[Chunk | CorpusError], encoding: Encoding, workers: int
) -> Iterator[Encoded]:
    # spawn: the parent may hold threads of the tokenizer, which do not survive a fork
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=(encoding,)
    )
    pending: deque[Future[Encoded]] = deque()
    error = None
    try:
        for item in stream:
            if isinstance(item, CorpusError):
                error = item
                break
            with _interrupts_held():  # it starts the workers
                pending.append(pool.submit(_encode, item))
            if len(pending) >= _AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as dead:
        raise CorpusError(
            "a worker process died, most likely for want of memory; the same command goes on "
            f"where it stopped: try it with fewer workers than {workers} (--workers)"
        ) from dead
    finally:
        pool.shutdown(cancel_futures=True)
    if error is not None:
        raise error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started meanwhile hold them too: Ctrl-C is for the parent, which tells them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(encoding: Encoding) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    Thread(target=_leave_with_parent, daemon=True).start()
    _encoder = Encoder(encoding)


def _leave_with_parent() -> None:
    """A killed parent cannot tell its workers, and they would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(chunk: Chunk) -> Encoded:
    assert _encoder is not None
    return _encoder(chunk)
