"""Digests of a corpus: written when it is prepared, compared at every start and by `data verify`.

Each file has a digest of every block, which finds any damage and its place, and one of a few pages
spread over it, which costs little enough for every start of a run.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel

from dograph.data.corpus import Corpus, read_model
from dograph.errors import CorpusError
from dograph.files import write_json

DIGESTS = "digests.json"
PAGE_BYTES = 4096
_MAX_PAGES = 16  # of a file, its first and its last one among them
_ALL_PAGES = 1024  # of a corpus, unless it has so many files that two of each are more
_MIN_BLOCK, _MAX_BLOCKS = 1 << 20, 1 << 16  # bytes of a block; blocks of a corpus
_REMEDY = "restore it from a copy, or prepare the corpus again"


class FileDigest(BaseModel, extra="forbid", frozen=True):
    """The content of one file."""

    size: int
    pages: str  # of its sampled pages together
    blocks: list[str]  # of each block


class Digests(BaseModel, extra="forbid", frozen=True):
    """The content of every file of a corpus."""

    format: Literal["dograph-digests"] = "dograph-digests"
    version: Literal[1] = 1
    num_pages: int  # sampled in each file
    block_bytes: int
    files: dict[str, FileDigest]  # names as in the manifest
    sha256: str = ""  # of all the rest

    @property
    def own_sha256(self) -> str:
        content = self.model_dump(exclude={"sha256"})
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """None for a corpus that was prepared before there were digests."""
        path = directory / DIGESTS
        if not path.exists():
            return None
        digests = read_model(cls, path, _REMEDY)
        if digests.sha256 != digests.own_sha256:
            raise CorpusError(f"{path} is damaged (its own digest differs); {_REMEDY}")
        return digests


def write_digests(directory: Path, names: Iterable[str]) -> None:
    """Read these files of a corpus, and write their digests."""
    sizes = {name: (directory / name).stat().st_size for name in names}
    num_pages = min(max(_ALL_PAGES // max(len(sizes), 1), 2), _MAX_PAGES)
    block_bytes = _MIN_BLOCK
    while block_bytes * _MAX_BLOCKS < sum(sizes.values()):
        block_bytes *= 2
    files = {}
    for name, size in sizes.items():
        pages = page_digest(directory / name, size, num_pages)
        blocks = [digest for digest, _ in _block_digests(directory / name, block_bytes)]
        files[name] = FileDigest(size=size, pages=pages, blocks=blocks)
    digests = Digests(num_pages=num_pages, block_bytes=block_bytes, files=files)
    write_json(directory / DIGESTS, digests.model_dump() | {"sha256": digests.own_sha256})


def page_digest(path: Path, size: int, num_pages: int) -> str:
    """Of evenly spaced pages, the first and the last included; of all of a small file."""
    digest = blake2b(digest_size=8)
    with open(path, "rb", buffering=0) as file:
        if size <= num_pages * PAGE_BYTES:
            digest.update(file.read())
        else:
            for page in range(num_pages):
                offset = (size - PAGE_BYTES) * page // (num_pages - 1)
                digest.update(os.pread(file.fileno(), PAGE_BYTES, offset))
    return digest.hexdigest()


def _block_digests(path: Path, block_bytes: int) -> Iterator[tuple[str, int]]:
    """The digest and the size of each block of a file."""
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            yield blake2b(block, digest_size=8).hexdigest(), len(block)


def require_unchanged(corpus: Corpus) -> None:
    """Refuse a corpus that has changed, as far as sizes and sampled pages show; milliseconds."""
    for stratum in (*corpus.train, *corpus.validation):
        _ = stratum.documents  # opened and checked now: the files may be deleted later
    digests = Digests.read(corpus.directory)
    if digests is None:
        return
    for name, known in digests.files.items():
        path = corpus.directory / name
        try:
            size = path.stat().st_size
            same = size == known.size and page_digest(path, size, digests.num_pages) == known.pages
            what = "other content" if size == known.size else f"{size} bytes, not {known.size}"
        except OSError as error:
            same, what = False, error.strerror or str(error)
        if not same:
            raise CorpusError(
                f"{path} has changed since the corpus was prepared ({what}). Runs read only what "
                f"was prepared: {_REMEDY}; dograph data verify {corpus.directory} lists all damage"
            )


class Verified(NamedTuple):
    """What `data verify` found."""

    damage: list[str]  # a line for each: file, offset if known, problem
    num_files: int
    num_bytes: int


def verify(
    directory: Path, report: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Compare every byte of a corpus with its digests; `report` gets bytes done and in all."""
    try:
        digests = Digests.read(directory)
    except CorpusError as error:
        return Verified([str(error)], 0, 0)
    if digests is None:
        raise CorpusError(
            f"{directory} has no {DIGESTS} to compare with: it is no corpus, or one of an older "
            "version; prepare it again"
        )
    total, done = sum(known.size for known in digests.files.values()), 0
    damage: list[str] = []
    for path, known in ((directory / name, known) for name, known in digests.files.items()):
        changed = []
        try:
            for number, (digest, size) in enumerate(_block_digests(path, digests.block_bytes)):
                start, done = number * digests.block_bytes, done + size
                if number < len(known.blocks) and digest != known.blocks[number]:
                    changed.append(f"bytes {start} to {start + size} have changed")
                report(done, total)
            if (size := path.stat().st_size) != known.size:
                damage.append(f"{path} holds {size} bytes, prepared were {known.size}")
        except FileNotFoundError:
            damage.append(f"{path} is missing")
        except OSError as error:  # a disk that fails, a file that may not be read
            damage.append(f"{path} cannot be read: {error.strerror or error}")
        if changed:
            blocks = f"{len(changed)} of {len(known.blocks)} blocks"
            damage.append(f"{path}: {changed[0]} ({blocks} in all)")
    return Verified(damage, len(digests.files), total)
