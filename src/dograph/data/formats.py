"""File formats of text, read as records that are not checked yet: lines, parquet, datasets."""

import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dograph.errors import CorpusError, MissingExtraError, did_you_mean, require

# Size of a chunk of text: large enough to hide the cost of sending it to another process, small
# enough that several in flight need little memory.
CHUNK_BYTES = 1 << 20
# A longer record is a mistake (a file without line ends), not a document.
MAX_RECORD_BYTES = 256 << 20
READ_BYTES = 64 << 10
# Of an archive at a time: few enough that a highly compressed one never fills the memory.
_ARCHIVE_BYTES = 4096
# Files made with `zstd --long` need a window of up to 2 GiB.
_DECODERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".xz": lambda: lzma.LZMADecompressor(format=lzma.FORMAT_AUTO),
    ".zst": lambda: (
        require("zstandard", "corpus").ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    ),
}
ARCHIVES = tuple(_DECODERS)
_BATCH_ROWS = 64
Place = Path | tuple[str, str | None]  # of a dataset: its folder, or its name and config on the hub


class Fields(NamedTuple):
    """Dotted paths of the text and of the source label inside a record."""

    text: str = "text"
    source: str | None = None


class RawRow(NamedTuple):
    """A record as read, unchecked: None if a field is missing or null."""

    text: object  # str, or bytes that still have to be decoded
    source: object
    file: str | None = None  # if every record is a file of its own
    consumed: int | None = None  # as in Line; None: as many bytes as its text


class Line(NamedTuple):
    """A line of JSON as read, not parsed yet."""

    content: bytes  # without its end
    end: int  # offset of the next line in the decompressed file
    consumed: int  # bytes of the file as it is on disk that were read so far


class Bad(NamedTuple):
    """A problem with a record (or, with record None, with the whole input)."""

    record: int | None  # from 0
    kind: str  # one of a few; counted in the manifest
    what: str  # the problem, for the error message
    repair: str  # what --bad-records repair does about it
    file: str | None = None
    lost: int = 0  # records that could not be read, at this place among the rows


class Position(NamedTuple):
    """Where reading continues after a chunk."""

    input: int = 0
    record: int = 0
    offset: int = 0  # bytes into the decompressed lines
    consumed: int = 0  # bytes of the file as it is on disk, for the progress bar


class Chunk(NamedTuple):
    """Consecutive records of one input."""

    input: int
    first: int  # number of its first record, from 0
    rows: list[RawRow | Line]
    end: Position
    bad: list[Bad]  # problems that the reader itself met


def pick(record: object, path: str | None) -> object:
    """The value at a dotted path, None if there is none; a key may itself contain dots."""
    if isinstance(record, dict) and path is not None:
        if path in record:
            return record[path]
        head, _, rest = path.partition(".")
        if rest and head in record:
            return pick(record[head], rest)
    return None


class BrokenArchiveError(CorpusError):
    """A compressed file ends too early or is damaged; everything before was read."""


def read_blocks(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """The decompressed content from `offset` on, and how much of the file was read for it."""
    with open(path, "rb") as file:
        if path.suffix not in ARCHIVES:
            file.seek(offset)
            while content := file.read(READ_BYTES):
                yield content, file.tell()
            return
        for content in _decompressed(file, path.suffix):
            if offset < len(content):
                yield content[offset:], file.tell()
            offset = max(offset - len(content), 0)


def _decompressed(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    """The content of all streams of an archive, in pieces: damage loses only the last one."""
    compressed = file.read(_ARCHIVE_BYTES)
    while compressed:
        decoder = _DECODERS[suffix]()
        while not decoder.eof:
            if not compressed:
                raise BrokenArchiveError("the archive ends too early, it was cut off")
            try:
                content = decoder.decompress(compressed)
            except Exception as error:  # every library has its own
                raise BrokenArchiveError(f"the archive is damaged ({error})") from error
            for at in range(0, len(content), READ_BYTES):
                yield content[at : at + READ_BYTES]
            compressed = decoder.unused_data if decoder.eof else file.read(_ARCHIVE_BYTES)
        # xz pads with zeros between streams, tape archivers after the last one
        while not (compressed := compressed.lstrip(b"\0")):
            if not (compressed := file.read(_ARCHIVE_BYTES)):
                return


def read_lines(path: Path, start: Position) -> Iterator[Line | Bad]:
    """Lines of a file, plain or compressed; the last may have no end.

    Of a line that is too long only the length is kept: it is reported, and read as an empty one.
    """
    record, end, consumed = start.record, start.offset, 0
    pending, skipped = bytearray(), 0  # a line so far, and bytes of it that are not kept
    bad = None
    try:
        for content, consumed in read_blocks(path, start.offset):
            first, *others = content.split(b"\n")
            pending += first
            for following in others:
                end += skipped + len(pending) + 1
                if skipped:
                    yield too_long(record)
                yield Line(b"" if skipped else bytes(pending), end, consumed)
                record, pending, skipped = record + 1, bytearray(following), 0
            if len(pending) > MAX_RECORD_BYTES:
                pending, skipped = bytearray(), skipped + len(pending)
    except BrokenArchiveError as error:
        bad = Bad(record, "broken archive", str(error), "keeps what comes before")
    if skipped:
        yield too_long(record)
    elif pending:
        yield Line(bytes(pending), end + len(pending), consumed)
    if bad is not None:
        yield bad


def too_long(record: int | None = None, file: str | None = None) -> Bad:
    what = (
        f"this record is longer than {MAX_RECORD_BYTES >> 20} MiB: is the file one object a line?"
    )
    return Bad(record, "record too long", what, "skips the record", file, lost=file is not None)


def read_parquet(path: Path, start: int, fields: Fields) -> Iterator[RawRow | Bad]:
    """Rows from number `start` on, of the needed columns; a damaged row group loses no other."""
    pyarrow = require("pyarrow", "corpus")
    broken = (pyarrow.ArrowException, OSError, MemoryError)

    def damaged(what: str, error: Exception, record: int | None, lost: int) -> Bad:
        what += f" ({(str(error) or type(error).__name__).splitlines()[0]})"
        return Bad(record, "damaged file", what, "keeps what can be read", lost=lost)

    try:
        # without pre-buffering a row group is read as it is needed, not at once
        file = require("pyarrow.parquet", "corpus").ParquetFile(
            path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
        num_rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        row_bytes = path.stat().st_size / max(sum(num_rows), 1)  # on disk: compressed
        columns = find_columns(list(file.schema_arrow.names), fields)
    except broken as error:
        num_rows, columns = [], damaged("the file cannot be read", error, None, 0)
    if isinstance(columns, Bad):
        if start == 0:
            yield columns._replace(lost=sum(num_rows))
        return
    begin = 0
    for group, rows in enumerate(num_rows):
        row = max(start, begin)
        try:
            if row < begin + rows:
                for piece in _rows(file, group, columns, fields, skip=row - begin):
                    row += 1
                    yield piece._replace(consumed=int(row * row_bytes))
        except broken as error:
            yield damaged(f"row group {group} is damaged", error, row, begin + rows - row)
        begin += rows


def _rows(file: Any, group: int, columns: Fields, fields: Fields, skip: int) -> Iterator[RawRow]:
    wanted = list(dict.fromkeys(name for name in columns if name))
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted):
        values = [_values(batch.column(name)[skip:]) for name in wanted]
        skip = max(skip - batch.num_rows, 0)
        for row in zip(*values, strict=True):
            record = dict(zip(wanted, row, strict=True))
            source = pick(record, fields.source)
            if isinstance(source, bytes):
                source = source.decode(errors="replace")
            yield RawRow(pick(record, fields.text), source)


def _values(column: Any) -> list[object]:
    """A column as Python values; plain text as bytes, so that the worker checks its encoding."""
    pyarrow = require("pyarrow", "corpus")
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        column = column.cast(pyarrow.large_binary())
    values: list[object] = []
    for item in column:
        try:
            values.append(item.as_py())
        except UnicodeDecodeError:  # in a nested column: the field counts as missing
            values.append(None)
    return values


def find_columns(names: list[str], fields: Fields) -> Fields | Bad:
    """The columns that hold these fields."""
    columns = [p if p is None or p in names else p.partition(".")[0] for p in fields]
    for path, column in zip(fields, columns, strict=True):
        if path is not None and column not in names:
            what = f"there is no column for the field {path!r}; {did_you_mean(path, names)}"
            return Bad(None, "missing field", what, "leaves the file out")
    return Fields(columns[0] or "", columns[1])


@contextmanager
def _open_dataset(place: Place, part: str | None = None) -> Iterator[Any]:
    """The `datasets` library; its errors get the name of the dataset."""
    split = f"@{part}" if part else ""
    name = str(place) if isinstance(place, Path) else f"hf:{place[0]}{split}"
    try:
        yield require("datasets", "corpus")
    except (CorpusError, MissingExtraError, GeneratorExit):
        raise
    # the library lets through whatever its file systems, parsers and network layers raise
    except Exception as error:
        raise CorpusError(
            f"cannot read the dataset {name}: {type(error).__name__}: {error}. "
            "Check its name, split and the connection, or that its files are complete"
        ) from error


def dataset_splits(place: Place) -> list[str]:
    """The splits of a dataset on the hub or on disk; empty if it was saved without splits."""
    with _open_dataset(place) as datasets:
        if isinstance(place, tuple):
            return list(datasets.get_dataset_split_names(*place))
        loaded = datasets.load_from_disk(str(place))
        return sorted(loaded) if isinstance(loaded, datasets.DatasetDict) else []


def read_dataset(place: Place, part: str | None, start: int, fields: Fields) -> Iterator[RawRow]:
    """Rows of one split from number `start` on: saved on disk, or streamed from the hub."""
    with _open_dataset(place, part) as datasets:
        if isinstance(place, Path):
            loaded = datasets.load_from_disk(str(place))
            rows = loaded[part] if part else loaded
            columns = find_columns(list(rows.column_names), fields)
            if isinstance(columns, Bad):
                raise CorpusError(f"{place}: {columns.what}")
            rows = rows.select_columns(sorted({name for name in columns if name}))
            if start >= len(rows):
                return
        else:
            rows = datasets.load_dataset(*place, split=part, streaming=True)
        for row in rows.skip(start) if start else rows:
            yield RawRow(pick(row, fields.text), pick(row, fields.source))
