"""Files: written atomically, so that a reader never sees a partial one; YAML, read strictly."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml


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


def package_text(name: str) -> str:
    """The text of a file that comes with this package, by its path in it."""
    return resources.files("dograph").joinpath(name).read_text("utf-8")


MAX_BITS = 63  # of a whole number, without its sign


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but 1e-3 is a number; without cycles, binary values and very long numbers.

    A name that is there twice is refused, of which PyYAML would silently keep the last.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f'"{key.value}" is there twice, again in line {line}')
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        value = super().construct_object(node, deep=True)
        if isinstance(value, bytes) or (isinstance(value, int) and value.bit_length() > MAX_BITS):
            what = "binary data" if isinstance(value, bytes) else "a number of more than 64 bits"
            raise yaml.constructor.ConstructorError(None, None, f"found {what}", node.start_mark)
        return value


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"), None
)


def load_yaml(text: str) -> Any:
    """Raises a YAMLError, or a ValueError for a date that does not exist."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def plain(value: Any) -> Any:
    """As JSON values: null for numbers that are not finite, objects for dataclasses.

    A field of a dataclass that has its default is left out.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        kept = {}
        for part in dataclasses.fields(value):
            factory, own = part.default_factory, getattr(value, part.name)
            if own != (part.default if factory is dataclasses.MISSING else factory()):
                kept[part.name] = own
        return plain(kept)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value
