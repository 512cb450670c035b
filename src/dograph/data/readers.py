"""Readers: every kind of text input as chunks of records, in order, from any record on."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from dograph.data import chunks
from dograph.data.chunks import Bad, Chunk, Fields, Input, Lost, Position, Row, pick, walk
from dograph.data.formats import count_rows, read_disk, read_hub, read_lines, read_parquet, too_long
from dograph.errors import CorpusError

_CHUNK_ROWS = 4096
BadRecords = Literal["refuse", "repair"]


class Reading(NamedTuple):
    """How records are read, the same for every input."""

    fields: Fields
    policy: BadRecords
    seed: int = 0  # of the planted corpora
    noise: bool = False


def read_chunks(inputs: list[Input], start: Position, reading: Reading) -> Iterator[Chunk]:
    """All records of all inputs, in order, from `start` on."""
    for index in range(start.input, len(inputs)):
        position = start if index == start.input else Position(input=index)
        if inputs[index].kind == "lines":
            yield from _read_lines(inputs[index], position, reading.policy)
        else:
            yield from _read_rows(inputs[index], position, reading)


def where(entry: Input, bad: Bad) -> str:
    """The place of a bad record, for people: lines and rows count from 1."""
    if bad.file is not None:
        return bad.file
    if bad.record is None:
        return entry.name
    return f"{entry.name}:{bad.record + 1}"


def refusal(place: str, bad: Bad) -> CorpusError:
    return CorpusError(
        f"{place}: {bad.what}. Mend it, or pass --bad-records repair, which {bad.repair} "
        "and counts it in the manifest"
    )


def _rows(entry: Input, start: int, reading: Reading) -> Iterator[Row | Lost]:
    if entry.hub is not None and entry.part is not None:
        return read_hub(entry.hub, entry.part, start, reading.fields)
    if entry.path is None:
        return islice(_read_embedded(entry.name, reading), start, None)
    if entry.kind == "disk":
        return read_disk(entry.path, entry.part, start, reading.fields)
    if entry.kind == "parquet":
        return read_parquet(entry.path, start, reading.fields)
    return islice(_read_texts(entry.path), start, None)


def _read_texts(folder: Path) -> Iterator[Row | Lost]:
    for path in walk(folder):
        size = path.stat().st_size
        if size > chunks.MAX_RECORD_BYTES:
            yield Lost(1, too_long()._replace(file=str(path)))
        else:
            yield Row(path.read_bytes(), None, str(path))


def _read_embedded(name: str, reading: Reading) -> Iterator[Row]:
    if name == "demo":
        from dograph.data import embedded as demo

        documents = demo.demo_documents()
    else:
        from dograph.data import embedded as planted

        kind: Literal["unigram", "bigram"] = "unigram" if name == "unigram" else "bigram"
        documents = planted.planted_documents(kind, noise=reading.noise, seed=reading.seed)
    return (Row(document.text, document.source) for document in documents)


def _read_lines(entry: Input, start: Position, policy: BadRecords) -> Iterator[Chunk]:
    assert entry.path is not None
    record, offset = start.record, start.offset
    for content, consumed, bad, skipped, last in read_lines(entry.path, offset):
        first = record
        record += content.count(b"\n")
        if bad is not None:
            bad = bad._replace(record=record)
            if policy == "refuse":
                raise refusal(where(entry, bad), bad)
        record += bool(skipped) or (bool(content) and not content.endswith(b"\n"))
        offset += len(content) + skipped
        end = Position(start.input, record, offset, consumed)
        if last:  # what is wrong at its end must not be met again on resuming
            end = Position(start.input + 1)
        yield Chunk(start.input, first, content, end, [bad] if bad else [])


def _read_rows(entry: Input, start: Position, reading: Reading) -> Iterator[Chunk]:
    """Rows gathered into chunks of about CHUNK_BYTES."""
    rows: list[Row] = []
    bad: list[Bad] = []
    first = record = start.record
    consumed, size = start.consumed, 0
    row_bytes = _row_bytes(entry)

    for piece in _rows(entry, start.record, reading):
        if isinstance(piece, Lost):
            if reading.policy == "refuse":
                raise refusal(where(entry, piece.bad), piece.bad)
            bad.append(piece.bad)
            record += piece.records
        else:
            rows.append(piece)
            record += 1
            length = len(piece.text) if isinstance(piece.text, str | bytes) else 0
            size, consumed = size + length, consumed + length
        # rows of a chunk are numbered without a gap, so records that were lost end it
        gap = isinstance(piece, Lost) and piece.records > 0
        if gap or size >= chunks.CHUNK_BYTES or len(rows) >= _CHUNK_ROWS:
            read = int(record * row_bytes) if row_bytes else consumed
            yield Chunk(start.input, first, rows, Position(start.input, record, 0, read), bad)
            rows, bad, first, size = [], [], record, 0
    yield Chunk(start.input, first, rows, Position(start.input + 1), bad)


def _row_bytes(entry: Input) -> float | None:
    """Bytes on disk behind a row of a compressed table; None where the rows are as stored."""
    if entry.kind != "parquet" or entry.path is None:
        return None
    return entry.path.stat().st_size / max(count_rows(entry.path), 1)


# Records judged one by one: the good ones as text, the bad ones mended, skipped or refused.


_BOM = b"\xef\xbb\xbf"
_SNIFF_BYTES = 8192


class Text(NamedTuple):
    """A record that passed the checks."""

    record: int
    source: str
    text: str
    content: bytes  # the text in UTF-8
    file: str | None


class RefusedRecordError(Exception):
    """A bad record that may not be repaired; the reading side knows its file's name."""

    def __init__(self, chunk_input: int, bad: Bad) -> None:
        super().__init__(chunk_input, bad)
        self.input = chunk_input
        self.bad = bad


class Checker:
    """Judges the records of one chunk."""

    def __init__(self, chunk: Chunk, fields: Fields, source: str | None, *, repair: bool) -> None:
        self.chunk = chunk
        self.fields = fields
        self.source = source  # None: each record says
        self.repair = repair
        self.bad: list[Bad] = []

    def texts(self) -> Iterator[Text]:
        """The good records, empty ones included; what was wrong with others goes to `bad`."""
        for record, row in self._rows():
            text = self._text(record, row)
            source = self.source if self.source is not None else self._source(record, row)
            if text is not None and source is not None:
                yield Text(record, source, *text, row.file)

    def complain(self, bad: Bad) -> None:
        """Note a bad record, or refuse it where none may be repaired."""
        if not self.repair:
            raise RefusedRecordError(self.chunk.input, bad)
        self.bad.append(bad)

    def _rows(self) -> Iterator[tuple[int, Row]]:
        rows = self.chunk.rows
        if not isinstance(rows, bytes):
            yield from enumerate(rows, self.chunk.first)
            return
        for record, line in enumerate(rows.split(b"\n"), self.chunk.first):
            row = self._parse(record, line)
            if row is not None:
                yield record, row

    def _parse(self, record: int, line: bytes) -> Row | None:
        if record == 0:
            line = line.removeprefix(_BOM)
        if not line.strip():
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self.complain(_not_utf8(record, error))
            text = line.decode(errors="replace")
        try:
            value = json.loads(text)
        # ValueError: also for numbers of thousands of digits; RecursionError: nested too deeply
        except (ValueError, RecursionError) as error:
            self.complain(Bad(record, "broken JSON", f"broken JSON ({error})", "skips it"))
            return None
        if not isinstance(value, dict):
            what = f"the line is a JSON {type(value).__name__}, not an object with fields"
            self.complain(Bad(record, "broken JSON", what, "skips it"))
            return None
        source = self.fields.source
        return Row(pick(value, self.fields.text), pick(value, source) if source else None)

    def _text(self, record: int, row: Row) -> tuple[str, bytes] | None:
        text = row.text
        if isinstance(text, bytes):
            content = text.removeprefix(_BOM) if row.file else text
            if row.file and b"\0" in content[:_SNIFF_BYTES]:
                what = "the file holds zero bytes, so it is not text"
                self.complain(Bad(record, "binary file", what, "skips it", row.file))
                return None
            try:
                return content.decode(), content
            except UnicodeDecodeError as error:
                self.complain(_not_utf8(record, error, row.file))
                text = content.decode(errors="replace")
        if not isinstance(text, str):
            kind = "is missing or null" if text is None else f"is of type {type(text).__name__}"
            what = f"the text field {self.fields.text!r} {kind} (--text-field names another)"
            self.complain(Bad(record, "missing text", what, "skips it", row.file))
            return None
        try:
            return text, text.encode()
        except UnicodeEncodeError as error:  # half a surrogate pair, written as a JSON escape
            self.complain(_not_utf8(record, error, row.file))
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return text, text.encode()

    def _source(self, record: int, row: Row) -> str | None:
        if isinstance(row.source, str) and row.source and row.source.isprintable():
            return row.source
        kind = "is missing or null" if row.source is None else f"is {row.source!r:.40}, no name"
        what = f"the source field {self.fields.source!r} {kind} (--source-field names another)"
        self.complain(Bad(record, "missing source", what, "skips it", row.file))
        return None


def _not_utf8(record: int, error: UnicodeError, file: str | None = None) -> Bad:
    what = f"invalid UTF-8 ({error})"
    return Bad(record, "invalid UTF-8", what, "puts U+FFFD in its place", file)
