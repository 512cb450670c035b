"""What travels from the reader to the workers: rows not yet checked, and where they came from."""

from typing import NamedTuple

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
