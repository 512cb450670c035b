"""Which parts of an input are for training and which for validation, by their names."""

import re
from collections.abc import Iterable
from pathlib import Path

# The first of these that an input has is its validation split.
VALIDATION_WORDS = ("validation", "valid", "val", "test")
SPLIT_WORDS = ("train", *VALIDATION_WORDS)

# four digits may be a year, and two years are two sources
_DIGEST = r"(-[0-9a-f]{16})?"  # after a number of the hub's: train-00000-of-00048-ab2b35705f029d94
_SHARD = re.compile(rf"[-_.]?(\d{{3,}}-of-\d{{3,}}{_DIGEST}|\d{{5,}})$")
_NUMBER = re.compile(rf"[-_.]?\d+(-of-\d+{_DIGEST})?$")
_SPLIT = re.compile(rf"(^|[-_.])({'|'.join(SPLIT_WORDS)})$", re.IGNORECASE)
_ENDINGS = re.compile(r"(\.(jsonl|json|ndjson|parquet|bin|idx|txt|md))?(\.(gz|xz|zst))?$")
_MEGATRON = re.compile(r"_(text|content)_(document|sentence)$")
_NAMELESS = ("", "part", "shard", "chunk", "data")


def choose_validation(names: Iterable[str | None], preferred: str | None = None) -> str | None:
    """The split to validate on, where the input names its splits."""
    present = set(names)
    return next((word for word in (preferred, *VALIDATION_WORDS) if word in present), None)


def split_word(path: Path, folder: Path | None = None) -> str | None:
    """The split that a file's name speaks of: "val" for fineweb_val_000001.bin.

    A folder named after a split, between `folder` and the file, has the first word.
    """
    below = path if path.is_dir() else path.parent
    for name in below.relative_to(folder).parts if folder is not None else ():
        if name.lower() in SPLIT_WORDS:
            return name.lower()
    if path.is_dir():
        return None
    match = _SPLIT.search(_NUMBER.sub("", _MEGATRON.sub("", _stem(path))))
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
