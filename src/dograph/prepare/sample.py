"""A bounded, fixed sample of the training text, to train a tokenizer on."""

from collections.abc import Iterator

from dograph.prepare.encode import text_hash, validation_threshold
from dograph.prepare.inputs.checks import Checker
from dograph.prepare.inputs.chunks import Position
from dograph.prepare.inputs.input import Input
from dograph.prepare.inputs.readers import Reading, read_chunks

SAMPLE_BYTES = 20_000_000


def sample_texts(
    inputs: list[Input], reading: Reading, validation_fraction: float, only: frozenset[str] | None
) -> Iterator[str]:
    """The first texts of each training input, an equal amount of each, held-out ones left out."""
    training = [entry for entry in inputs if entry.split == "train"]
    for entry in training:
        yield from _first_texts(
            entry, reading, SAMPLE_BYTES // len(training), validation_fraction, only
        )


def _first_texts(
    entry: Input,
    reading: Reading,
    size: int,
    validation_fraction: float,
    only: frozenset[str] | None,
) -> Iterator[str]:
    threshold = validation_threshold(validation_fraction)
    # bad records are passed over here: reading everything will name the first of them
    lenient = reading._replace(policy="repair")
    for chunk in read_chunks([entry], Position(), lenient):
        for text in Checker(chunk, reading.fields, entry.source, repair=True).texts():
            if only is not None and text.source not in only:
                continue
            if text_hash(text.content, reading.seed) < threshold:
                continue
            yield text.text
            size -= len(text.content)
            if size <= 0:
                return
