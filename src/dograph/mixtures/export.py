"""What the exports share: weights as they are printed, places, comments."""

import textwrap
from collections.abc import Mapping
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import yaml

from dograph.errors import ConfigError
from dograph.types import Mixture

FEWEST_DIGITS, MOST_DIGITS = 6, 12  # after the point
HUB = "hf:"
FILE_KINDS = {  # ending of a data file -> the `datasets` builder that reads it
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
    ".txt": "text",
}
PACKERS = (".gz", ".zst", ".bz2", ".xz")


def printed(mixture: Mapping[str, float]) -> dict[str, float]:
    """The positive weights, rounded so that the decimals as printed sum to exactly 1.

    Largest remainders, ties to the first name; none is rounded to zero. Digits after the point:
    six, or as many more (up to twelve) as leave the smallest weight three figures.
    """
    shares = Mixture.normalised({name: w for name, w in mixture.items() if w > 0}).weights
    smallest = min(shares.values())
    digits = FEWEST_DIGITS
    while digits < MOST_DIGITS and smallest * 10**digits < 100:
        digits += 1
    unit = 10**digits
    parts = {name: max(int(share * unit), 1) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: -(shares[name] * unit % 1))
    left = unit - sum(parts.values())
    for name in by_remainder[: max(left, 0)]:
        parts[name] += 1
    if left < 0:  # weights below one unit were raised to it: the largest pays
        parts[max(parts, key=lambda name: parts[name])] += left
    assert sum(parts.values()) == unit
    return {name: float(Decimal(part) / unit) for name, part in parts.items()}


def place_of(name: str, places: Mapping[str, str], pattern: str = "data/{}") -> str:
    """Where a source lies: as the user says, or a placeholder by its name."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return places.get(name, pattern.format(safe))


def file_place_of(name: str, places: Mapping[str, str], pattern: str = "data/{}") -> str:
    """The same for trainers that read files they were prepared for, and no dataset of the hub."""
    place = place_of(name, places, pattern)
    if hub_name(place) is not None:
        raise ConfigError(
            f"--place {name}={place}: this trainer reads prepared token files, not the Hugging "
            "Face hub; give the path of the files"
        )
    return place


def hub_name(place: str) -> str | None:
    """The name of a dataset on the Hugging Face hub, for a place that is one."""
    return place.removeprefix(HUB) if place.startswith(HUB) else None


def file_kind(place: str) -> str | None:
    """How `datasets` reads a place that is a file or a pattern of files; None for a folder."""
    endings = [end for end in PurePosixPath(place).suffixes if end not in PACKERS]
    return FILE_KINDS.get(endings[-1]) if endings else None


def comments(
    mixture: Mapping[str, float], places: Mapping[str, str], lines: tuple[str, ...]
) -> str:
    """The head of an export: what its weights mean, and what is left to the reader."""
    told = list(lines)
    if zero := [name for name, weight in mixture.items() if weight == 0]:
        told.append(f"left out, weight 0: {', '.join(zero)}")
    if unplaced := [name for name, weight in mixture.items() if weight and name not in places]:
        told.append(f"placeholders, put the real places here: {', '.join(unplaced)}")
    wrapped = [part for line in told for part in textwrap.wrap(" ".join(line.split()), 98)]
    return "".join(f"# {line}\n" for line in wrapped)


def as_yaml(content: Any) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    return text
