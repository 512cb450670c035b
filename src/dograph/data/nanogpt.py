"""Flat files of tokens: nanoGPT's (nothing but uint16), and those of llm.c with a header."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dograph.data.token_files import TokenDtype, TokenFile
from dograph.errors import CorpusError

GPT2_EOT = 50256
_HEADER_INTS = 256
# magic number -> version, type of the tokens
_FORMATS: dict[int, tuple[int, TokenDtype]] = {20240520: (1, "uint16"), 20240801: (7, "uint32")}


def open_nanogpt(path: Path) -> TokenFile:
    """The tokens of a flat file."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = np.fromfile(file, "<i4", _HEADER_INTS)
    version, dtype = _FORMATS.get(int(header[0]) if len(header) else 0, (0, "uint16"))
    if not version or len(header) < _HEADER_INTS:
        if size % 2 or not size:
            raise CorpusError(
                f"{path} holds {size} bytes, which is no whole number of uint16 tokens; "
                "it is cut off, or another kind of file"
            )
        return TokenFile(path, "uint16", 0, size // 2)
    num_tokens = int(header[2])
    wanted = header.nbytes + num_tokens * np.dtype(dtype).itemsize
    if int(header[1]) != version or num_tokens < 1 or size != wanted:
        raise CorpusError(
            f"{path}: its header (version {int(header[1])}, {num_tokens} tokens) asks for version "
            f"{version} and {wanted} bytes, found {size}; it is cut off or damaged"
        )
    return TokenFile(path, dtype, header.nbytes, num_tokens)


def document_ends(file: TokenFile, eot_id: int | None) -> Iterator[np.ndarray]:
    """One past each end-of-text, and the end of the file."""
    position = last = 0
    for block in file.blocks(0, file.tokens):
        if eot_id is not None and len(found := np.flatnonzero(block == eot_id)):
            last = position + int(found[-1]) + 1
            yield position + found + 1
        position += len(block)
    if last < file.tokens:
        yield np.array([file.tokens], np.int64)


def holds_token(file: TokenFile, token: int) -> bool:
    return any(bool((block == token).any()) for block in file.blocks(0, file.tokens))
