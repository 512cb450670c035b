"""Parquet files, row by row, reading only the columns that are asked for."""

import lzma
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dograph.data import chunks
from dograph.data.chunks import Bad, Fields, Lost, Row, pick
from dograph.errors import CorpusError, MissingExtraError, did_you_mean, require

_BATCH_ROWS = 64


class Columns(NamedTuple):
    """The columns of a table that hold the fields asked for."""

    text: str
    source: str | None


def read_parquet(path: Path, start: int, fields: Fields) -> Iterator[Row | Lost]:
    """Rows from number `start` on; what is damaged is told as `Lost` and the rest goes on."""
    pyarrow = require("pyarrow", "corpus")
    broken = (pyarrow.ArrowException, OSError, MemoryError)
    try:
        # without pre-buffering a row group is read as it is needed, not at once
        file = require("pyarrow.parquet", "corpus").ParquetFile(
            path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
        num_rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        names = list(file.schema_arrow.names)
    except broken as error:
        if start == 0:
            yield Lost(0, _unreadable(f"the file cannot be read ({_first_line(error)})"))
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
            for piece in _read_group(file, group, columns, fields, skip=row - begin):
                row += 1
                yield piece
        except broken as error:
            what = f"row group {group} is damaged ({_first_line(error)})"
            yield Lost(begin + rows - row, _unreadable(what)._replace(record=row))
        begin += rows


def _read_group(
    file: Any, group: int, columns: Columns, fields: Fields, skip: int
) -> Iterator[Row]:
    if skip >= file.metadata.row_group(group).num_rows:
        return
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
            picked = pick({columns.source: source}, fields.source) if fields.source else None
            if isinstance(picked, bytes):
                picked = picked.decode(errors="replace")
            yield Row(pick({columns.text: text}, fields.text), picked)


def _values(column: Any) -> list[object]:
    """A column as Python values; plain text as bytes, so that the worker judges its encoding."""
    pyarrow = require("pyarrow", "corpus")
    types = pyarrow.types
    if types.is_string(column.type) or types.is_large_string(column.type):
        binary = pyarrow.binary() if types.is_string(column.type) else pyarrow.large_binary()
        values: list[object] = column.cast(binary).to_pylist()
        return values
    return [_value(item) for item in column]


def _value(item: Any) -> object:
    try:
        value: object = item.as_py()
    except UnicodeDecodeError:  # in a nested column: the record counts as without the field
        return None
    return value


def find_columns(names: list[str], fields: Fields) -> Columns | Bad:
    found: list[str | None] = []
    for path in fields:
        column = path if path is None or path in names else path.partition(".")[0]
        if path is not None and column not in names:
            what = f"there is no column for the field {path!r}; {did_you_mean(path, names)}"
            return Bad(None, "missing field", what, "leaves the file out")
        found.append(column)
    text, source = found
    assert text is not None
    return Columns(text, source)


def _unreadable(what: str) -> Bad:
    return Bad(None, "damaged file", what, "keeps what can be read")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def count_rows(path: Path) -> int:
    """Rows in a file, 0 where it cannot be read."""
    pyarrow = require("pyarrow", "corpus")
    try:
        rows: int = require("pyarrow.parquet", "corpus").read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError):
        return 0
    return rows


# Compressed files as a stream of bytes, in constant memory, that notices where they break off.


READ_BYTES = 64 << 10
ARCHIVES = (".gz", ".xz", ".zst")


class BrokenArchiveError(CorpusError):
    """A compressed file ends too early or is damaged; everything before was handed out."""


class Block(NamedTuple):
    """Decompressed bytes, and how much of the file they and all before them took."""

    content: bytes
    consumed: int


def read_blocks(path: Path, offset: int = 0) -> Iterator[Block]:
    """The decompressed content of a file, from `offset` on."""
    with open(path, "rb") as file:
        if path.suffix not in ARCHIVES:
            file.seek(offset)
            while content := file.read(READ_BYTES):
                yield Block(content, file.tell())
            return
        for content in _streams(file, path.suffix):
            if offset < len(content):
                yield Block(content[offset:], file.tell())
            offset = max(offset - len(content), 0)


def _streams(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    """Every stream of an archive: several may follow each other in one file."""
    compressed = file.read(READ_BYTES)
    while compressed:
        compressed = yield from _one_stream(file, suffix, compressed)
        # xz pads with zeros between streams, tape archivers after the last one
        while not compressed.strip(b"\0"):
            compressed = file.read(READ_BYTES)
            if not compressed:
                return
        compressed = compressed.lstrip(b"\0")


def _one_stream(file: BinaryIO, suffix: str, compressed: bytes) -> Generator[bytes, None, bytes]:
    """One stream; returns the bytes after it."""
    broken: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, MemoryError)
    decoder: Any
    if suffix == ".gz":
        decoder = zlib.decompressobj(wbits=31)
        step = _step_zlib
    elif suffix == ".xz":
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_AUTO)
        step = _step_lzma
    else:
        zstandard = require("zstandard", "corpus")
        broken = (*broken, zstandard.ZstdError)
        # files made with `zstd --long` ask for a window of up to 2 GiB
        decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        step = _step_zstd
    while True:
        try:
            content, compressed = step(decoder, compressed)
        except broken as error:
            raise BrokenArchiveError(f"the archive is damaged ({error})") from error
        if content:
            yield content
        if decoder.eof:
            rest: bytes = decoder.unused_data + compressed
            return rest
        if not content and not compressed:
            compressed = file.read(READ_BYTES)
            if not compressed:
                raise BrokenArchiveError("the archive ends too early, it was cut off")


# A step hands out a bounded piece, so that a damaged archive loses only the last one and a highly
# compressed one never unfolds in memory at once. It returns the input it has not used yet.


def _step_zlib(decoder: Any, compressed: bytes) -> tuple[bytes, bytes]:
    content = decoder.decompress(compressed, READ_BYTES)
    # at the end of a stream the tail is also in unused_data
    return content, b"" if decoder.eof else decoder.unconsumed_tail


def _step_lzma(decoder: Any, compressed: bytes) -> tuple[bytes, bytes]:
    return decoder.decompress(compressed, READ_BYTES), b""


def _step_zstd(decoder: Any, compressed: bytes) -> tuple[bytes, bytes]:
    piece = 4096
    content = decoder.decompress(compressed[:piece])
    return content, compressed[piece:]


# Lines of a file, plain or compressed, in chunks that end where a line ends.


class Lines(NamedTuple):
    """Whole lines, then perhaps something bad, then bytes to pass over."""

    content: bytes
    consumed: int  # bytes of the file so far, as it is on disk
    bad: Bad | None = None
    skipped: int = 0  # bytes of a line that is too long to take, its line end included
    last: bool = False


def read_lines(path: Path, offset: int) -> Iterator[Lines]:
    """The file from a byte `offset` on (counted after decompression), in order.

    The last line may lack its end; where an archive breaks off, so may what it was cut to.
    """
    parts: list[bytes] = []
    size = unended = consumed = 0  # unended: bytes after the last line end
    blocks = _blocks(path, offset)
    bad = None
    for block in blocks:
        if isinstance(block, Bad):
            bad = block
            break
        content, consumed = block
        parts.append(content)
        size += len(content)
        cut = content.rfind(b"\n") + 1
        unended = len(content) - cut if cut else unended + len(content)
        if cut and size >= chunks.CHUNK_BYTES:
            joined = b"".join(parts)
            yield Lines(joined[: size - unended], consumed)
            parts, size = [joined[size - unended :]], unended
        elif unended > chunks.MAX_RECORD_BYTES:
            yield Lines(b"".join(parts)[: size - unended], consumed)
            skipped, rest, bad = _pass_over(blocks)
            yield Lines(b"", consumed, too_long(), unended + skipped)
            parts, size, unended = [rest], len(rest), len(rest) - rest.rfind(b"\n") - 1
    yield Lines(b"".join(parts), consumed, bad, last=True)


def _blocks(path: Path, offset: int) -> Iterator[Block | Bad]:
    """The blocks of a file; where it breaks off, what is wrong comes last."""
    try:
        yield from read_blocks(path, offset)
    except BrokenArchiveError as error:
        yield Bad(None, "broken archive", str(error), "keeps what comes before")


def too_long() -> Bad:
    limit = chunks.MAX_RECORD_BYTES >> 20
    what = f"this record is longer than {limit} MiB: is the file one object a line?"
    return Bad(None, "record too long", what, "skips the record")


def _pass_over(blocks: Iterator[Block | Bad]) -> tuple[int, bytes, Bad | None]:
    """Go on to the next line end: how many bytes that took, and what follows it."""
    skipped = 0
    for block in blocks:
        if isinstance(block, Bad):
            return skipped, b"", block
        end = block.content.find(b"\n")
        if end >= 0:
            return skipped + end + 1, block.content[end + 1 :], None
        skipped += len(block.content)
    return skipped, b"", None


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


def read_hub(hub: tuple[str, str | None], part: str, start: int, fields: Fields) -> Iterator[Row]:
    """Rows of one split on the hub, from row `start` on, never stored as a whole."""
    datasets = require("datasets", "corpus")
    name, config = hub
    with _named(f"hf:{name}"):
        stream = datasets.load_dataset(name, config, split=part, streaming=True)
    yield from _rows(stream.skip(start) if start else stream, f"hf:{name}@{part}", fields)


def read_disk(folder: Path, part: str | None, start: int, fields: Fields) -> Iterator[Row]:
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


def _rows(records: Iterable[dict[str, Any]], name: str, fields: Fields) -> Iterator[Row]:
    with _named(name):
        for record in records:
            source = pick(record, fields.source) if fields.source else None
            yield Row(pick(record, fields.text), source)


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
