"""Records judged one by one: the good ones as text, the bad ones mended, skipped or refused."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from dograph.data.chunks import Bad, Chunk, Fields, Row, pick

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
