"""Hugging Face datasets: by name from the hub (streamed), or saved on disk."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dograph.data.chunks import Bad, Fields, Row, pick
from dograph.data.formats import find_columns
from dograph.errors import CorpusError, MissingExtraError, require


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
