"""What is read, and what travels from the reader to the workers: records not yet checked."""

import hashlib
import os
from collections.abc import Iterator, Sequence
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
Kind = Literal["lines", "parquet", "text", "disk", "hub", "embedded", "megatron", "nanogpt"]


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

    @property
    def size(self) -> int | None:
        """Bytes on disk, None where nobody knows."""
        return None if self.path is None else sum(file.stat().st_size for file in walk(self.path))


class Fields(NamedTuple):
    """Dotted paths of the text and of the source label inside a record."""

    text: str = "text"
    source: str | None = None


class RawRow(NamedTuple):
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
    rows: bytes | list[RawRow]
    end: Position
    bad: list[Bad]  # what the reader itself had to mend


def pick(record: object, path: str | None) -> object:
    """The value at a dotted path, None where there is none; a key may itself hold dots."""
    if isinstance(record, dict) and path is not None:
        if path in record:
            return record[path]
        head, _, rest = path.partition(".")
        if rest and head in record:
            return pick(record[head], rest)
    return None


def listed(names: Sequence[str], most: int = 20) -> str | None:
    """Names in a line of bounded length, None where there are none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else None


def walk(folder: Path) -> Iterator[Path]:
    """Every file under a folder (or the file itself), hidden ones apart, in a fixed order."""

    def unreadable(error: OSError) -> NoReturn:
        raise CorpusError(
            f"cannot look into {error.filename} ({error.strerror}); make it readable, or move it "
            "away"
        ) from error

    if folder.is_file():
        yield folder
        return
    for root, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))


def stamp(path: Path | None) -> str:
    """Changes when the input does: names, sizes and times of change, not contents."""
    digest = hashlib.blake2b(digest_size=16)
    for file in walk(path) if path is not None else ():
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
