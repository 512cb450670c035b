"""Atomic files: a reader sees the old content or the new one, never a partial one."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary file in the same folder, flush to disk, rename to `path`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)  # not the temporary name
        # On a read-only disk this fails too: the first error is the one to raise.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_file(path.parent)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_file(path: Path) -> None:
    """Force a file onto the disk, or the names in a directory (a rename is one)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """As JSON values: null for numbers that are not finite, objects for dataclasses.

    A field of a dataclass that has its default is left out.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        kept = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
        for part in dataclasses.fields(value):
            factory = part.default_factory
            default = part.default if factory is dataclasses.MISSING else factory()
            if kept[part.name] == default:
                del kept[part.name]
        return plain(kept)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value
