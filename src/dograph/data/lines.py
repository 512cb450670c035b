"""Lines of a file, plain or compressed, in chunks that end where a line ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dograph.data import chunks
from dograph.data.archives import Block, BrokenArchiveError, read_blocks
from dograph.data.chunks import Bad


class Lines(NamedTuple):
    """Whole lines, then perhaps something bad, then bytes to pass over."""

    content: bytes
    consumed: int  # bytes of the file so far, as it is on disk
    bad: Bad | None = None
    skipped: int = 0  # bytes of a line that is too long to take, its line end included
    last: bool = False


def read_lines(path: Path, offset: int) -> Iterator[Lines]:
    """The file from a byte `offset` on (counted after decompression), in order.

    The last line may lack its end; where an archive breaks off, so may what it was cut to.
    """
    parts: list[bytes] = []
    size = unended = consumed = 0  # unended: bytes after the last line end
    blocks = _blocks(path, offset)
    bad = None
    for block in blocks:
        if isinstance(block, Bad):
            bad = block
            break
        content, consumed = block
        parts.append(content)
        size += len(content)
        cut = content.rfind(b"\n") + 1
        unended = len(content) - cut if cut else unended + len(content)
        if cut and size >= chunks.CHUNK_BYTES:
            joined = b"".join(parts)
            yield Lines(joined[: size - unended], consumed)
            parts, size = [joined[size - unended :]], unended
        elif unended > chunks.MAX_RECORD_BYTES:
            yield Lines(b"".join(parts)[: size - unended], consumed)
            skipped, rest, bad = _pass_over(blocks)
            yield Lines(b"", consumed, too_long(), unended + skipped)
            parts, size, unended = [rest], len(rest), len(rest) - rest.rfind(b"\n") - 1
    yield Lines(b"".join(parts), consumed, bad, last=True)


def _blocks(path: Path, offset: int) -> Iterator[Block | Bad]:
    """The blocks of a file; where it breaks off, what is wrong comes last."""
    try:
        yield from read_blocks(path, offset)
    except BrokenArchiveError as error:
        yield Bad(None, "broken archive", str(error), "keeps what comes before")


def too_long() -> Bad:
    limit = chunks.MAX_RECORD_BYTES >> 20
    what = f"this record is longer than {limit} MiB: is the file one object a line?"
    return Bad(None, "record too long", what, "skips the record")


def _pass_over(blocks: Iterator[Block | Bad]) -> tuple[int, bytes, Bad | None]:
    """Go on to the next line end: how many bytes that took, and what follows it."""
    skipped = 0
    for block in blocks:
        if isinstance(block, Bad):
            return skipped, b"", block
        end = block.content.find(b"\n")
        if end >= 0:
            return skipped + end + 1, block.content[end + 1 :], None
        skipped += len(block.content)
    return skipped, b"", None
