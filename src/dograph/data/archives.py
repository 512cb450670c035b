"""Compressed files as a stream of bytes, in constant memory, that notices where they break off."""

import lzma
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dograph.errors import CorpusError, require

READ_BYTES = 64 << 10
ARCHIVES = (".gz", ".xz", ".zst")


class BrokenArchiveError(CorpusError):
    """A compressed file ends too early or is damaged; everything before was handed out."""


class Block(NamedTuple):
    """Decompressed bytes, and how much of the file they and all before them took."""

    content: bytes
    consumed: int


def read_blocks(path: Path, offset: int = 0) -> Iterator[Block]:
    """The decompressed content of a file, from `offset` on."""
    with open(path, "rb") as file:
        if path.suffix not in ARCHIVES:
            file.seek(offset)
            while content := file.read(READ_BYTES):
                yield Block(content, file.tell())
            return
        for content in _streams(file, path.suffix):
            if offset < len(content):
                yield Block(content[offset:], file.tell())
            offset = max(offset - len(content), 0)


def _streams(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    """Every stream of an archive: several may follow each other in one file."""
    compressed = file.read(READ_BYTES)
    while compressed:
        compressed = yield from _one_stream(file, suffix, compressed)
        # xz pads with zeros between streams, tape archivers after the last one
        while not compressed.strip(b"\0"):
            compressed = file.read(READ_BYTES)
            if not compressed:
                return
        compressed = compressed.lstrip(b"\0")


def _one_stream(file: BinaryIO, suffix: str, compressed: bytes) -> Generator[bytes, None, bytes]:
    """One stream; returns the bytes after it."""
    broken: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, MemoryError)
    decoder: Any
    if suffix == ".gz":
        decoder = zlib.decompressobj(wbits=31)
        step = _step_zlib
    elif suffix == ".xz":
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_AUTO)
        step = _step_lzma
    else:
        zstandard = require("zstandard", "corpus")
        broken = (*broken, zstandard.ZstdError)
        # files made with `zstd --long` ask for a window of up to 2 GiB
        decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        step = _step_zstd
    while True:
        try:
            content, compressed = step(decoder, compressed)
        except broken as error:
            raise BrokenArchiveError(f"the archive is damaged ({error})") from error
        if content:
            yield content
        if decoder.eof:
            rest: bytes = decoder.unused_data + compressed
            return rest
        if not content and not compressed:
            compressed = file.read(READ_BYTES)
            if not compressed:
                raise BrokenArchiveError("the archive ends too early, it was cut off")


# A step hands out a bounded piece, so that a damaged archive loses only the last one and a highly
# compressed one never unfolds in memory at once. It returns the input it has not used yet.


def _step_zlib(decoder: Any, compressed: bytes) -> tuple[bytes, bytes]:
    content = decoder.decompress(compressed, READ_BYTES)
    # at the end of a stream the tail is also in unused_data
    return content, b"" if decoder.eof else decoder.unconsumed_tail


def _step_lzma(decoder: Any, compressed: bytes) -> tuple[bytes, bytes]:
    return decoder.decompress(compressed, READ_BYTES), b""


def _step_zstd(decoder: Any, compressed: bytes) -> tuple[bytes, bytes]:
    piece = 4096
    content = decoder.decompress(compressed[:piece])
    return content, compressed[piece:]
