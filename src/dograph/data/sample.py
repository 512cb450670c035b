"""A bounded, fixed sample of the training text, to train a tokenizer on."""

from collections.abc import Callable, Iterator

from dograph.data.checks import Checker, Text
from dograph.data.chunks import Position
from dograph.data.encode import hash_threshold, is_kept, text_hash
from dograph.data.input import Input
from dograph.data.readers import Reading, read_chunks

SAMPLE_BYTES = 20_000_000


def sample_texts(
    inputs: list[Input],
    reading: Reading,
    *,
    keep: float,
    validation_fraction: float,
    only: frozenset[str] | None,
) -> Iterator[str]:
    """The first texts to be trained on of each training input, an equal amount of each."""
    threshold = hash_threshold(validation_fraction)

    def is_trained_on(text: Text) -> bool:
        return (
            (only is None or text.source in only)
            and is_kept(text.content, keep, reading.seed)
            and text_hash(text.content, reading.seed, "validation") >= threshold
        )

    training = [entry for entry in inputs if entry.split == "train"]
    for entry in training:
        yield from _first_texts(entry, reading, SAMPLE_BYTES // len(training), is_trained_on)


def _first_texts(
    entry: Input, reading: Reading, size: int, wanted: Callable[[Text], bool]
) -> Iterator[str]:
    # bad records are passed over here: reading everything will name the first of them
    lenient = reading._replace(policy="repair")
    for chunk in read_chunks([entry], Position(), lenient):
        for text in Checker(chunk, reading.fields, entry.source, repair=True).texts():
            if not wanted(text):
                continue
            yield text.text
            size -= len(text.content)
            if size <= 0:
                return
