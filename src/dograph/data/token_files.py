"""Files of tokens made elsewhere, read block by block."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from dograph.errors import CorpusError

TokenDtype = Literal["uint8", "uint16", "uint32", "int16", "int32", "int64"]
BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the tokens of a file are, and of what type."""

    path: Path
    dtype: TokenDtype
    header_bytes: int
    tokens: int

    def blocks(self, start: int, end: int) -> Iterator[np.ndarray]:
        """Tokens `start` to `end`, in order."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        with open(self.path, "rb") as file:
            file.seek(self.header_bytes + start * dtype.itemsize)
            for first in range(start, end, BLOCK_TOKENS):
                yield np.fromfile(file, dtype, min(BLOCK_TOKENS, end - first))


class Digest(NamedTuple):
    """What reading a run of tokens tells."""

    sha256: str
    largest: int
    bytes: int | None


def digest(
    file: TokenFile, start: int, end: int, vocab_size: int | None, bytes_V: np.ndarray | None
) -> Digest:
    """Read a run of tokens once: refuse ids out of range, hash, find the largest, count bytes."""
    sha = hashlib.sha256()
    largest = size = 0
    position = start
    for block in file.blocks(start, end):
        low, high = int(block.min()), int(block.max())
        if low < 0 or (vocab_size is not None and high >= vocab_size):
            wrong = (block < 0) | (block >= (vocab_size if vocab_size is not None else high + 1))
            at = int(np.flatnonzero(wrong)[0])
            limit = "" if vocab_size is None else f" and below the vocabulary size {vocab_size}"
            raise CorpusError(
                f"{file.path}: token {position + at} is {int(block[at])}; ids must be at least 0"
                f"{limit}. Is it the right --tokenizer (or --vocab-size) for this file?"
            )
        largest = max(largest, high)
        if bytes_V is not None:
            size += int(bytes_V[block].sum())
        sha.update(block.tobytes())
        position += len(block)
    return Digest(sha.hexdigest(), largest, size if bytes_V is not None else None)
