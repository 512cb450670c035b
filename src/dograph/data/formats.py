"""The file formats of text: lines (plain or compressed), parquet, Hugging Face datasets."""

import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dograph.data import chunks
from dograph.data.chunks import Bad, Chunk, Fields, Lost, Position, RawRow, pick
from dograph.errors import CorpusError, MissingExtraError, did_you_mean, require

# Compressed files as a stream of bytes, in constant memory, that notices where they break off.

READ_BYTES = 64 << 10
ARCHIVES = (".gz", ".xz", ".zst")


class BrokenArchiveError(CorpusError):
    """A compressed file ends too early or is damaged; everything before was handed out."""


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
    """Every stream of an archive: several may follow each other in one file.

    It hands out bounded pieces, so that a damaged archive loses only the last one and a highly
    compressed one never unfolds in memory at once.
    """
    broken: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, MemoryError)
    if suffix == ".zst":
        zstandard = require("zstandard", "corpus")
        broken = (*broken, zstandard.ZstdError)
    compressed = file.read(READ_BYTES)
    while compressed:
        decoder: Any
        if suffix == ".gz":
            decoder = zlib.decompressobj(wbits=31)
        elif suffix == ".xz":
            decoder = lzma.LZMADecompressor(format=lzma.FORMAT_AUTO)
        else:  # files made with `zstd --long` ask for a window of up to 2 GiB
            decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        while not decoder.eof:
            try:
                if suffix == ".zst":  # what it puts out has no bound, so what it takes in gets one
                    content = decoder.decompress(compressed[:4096])
                    compressed = compressed[4096:]
                else:
                    content = decoder.decompress(compressed, READ_BYTES)
                    # at the end of a stream the tail is also in unused_data
                    is_used = suffix == ".xz" or decoder.eof
                    compressed = b"" if is_used else decoder.unconsumed_tail
            except broken as error:
                raise BrokenArchiveError(f"the archive is damaged ({error})") from error
            if content:
                yield content
            elif not compressed and not decoder.eof:
                compressed = file.read(READ_BYTES)
                if not compressed:
                    raise BrokenArchiveError("the archive ends too early, it was cut off")
        compressed = decoder.unused_data + compressed
        # xz pads with zeros between streams, tape archivers after the last one
        while not compressed.strip(b"\0"):
            compressed = file.read(READ_BYTES)
            if not compressed:
                return
        compressed = compressed.lstrip(b"\0")


def read_lines(path: Path, start: Position) -> Iterator[Chunk]:
    """Lines of a file, plain or compressed, in chunks that end where a line ends.

    The last line may lack its end; where an archive breaks off, so may what it was cut to.
    """
    record, offset = start.record, start.offset

    def chunk(content: bytes, consumed: int, bad: Bad | None = None, skipped: int = 0) -> Chunk:
        """Whole lines, then perhaps something bad, then bytes of a line to pass over."""
        nonlocal record, offset
        first = record
        record += content.count(b"\n")
        bads = [] if bad is None else [bad._replace(record=record)]
        record += bool(skipped) or (bool(content) and not content.endswith(b"\n"))
        offset += len(content) + skipped
        end = Position(start.input, record, offset, consumed)
        return Chunk(start.input, first, content, end, bads)

    parts: list[bytes] = []
    size = unended = consumed = 0  # unended: bytes after the last line end
    skipped = 0  # bytes so far of a line that is too long to take
    bad = None
    try:
        for content, consumed in read_blocks(path, offset):
            rest = content
            if skipped:
                end = content.find(b"\n") + 1
                skipped += end or len(content)
                if not end:
                    continue
                yield chunk(b"", consumed, too_long(), skipped)
                rest, skipped = content[end:], 0
            parts.append(rest)
            size += len(rest)
            cut = rest.rfind(b"\n") + 1
            unended = len(rest) - cut if cut else unended + len(rest)
            if cut and size >= chunks.CHUNK_BYTES:
                joined = b"".join(parts)
                yield chunk(joined[: size - unended], consumed)
                parts, size = [joined[size - unended :]], unended
            elif unended > chunks.MAX_RECORD_BYTES:
                yield chunk(b"".join(parts)[: size - unended], consumed)
                parts, size, unended, skipped = [], 0, 0, unended
    except BrokenArchiveError as error:
        bad = Bad(None, "broken archive", str(error), "keeps what comes before")
    if skipped:
        yield chunk(b"", consumed, too_long(), skipped)
    # what is wrong at its end must not be met again on resuming
    yield chunk(b"".join(parts), consumed, bad)._replace(end=Position(start.input + 1))


def too_long() -> Bad:
    limit = chunks.MAX_RECORD_BYTES >> 20
    what = f"this record is longer than {limit} MiB: is the file one object a line?"
    return Bad(None, "record too long", what, "skips the record")


# Parquet files, row by row, reading only the columns that are asked for.

_BATCH_ROWS = 64


def read_parquet(path: Path, start: int, fields: Fields) -> Iterator[RawRow | Lost]:
    """Rows from number `start` on; what is damaged is told as `Lost` and the rest goes on."""
    pyarrow = require("pyarrow", "corpus")
    broken = (pyarrow.ArrowException, OSError, MemoryError)

    def damaged(what: str, error: Exception, record: int | None = None) -> Bad:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return Bad(record, "damaged file", f"{what} ({reason})", "keeps what can be read")

    try:
        # without pre-buffering a row group is read as it is needed, not at once
        file = require("pyarrow.parquet", "corpus").ParquetFile(
            path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
        num_rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        names = list(file.schema_arrow.names)
    except broken as error:
        if start == 0:
            yield Lost(0, damaged("the file cannot be read", error))
        return
    columns = find_columns(names, fields)
    if isinstance(columns, Bad):
        if start == 0:
            yield Lost(sum(num_rows), columns)
        return
    begin = 0
    for group, rows in enumerate(num_rows):
        row = max(start, begin)
        try:
            if row < begin + rows:
                for piece in _read_group(file, group, columns, fields, skip=row - begin):
                    row += 1
                    yield piece
        except broken as error:
            bad = damaged(f"row group {group} is damaged", error, row)
            yield Lost(begin + rows - row, bad)
        begin += rows


def _read_group(
    file: Any, group: int, columns: Fields, fields: Fields, skip: int
) -> Iterator[RawRow]:
    wanted = [name for name in columns if name]
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=wanted):
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        texts = _values(batch.column(columns.text)[skip:])
        sources: list[object] = [None] * len(texts)
        if columns.source:
            sources = _values(batch.column(columns.source)[skip:])
        skip = 0
        for text, source in zip(texts, sources, strict=True):
            picked = pick({columns.source: source}, fields.source)
            if isinstance(picked, bytes):
                picked = picked.decode(errors="replace")
            yield RawRow(pick({columns.text: text}, fields.text), picked)


def _values(column: Any) -> list[object]:
    """A column as Python values; plain text as bytes, so that the worker judges its encoding."""
    pyarrow = require("pyarrow", "corpus")
    types = pyarrow.types
    if types.is_string(column.type) or types.is_large_string(column.type):
        binary = pyarrow.binary() if types.is_string(column.type) else pyarrow.large_binary()
        column = column.cast(binary)
    values: list[object] = []
    for item in column:
        try:
            values.append(item.as_py())
        except UnicodeDecodeError:  # in a nested column: the record counts as without the field
            values.append(None)
    return values


def find_columns(names: list[str], fields: Fields) -> Fields | Bad:
    """The columns that hold the fields asked for."""
    found = []
    for path in fields:
        column = path if path is None or path in names else path.partition(".")[0]
        if path is not None and column not in names:
            what = f"there is no column for the field {path!r}; {did_you_mean(path, names)}"
            return Bad(None, "missing field", what, "leaves the file out")
        found.append(column)
    text, source = found
    assert text is not None
    return Fields(text, source)


def count_rows(path: Path) -> int:
    """Rows in a file, 0 where it cannot be read."""
    pyarrow = require("pyarrow", "corpus")
    try:
        rows: int = require("pyarrow.parquet", "corpus").read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError):
        return 0
    return rows


# Hugging Face datasets: by name from the hub (streamed), or saved on disk.


def hub_splits(name: str, config: str | None) -> list[str]:
    """The splits of a dataset on the hub."""
    datasets = require("datasets", "corpus")
    with _named(f"hf:{name}"):
        splits: list[str] = datasets.get_dataset_split_names(name, config)
    return splits


def disk_splits(folder: Path) -> list[str] | None:
    """The splits of a dataset saved on disk; None where it was saved without any."""
    datasets = require("datasets", "corpus")
    with _named(str(folder)):
        loaded = datasets.load_from_disk(str(folder))
    return sorted(loaded) if isinstance(loaded, datasets.DatasetDict) else None


def read_hub(
    hub: tuple[str, str | None], part: str, start: int, fields: Fields
) -> Iterator[RawRow]:
    """Rows of one split on the hub, from row `start` on, never stored as a whole."""
    datasets = require("datasets", "corpus")
    name, config = hub
    with _named(f"hf:{name}"):
        stream = datasets.load_dataset(name, config, split=part, streaming=True)
    yield from _rows(stream.skip(start) if start else stream, f"hf:{name}@{part}", fields)


def read_disk(folder: Path, part: str | None, start: int, fields: Fields) -> Iterator[RawRow]:
    """Rows of a dataset saved on disk, from row `start` on."""
    datasets = require("datasets", "corpus")
    with _named(str(folder)):
        loaded = datasets.load_from_disk(str(folder))
        dataset = loaded[part] if part else loaded
        names = list(dataset.column_names)
    columns = find_columns(names, fields)
    if isinstance(columns, Bad):
        raise CorpusError(f"{folder}: {columns.what}")
    if start < len(dataset):
        with _named(str(folder)):
            dataset = dataset.select_columns(sorted({name for name in columns if name}))
            dataset = dataset.select(range(start, len(dataset)))
        yield from _rows(dataset, str(folder), fields)


def _rows(records: Iterable[dict[str, Any]], name: str, fields: Fields) -> Iterator[RawRow]:
    with _named(name):
        for record in records:
            yield RawRow(pick(record, fields.text), pick(record, fields.source))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Give any failure of the library the name of the dataset."""
    try:
        yield
    except (MissingExtraError, GeneratorExit):
        raise
    # the library lets through what its file systems, parsers and network layers raise
    except Exception as error:
        raise CorpusError(
            f"cannot read the dataset {name}: {type(error).__name__}: {error}. "
            "Check its name, split and the connection, or that its files are whole"
        ) from error
