"""Megatron's indexed datasets: tokens in NAME.bin, sequences and documents in NAME.idx.

The index: magic, version, type code of the tokens, number of sequences, number of document
bounds; then the sequences' lengths (int32) and byte offsets (int64), then the bounds (int64),
which count sequences. All little-endian.
"""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dograph.data.token_files import BLOCK_TOKENS, TokenDtype, TokenFile
from dograph.errors import CorpusError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, TokenDtype] = {
    1: "uint8",
    3: "int16",
    4: "int32",
    5: "int64",
    8: "uint16",
}
_UNUSABLE = {2: "int8", 6: "float64", 7: "float32"}


def open_megatron(tokens: Path) -> tuple[TokenFile, Iterator[np.ndarray]]:
    """The tokens of NAME.bin, and where its documents end, in blocks."""
    index = tokens.with_suffix(".idx")
    with open(index, "rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise CorpusError(f"{index} is cut off within its header; copy it again")
    magic, version, code, sequences, bounds = _HEADER.unpack(header)
    if magic != _MAGIC or version != 1:
        raise CorpusError(f"{index} is not a Megatron index of version 1; is it another file?")
    if code not in _DTYPES:
        name = _UNUSABLE.get(code, f"of an unknown type ({code})")
        raise CorpusError(
            f"{index} says that its tokens are {name}; allowed: {', '.join(_DTYPES.values())}"
        )
    wanted = _HEADER.size + sequences * 12 + bounds * 8
    if index.stat().st_size < wanted or sequences < 1 or bounds < 2:
        raise CorpusError(
            f"{index} holds {index.stat().st_size} bytes; {sequences} sequences and {bounds} "
            f"document bounds need {wanted}, and there must be at least one document"
        )
    unmeasured = TokenFile(tokens, _DTYPES[code], header_bytes=0, tokens=0)
    return _checked(unmeasured, index, sequences, bounds)


def _checked(
    file: TokenFile, index: Path, sequences: int, bounds: int
) -> tuple[TokenFile, Iterator[np.ndarray]]:
    """Refuse an index that does not describe this token file from end to end."""
    at = _HEADER.size
    length_S = np.memmap(index, "<i4", "r", at, (sequences,))
    offset_S = np.memmap(index, "<i8", "r", at + 4 * sequences, (sequences,))
    bound_D = np.memmap(index, "<i8", "r", at + 12 * sequences, (bounds,))
    itemsize = np.dtype(file.dtype).itemsize
    expected = 0  # where the next sequence should start
    for first in range(0, sequences, BLOCK_TOKENS):
        lengths = length_S[first : first + BLOCK_TOKENS].astype(np.int64)
        ends = expected + np.cumsum(lengths) * itemsize
        starts = np.concatenate([[expected], ends[:-1]])
        wrong = (lengths < 0) | (offset_S[first : first + BLOCK_TOKENS] != starts)
        if wrong.any():
            raise CorpusError(
                f"{index}: sequence {first + int(wrong.argmax())} does not follow the one before; "
                "the index is damaged"
            )
        expected = int(ends[-1])
    size = file.path.stat().st_size
    if size != expected or not size:
        raise CorpusError(
            f"{file.path} holds {size} bytes, its index {index} describes {expected}; "
            "copy both files again"
        )
    previous = 0
    for first in range(0, bounds, BLOCK_TOKENS):
        block = bound_D[first : first + BLOCK_TOKENS]
        if (np.diff(block, prepend=previous) < 0).any() or int(block[-1]) > sequences:
            raise CorpusError(f"{index}: its document bounds are out of range or out of order")
        previous = int(block[-1])
    if bound_D[0] != 0 or bound_D[-1] != sequences:
        raise CorpusError(f"{index}: its documents do not cover all {sequences} sequences")
    num_tokens = size // itemsize
    ends_D = _document_ends(bound_D, offset_S, itemsize, num_tokens)
    return replace(file, tokens=num_tokens), ends_D


def _document_ends(
    bound_D: np.ndarray, offset_S: np.ndarray, itemsize: int, num_tokens: int
) -> Iterator[np.ndarray]:
    """A document ends where the sequence after it starts."""
    for first in range(1, len(bound_D), BLOCK_TOKENS):
        block = bound_D[first : first + BLOCK_TOKENS]
        inside = np.minimum(block, len(offset_S) - 1)
        yield np.where(block < len(offset_S), offset_S[inside] // itemsize, num_tokens)
