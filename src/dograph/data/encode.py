"""What a worker does: raw records in, tokens per split and source out.

The result depends on the records alone, never on how they were gathered into chunks, so the
corpus is the same for any number of workers and after any interruption.
"""

import hashlib
import signal
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np

from dograph.data.chunks import Bad, Chunk, Fields, Input, Position
from dograph.data.readers import Checker, Reading, Text, read_chunks
from dograph.data.tokenizer import open_tokenizer
from dograph.errors import CorpusError
from dograph.rng import key64

if TYPE_CHECKING:
    from dograph.data.corpus import Split

Purpose = Literal["validation", "keep"]
# A document while it is being prepared: DOCUMENT_DTYPE and what finishing needs to know of it.
RAW_DOCUMENT_DTYPE = np.dtype(
    [
        ("end", "<i8"),
        ("record", "<i8"),
        ("input", "<i4"),
        ("bytes", "<u4"),  # of its text in UTF-8
        ("hash", "<u8"),  # keyed hash of its text: decides the split
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How records become tokens; plain values, so that it travels to the workers."""

    tokenizer: str  # path of a tokenizer.json
    eot_id: int
    dtype: Literal["uint16", "uint32"]
    fields: Fields
    splits: "tuple[Split, ...]"  # by input
    sources: tuple[str | None, ...]  # by input; None: each record says
    only: frozenset[str] | None  # documents of other sources are left out
    keep: float  # of the training documents; given validation text stays whole
    validation_fraction: float  # of the training documents kept
    seed: int
    repair: bool


class Group(NamedTuple):
    """The documents of a chunk that go to one split of one source."""

    split: "Split"
    source: str
    token_N: np.ndarray
    document_M: np.ndarray  # of RAW_DOCUMENT_DTYPE, ends counted from this group's first token
    unkept_documents: int = 0  # left out by --keep
    unkept_bytes: int = 0


class Encoded(NamedTuple):
    """A chunk, encoded."""

    input: int
    end: Position
    groups: list[Group]
    bad: list[Bad]
    excluded: dict[str, int]  # documents left out, by source


@dataclass(slots=True)
class _Gathering:
    # unlike a list, it takes 4 bytes a token and becomes a numpy array at once
    ids: "array[int]" = field(default_factory=lambda: array("I"))
    documents: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    unkept_documents: int = 0
    unkept_bytes: int = 0


class Encoder:
    """Turns chunks into tokens. Every worker process holds one."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.tokenizer = open_tokenizer(encoding.tokenizer)
        self.threshold = hash_threshold(encoding.validation_fraction)

    def __call__(self, chunk: Chunk) -> Encoded:
        """Encode a chunk; raises RefusedRecordError at its first bad record if none is allowed."""
        how = self.encoding
        split = how.splits[chunk.input]
        checker = Checker(chunk, how.fields, how.sources[chunk.input], repair=how.repair)
        groups: dict[tuple[Split, str], _Gathering] = {}
        excluded: dict[str, int] = {}
        texts: list[Text] = []
        for text in checker.texts():
            if how.only is not None and text.source not in how.only:
                excluded[text.source] = excluded.get(text.source, 0) + 1
            elif not text.content:
                what = Bad(text.record, "empty", "the text is empty", "skips it", text.file)
                checker.bad.append(what)
                groups.setdefault((split, text.source), _Gathering())  # the source is known of
            elif split == "train" and not is_kept(text.content, how.keep, how.seed):
                group = groups.setdefault((split, text.source), _Gathering())
                group.unkept_documents += 1
                group.unkept_bytes += len(text.content)
            else:
                texts.append(text)
        for text, ids in zip(texts, self._encode(checker, texts), strict=True):
            if ids is None:
                groups.setdefault((split, text.source), _Gathering())
                continue
            digest = text_hash(text.content, how.seed, "validation")
            held_out: Split = "validation" if digest < self.threshold else "train"
            key = (held_out if split == "train" else split, text.source)
            group = groups.setdefault(key, _Gathering())
            group.ids.fromlist(ids)
            group.ids.append(how.eot_id)
            group.documents.append(
                (len(group.ids), text.record, chunk.input, len(text.content), digest)
            )
        made = [
            Group(
                *key,
                np.array(g.ids, how.dtype),
                np.array(g.documents, RAW_DOCUMENT_DTYPE),
                g.unkept_documents,
                g.unkept_bytes,
            )
            for key, g in groups.items()
        ]
        # in the order of the records, however they were gathered
        bad = sorted([*checker.bad, *chunk.bad], key=lambda entry: entry.record or 0)
        return Encoded(chunk.input, chunk.end, made, bad, excluded)

    def _encode(self, checker: Checker, texts: list[Text]) -> Iterable[list[int] | None]:
        """The tokens of each text; None for one that cannot be encoded and may be skipped."""
        batch = [text.text for text in texts]
        try:
            encoded = self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        # the library raises bare Exceptions; taken one by one, the record can be named
        except Exception:
            return [self._encode_one(checker, text) for text in texts]
        return (encoding.ids for encoding in encoded)

    def _encode_one(self, checker: Checker, text: Text) -> list[int] | None:
        try:
            ids: list[int] = self.tokenizer.encode(text.text, add_special_tokens=False).ids
        except Exception as error:
            what = f"the tokenizer cannot encode this text ({error}); another one may"
            checker.complain(Bad(text.record, "not encodable", what, "skips it", text.file))
            return None
        return ids


def text_hash(content: bytes, seed: int, purpose: Purpose) -> int:
    """64 bits that depend on the text, the seed and the purpose alone: equal texts stay together.

    Hashes for two purposes are independent, so what is held out is a fair share of what is kept.
    """
    digest = hashlib.blake2b(content, digest_size=8, key=_hash_key(seed, purpose)).digest()
    return int.from_bytes(digest, "little")


@cache
def _hash_key(seed: int, purpose: Purpose) -> bytes:
    return key64(seed, purpose).to_bytes(8, "little")


def hash_threshold(fraction: float) -> int:
    """This fraction of all texts has a hash below it."""
    return round(fraction * 2**64)


def is_kept(content: bytes, keep: float, seed: int) -> bool:
    """Whether a text is in the slice; what a fraction keeps, every larger one keeps too."""
    return keep == 1 or text_hash(content, seed, "keep") < hash_threshold(keep)


# A bounded, fixed sample of the training text, to train a tokenizer on.


SAMPLE_BYTES = 20_000_000


def sample_texts(
    inputs: list[Input],
    reading: Reading,
    *,
    keep: float,
    validation_fraction: float,
    only: frozenset[str] | None,
) -> Iterator[str]:
    """The first texts to be trained on of each training input, an equal amount of each."""
    threshold = hash_threshold(validation_fraction)

    def is_trained_on(text: Text) -> bool:
        return (
            (only is None or text.source in only)
            and is_kept(text.content, keep, reading.seed)
            and text_hash(text.content, reading.seed, "validation") >= threshold
        )

    training = [entry for entry in inputs if entry.split == "train"]
    for entry in training:
        yield from _first_texts(entry, reading, SAMPLE_BYTES // len(training), is_trained_on)


def _first_texts(
    entry: Input, reading: Reading, size: int, wanted: Callable[[Text], bool]
) -> Iterator[str]:
    # bad records are passed over here: reading everything will name the first of them
    lenient = reading._replace(policy="repair")
    for chunk in read_chunks([entry], Position(), lenient):
        for text in Checker(chunk, reading.fields, entry.source, repair=True).texts():
            if not wanted(text):
                continue
            yield text.text
            size -= len(text.content)
            if size <= 0:
                return


# Chunks encoded by several processes at once, handed back in the order they were read.


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
