"""Readers: every kind of text input as chunks of records, which are then checked one by one."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from dograph.data import formats
from dograph.data.formats import Bad, Chunk, Fields, Position, RawRow, pick
from dograph.data.inputs import Input, walk
from dograph.data.options import PrepareOptions
from dograph.errors import CorpusError

_CHUNK_ROWS = 4096
_BOM = b"\xef\xbb\xbf"
_SNIFF_BYTES = 8192


def read_chunks(
    inputs: list[Input], start: Position, options: PrepareOptions, *, repair: bool | None = None
) -> Iterator[Chunk]:
    """All records of all inputs, in order, from `start` on; `repair` as the options say."""
    repair = options.repair if repair is None else repair
    for index in range(start.input, len(inputs)):
        position = start if index == start.input else Position(input=index)
        entry = inputs[index]
        if entry.kind == "lines" and entry.path is not None:
            made = formats.read_lines(entry.path, position)
        else:
            made = _chunks_of_rows(entry, position, options)
        for chunk in made:
            if chunk.bad and not repair:
                raise refusal(entry, chunk.bad[0])
            yield chunk


def where(entry: Input, bad: Bad) -> str:
    """The place of a bad record, for people: lines and rows count from 1."""
    if bad.file is not None:
        return bad.file
    return entry.name if bad.record is None else f"{entry.name}:{bad.record + 1}"


def refusal(entry: Input, bad: Bad) -> CorpusError:
    return CorpusError(
        f"{where(entry, bad)}: {bad.what}. Mend it, or pass --bad-records repair, which "
        f"{bad.repair} and counts it in the manifest"
    )


def _chunks_of_rows(entry: Input, start: Position, options: PrepareOptions) -> Iterator[Chunk]:
    """Rows gathered into chunks of about CHUNK_BYTES."""
    rows: list[RawRow] = []
    bad: list[Bad] = []
    first = record = start.record
    consumed, size = start.consumed, 0
    row_bytes = None  # on disk, of a compressed table; elsewhere rows are as stored
    if entry.kind == "parquet" and entry.path is not None:
        row_bytes = entry.path.stat().st_size / max(formats.count_rows(entry.path), 1)
    for piece in _rows(entry, start.record, options):
        if isinstance(piece, Bad):
            bad.append(piece)
            record += piece.lost
        else:
            rows.append(piece)
            record += 1
            length = len(piece.text) if isinstance(piece.text, str | bytes) else 0
            size, consumed = size + length, consumed + length
        # rows of a chunk are numbered without a gap, so records that were lost end it
        gap = isinstance(piece, Bad) and piece.lost > 0
        if gap or size >= formats.CHUNK_BYTES or len(rows) >= _CHUNK_ROWS:
            read = int(record * row_bytes) if row_bytes else consumed
            yield Chunk(start.input, first, rows, Position(start.input, record, 0, read), bad)
            rows, bad, first, size = [], [], record, 0
    yield Chunk(start.input, first, rows, Position(start.input + 1), bad)


def _rows(entry: Input, start: int, options: PrepareOptions) -> Iterator[RawRow | Bad]:
    place = entry.hub or entry.path
    if place is None:
        from dograph.data import embedded  # here, for most preparations need none of it

        documents = (
            embedded.demo_documents()
            if entry.name == "demo"
            else embedded.planted_documents(entry.name, noise=options.noise, seed=options.seed)
        )
        for source, text in islice(documents, start, None):
            yield RawRow(text, source)
    elif isinstance(place, tuple) or entry.kind == "disk":
        yield from formats.read_dataset(place, entry.part, start, options.fields)
    elif entry.kind == "parquet":
        yield from formats.read_parquet(place, start, options.fields)
    else:
        for path in islice(walk(place), start, None):
            if path.stat().st_size > formats.MAX_RECORD_BYTES:
                yield formats.too_long()._replace(file=str(path), lost=1)
            else:
                yield RawRow(path.read_bytes(), None, str(path))


class CheckedText(NamedTuple):
    """A record that passed the checks."""

    record: int
    source: str
    text: str
    content: bytes  # the text in UTF-8
    file: str | None


class Checker:
    """Checks the records of one chunk: the good ones come as text, bad ones mended or skipped.

    Where none may be repaired, the first bad one is refused.
    """

    def __init__(self, chunk: Chunk, entry: Input, fields: Fields, *, repair: bool) -> None:
        self.chunk = chunk
        self.entry = entry
        self.fields = fields
        self.repair = repair
        self.bad: list[Bad] = []

    def texts(self) -> Iterator[CheckedText]:
        """The good records, empty ones included; what was wrong with others goes to `bad`."""
        rows = self.chunk.rows
        for record, row in enumerate(
            rows.split(b"\n") if isinstance(rows, bytes) else rows, self.chunk.first
        ):
            parsed = self._parse(record, row) if isinstance(row, bytes) else row
            if isinstance(parsed, RawRow):
                text, source = self._text(record, parsed), self.entry.source
                source = self._source(record, parsed) if source is None else source
                if text is not None and source is not None:
                    yield CheckedText(record, source, *text, parsed.file)

    def complain(
        self, record: int, kind: str, what: str, repair: str = "skips it", file: str | None = None
    ) -> None:
        """Note a bad record, or refuse it where none may be repaired."""
        self.bad.append(Bad(record, kind, what, repair, file))
        if not self.repair:
            raise refusal(self.entry, self.bad[-1])

    def _not_utf8(self, record: int, error: UnicodeError, file: str | None = None) -> None:
        what = f"invalid UTF-8 ({error})"
        self.complain(record, "invalid UTF-8", what, "puts U+FFFD in its place", file)

    def _parse(self, record: int, line: bytes) -> RawRow | None:
        if record == 0:
            line = line.removeprefix(_BOM)
        if not line.strip():
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self._not_utf8(record, error)
            text = line.decode(errors="replace")
        try:
            value = json.loads(text)
            what = f"the line is a JSON {type(value).__name__}, not an object with fields"
        # ValueError: also for numbers of thousands of digits; RecursionError: nested too deeply
        except (ValueError, RecursionError) as error:
            value, what = None, f"broken JSON ({error})"
        if not isinstance(value, dict):
            self.complain(record, "broken JSON", what)
            return None
        return RawRow(pick(value, self.fields.text), pick(value, self.fields.source))

    def _text(self, record: int, row: RawRow) -> tuple[str, bytes] | None:
        text = row.text
        if isinstance(text, bytes):
            content = text.removeprefix(_BOM) if row.file else text
            if row.file and b"\0" in content[:_SNIFF_BYTES]:
                what = "the file holds zero bytes, so it is not text"
                self.complain(record, "binary file", what, file=row.file)
                return None
            try:
                return content.decode(), content
            except UnicodeDecodeError as error:
                self._not_utf8(record, error, row.file)
                text = content.decode(errors="replace")
        if not isinstance(text, str):
            kind = "is missing or null" if text is None else f"is of type {type(text).__name__}"
            what = f"the text field {self.fields.text!r} {kind} (--text-field names another)"
            self.complain(record, "missing text", what, file=row.file)
            return None
        try:
            return text, text.encode()
        except UnicodeEncodeError as error:  # half a surrogate pair, written as a JSON escape
            self._not_utf8(record, error, row.file)
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return text, text.encode()

    def _source(self, record: int, row: RawRow) -> str | None:
        if isinstance(row.source, str) and row.source and row.source.isprintable():
            return row.source
        kind = "is missing or null" if row.source is None else f"is {row.source!r:.40}, no name"
        what = f"the source field {self.fields.source!r} {kind} (--source-field names another)"
        self.complain(record, "missing source", what, file=row.file)
        return None
