"""One thing to read, as every later step sees it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dograph.data.manifest import Split

Kind = Literal["lines", "parquet", "text", "disk", "hub", "embedded", "megatron", "nanogpt"]
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Input:
    """One thing to read: a file, a folder of text, one split of a dataset."""

    kind: Kind
    name: str  # as the manifest and every message show it
    split: Split
    source: str | None  # None: each record says
    path: Path | None = None
    hub: tuple[str, str | None] | None = None  # dataset and config
    part: str | None = None  # split of a dataset

    @property
    def is_tokens(self) -> bool:
        """Whether it holds tokens made elsewhere, not text."""
        return self.kind in ("megatron", "nanogpt")


class Resolved(NamedTuple):
    """What to read, and what lies beside it and is not read."""

    inputs: list[Input]
    left_out: list[str]


def joined(found: Iterable[Resolved]) -> Resolved:
    """Several as one, in order."""
    inputs: list[Input] = []
    left_out: list[str] = []
    for one in found:
        inputs += one.inputs
        left_out += one.left_out
    return Resolved(inputs, left_out)


def listed(names: Sequence[str]) -> str | None:
    """Names in a line of bounded length, None where there are none."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more if names else None
