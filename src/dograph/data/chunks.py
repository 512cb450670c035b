"""What travels from the reader to the workers: rows not yet checked, and where they came from."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from dograph.data.corpus import Split
from dograph.errors import CorpusError

# About this much text travels together: large enough to hide the cost of a message between two
# processes, small enough that a few of them in flight weigh nothing.
CHUNK_BYTES = 1 << 20
# A record longer than this is a mistake (a file without line ends), not a document.
MAX_RECORD_BYTES = 256 << 20


class Fields(NamedTuple):
    """Dotted paths of the text and of the source label inside a record."""

    text: str = "text"
    source: str | None = None


class Row(NamedTuple):
    """A record as found, unchecked: None stands for a field that is missing or null."""

    text: object  # str, or bytes that still have to be decoded
    source: object
    file: str | None = None  # where every record is a file of its own


class Bad(NamedTuple):
    """Something wrong with a record (or, with record None, with the whole input)."""

    record: int | None  # from 0
    kind: str  # one of a few; counted in the manifest
    what: str  # for people: what is wrong and where in the record
    repair: str  # what --bad-records repair does about it
    file: str | None = None


class Lost(NamedTuple):
    """Records that a reader could not get at, in their place among the rows."""

    records: int
    bad: Bad


class Position(NamedTuple):
    """Where reading goes on after a chunk."""

    input: int = 0
    record: int = 0
    offset: int = 0  # bytes into the decompressed lines
    consumed: int = 0  # bytes of the file as it is on disk, for the progress bar


class Chunk(NamedTuple):
    """Consecutive records of one input: raw JSON lines, or rows taken apart already."""

    input: int
    first: int  # number of its first record, from 0
    rows: bytes | list[Row]
    end: Position
    bad: list[Bad]  # what the reader itself had to mend


def pick(record: object, path: str) -> object:
    """The value at a dotted path, None where there is none; a key may itself hold dots."""
    if isinstance(record, dict):
        if path in record:
            return record[path]
        head, _, rest = path.partition(".")
        if rest and head in record:
            return pick(record[head], rest)
    return None


# What every kind of input is turned into before it is tokenised.


class Document(NamedTuple):
    """One text and the human label it came with."""

    source: str
    text: str


# One thing to read, as every later step sees it.


Kind = Literal["lines", "parquet", "text", "disk", "hub", "embedded", "megatron", "nanogpt"]
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Input:
    """One thing to read: a file, a folder of text, one split of a dataset."""

    kind: Kind
    name: str  # as the manifest and every message show it
    split: Split
    source: str | None  # None: each record says
    path: Path | None = None
    hub: tuple[str, str | None] | None = None  # dataset and config
    part: str | None = None  # split of a dataset

    @property
    def is_tokens(self) -> bool:
        """Whether it holds tokens made elsewhere, not text."""
        return self.kind in ("megatron", "nanogpt")


class Resolved(NamedTuple):
    """What to read, and what lies beside it and is not read."""

    inputs: list[Input]
    left_out: list[str]


def joined(found: Iterable[Resolved]) -> Resolved:
    """Several as one, in order."""
    inputs: list[Input] = []
    left_out: list[str] = []
    for one in found:
        inputs += one.inputs
        left_out += one.left_out
    return Resolved(inputs, left_out)


def listed(names: Sequence[str]) -> str | None:
    """Names in a line of bounded length, None where there are none."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more if names else None


# The files behind an input on disk: in what order, how large, and whether they have changed.


def walk(folder: Path) -> Iterator[Path]:
    """Every file under a folder (or the file itself), hidden ones apart, in a fixed order."""
    if folder.is_file():
        yield folder
        return
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))


def _unreadable(error: OSError) -> NoReturn:
    raise CorpusError(
        f"cannot look into {error.filename} ({error.strerror}); make it readable, or move it away"
    ) from error


def size_of(path: Path | None) -> int | None:
    """Bytes on disk, None where nobody knows."""
    if path is None:
        return None
    return sum(file.stat().st_size for file in walk(path))


def stamp(path: Path | None) -> str:
    """Changes when the input does: names, sizes and times of change, not contents."""
    digest = hashlib.blake2b(digest_size=16)
    for file in walk(path) if path is not None else ():
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
