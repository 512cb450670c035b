"""Parquet files, row by row, reading only the columns that are asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dograph.data.chunks import Bad, Fields, Lost, Row, pick
from dograph.errors import did_you_mean, require

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
