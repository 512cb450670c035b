"""Every source gets validation text: the last step of splitting by hash.

A small source may have every document on one side. Then the documents of one extreme hash change
sides: copies of a text within the source have one hash, so they stay together; copies in another
source stay where they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dograph.data.encode import RAW_DOCUMENT_DTYPE

_BLOCK_DOCUMENTS = 1 << 16
_BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """The raw files of one split of one source."""

    tokens_path: Path
    documents_path: Path
    tokens: int
    documents: int
    bytes: int


def hold_out(train: Part, validation: Part, dtype: np.dtype, folder: Path) -> tuple[Part, Part]:
    """Move documents so that both sides have some, if there are two different texts at all.

    New files go to `folder`, named after the old ones. A source of one text trains on it.
    """
    if train.documents and validation.documents:
        return train, validation
    whole, from_train = (train, True) if train.documents else (validation, False)
    low, high = _extreme_hashes(whole.documents_path)
    if low == high:
        empty = validation if from_train else train
        return whole, empty
    kept, moved = _divide(whole, low if from_train else high, dtype, folder)
    return (kept, moved) if from_train else (moved, kept)


def raw_documents(path: Path) -> Iterator[np.ndarray]:
    """The documents of a raw file, block by block."""
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, RAW_DOCUMENT_DTYPE, _BLOCK_DOCUMENTS)):
            yield block


def _extreme_hashes(path: Path) -> tuple[int, int]:
    bounds = [(int(b["hash"].min()), int(b["hash"].max())) for b in raw_documents(path)]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _divide(whole: Part, chosen: int, dtype: np.dtype, folder: Path) -> tuple[Part, Part]:
    """Copy the documents apart: those without and those with the chosen hash."""
    sides = [_Side(folder / f"{whole.tokens_path.stem}-{name}") for name in ("kept", "moved")]
    start = 0
    with open(whole.tokens_path, "rb") as tokens:
        for block in raw_documents(whole.documents_path):
            moved_D = block["hash"] == chosen
            cuts = [0, *(np.flatnonzero(np.diff(moved_D)) + 1).tolist(), len(block)]
            for first, last in pairwise(cuts):
                run = block[first:last]
                sides[int(moved_D[first])].copy(tokens, run, start, dtype)
                start = int(run["end"][-1])
    kept, moved = (side.part() for side in sides)
    return kept, moved


class _Side:
    """One of the two sides while documents are copied to it."""

    def __init__(self, stem: Path) -> None:
        self.tokens_path = stem.with_suffix(".tokens")
        self.documents_path = stem.with_suffix(".documents")
        self.tokens = self.documents = self.bytes = 0
        self.tokens_path.write_bytes(b"")
        self.documents_path.write_bytes(b"")

    def copy(self, source: BinaryIO, run: np.ndarray, start: int, dtype: np.dtype) -> None:
        documents = run.copy()
        documents["end"] += self.tokens - start
        left = int(run["end"][-1]) - start
        self.tokens += left
        self.documents += len(run)
        self.bytes += int(run["bytes"].sum(dtype=np.int64))
        with open(self.documents_path, "ab") as file:
            file.write(documents.tobytes())
        with open(self.tokens_path, "ab") as file:
            while left:
                block = source.read(min(left, _BLOCK_TOKENS) * dtype.itemsize)
                file.write(block)
                left -= len(block) // dtype.itemsize

    def part(self) -> Part:
        return Part(self.tokens_path, self.documents_path, self.tokens, self.documents, self.bytes)
