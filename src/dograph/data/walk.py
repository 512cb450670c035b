"""The files behind an input on disk: in what order, how large, and whether they have changed."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from dograph.errors import CorpusError


def walk(folder: Path) -> Iterator[Path]:
    """Every file under a folder (or the file itself), hidden ones apart, in a fixed order."""
    if folder.is_file():
        yield folder
        return
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))


def _unreadable(error: OSError) -> NoReturn:
    raise CorpusError(
        f"cannot look into {error.filename} ({error.strerror}); make it readable, or move it away"
    ) from error


def size_of(path: Path | None) -> int | None:
    """Bytes on disk, None where nobody knows."""
    if path is None:
        return None
    return sum(file.stat().st_size for file in walk(path))


def stamp(path: Path | None) -> str:
    """Changes when the input does: names, sizes and times of change, not contents."""
    digest = hashlib.blake2b(digest_size=16)
    for file in walk(path) if path is not None else ():
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
