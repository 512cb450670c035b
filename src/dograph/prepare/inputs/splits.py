"""Which parts of an input are for training and which for validation, by their names."""

import re
from collections.abc import Iterable
from pathlib import Path

# The first of these that an input has is its validation split.
VALIDATION_WORDS = ("validation", "valid", "val", "test")
SPLIT_WORDS = ("train", *VALIDATION_WORDS)

_SHARD = re.compile(r"[-_.]?(\d{3,}-of-\d{3,}|\d{4,})$")
_SPLIT = re.compile(rf"(^|[-_.])({'|'.join(SPLIT_WORDS)})$", re.IGNORECASE)
_ENDINGS = re.compile(r"(\.(jsonl|json|ndjson|parquet|bin|idx|txt|md))?(\.(gz|xz|zst))?$")
_MEGATRON = re.compile(r"_(text|content)_(document|sentence)$")
_NAMELESS = ("", "part", "shard", "chunk", "data")


def choose_validation(names: Iterable[str]) -> str | None:
    """The split to validate on, where the input names its splits."""
    present = set(names)
    return next((word for word in VALIDATION_WORDS if word in present), None)


def split_word(path: Path) -> str | None:
    """The split that a file's name speaks of: "val" for fineweb_val_000001.bin."""
    match = _SPLIT.search(_SHARD.sub("", _stem(path)))
    return match.group(2).lower() if match else None


def source_of(path: Path) -> str:
    """The source that a file belongs to, by its name.

    Shard numbers and split words are left out, so that the shards of a source come together and
    its validation file bears the same name; where nothing remains, the folder's name is taken.
    """
    stem = _SPLIT.sub("", _SHARD.sub("", _MEGATRON.sub("", _stem(path))))
    if stem.lower() not in _NAMELESS:
        return stem
    parent = path.absolute().parent
    while parent.name in (*SPLIT_WORDS, "data") and parent.parent != parent:
        parent = parent.parent
    return parent.name or "text"


def _stem(path: Path) -> str:
    return _ENDINGS.sub("", path.name)
