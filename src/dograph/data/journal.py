"""The journal of a preparation under way: enough to go on after a kill, exactly."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from dograph.data.corpus import MANIFEST, Manifest, Split, TokenizerEntry
from dograph.data.encode import RAW_DOCUMENT_DTYPE
from dograph.data.formats import Position
from dograph.data.options import STAGING, Value
from dograph.errors import CorpusError
from dograph.files import write_json

_JOURNAL = "journal.json"
_BLOCK_DOCUMENTS = 1 << 16
# A policy for bad records matters only where there are some: the journal counts them. What was
# left out does not enter the corpus.
_INDECISIVE = ("bad_records", "left_out")
# Options that came later: a corpus from before has no record of them, and was made with these.
_ADDED: dict[str, Value] = {"keep": 1.0}


class Output(BaseModel):
    """What has been written of one split of one source, to the files STEM.tokens and .documents."""

    split: Split
    source: str
    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    unkept_documents: int = 0  # left out by --keep
    unkept_bytes: int = 0
    stem: Path = Field(default=Path(), exclude=True)  # follows from its place among the outputs

    def blocks(self) -> Iterator[np.ndarray]:
        """The documents, block by block, of RAW_DOCUMENT_DTYPE."""
        with open(self.stem.with_suffix(".documents"), "rb") as file:
            while len(block := np.fromfile(file, RAW_DOCUMENT_DTYPE, _BLOCK_DOCUMENTS)):
                yield block


class Recorded(BaseModel):
    """All that decides what a corpus is."""

    version: Literal[1] = 1
    options: dict[str, Value]
    stamps: dict[str, str]  # of every input, in order, and of the tokenizer

    @property
    def fingerprint(self) -> str:
        """Equal for equal options and unchanged inputs in the same order."""
        content = json.dumps([dict(sorted(_decisive(self.options).items())), self.stamps])
        return hashlib.sha256(content.encode()).hexdigest()


class Journal(Recorded):
    """State after a whole number of chunks. Files may hold more: that is cut off on resuming."""

    tokenizer: TokenizerEntry
    position: Position = Position()
    outputs: list[Output] = []
    repairs: dict[str, int] = {}
    repairs_bytes: int = 0  # length of repairs.jsonl
    all_read: bool = False

    @classmethod
    def read(cls, staging: Path) -> "Journal | None":
        path = staging / _JOURNAL
        if not path.is_file():
            return None
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CorpusError(f"{path} is damaged; begin anew with --restart ({error})") from error

    def write(self, staging: Path) -> None:
        write_json(staging / _JOURNAL, self.model_dump())

    def require_same(self, now: Recorded) -> None:
        """Refuse to go on with other options or inputs than the preparation began with."""
        changes = _option_changes(self.options, now.options)
        for name in sorted({*self.stamps, *now.stamps}):
            if name not in now.stamps or name not in self.stamps:
                changes.append(f"{name} was {'added' if name in now.stamps else 'left out'}")
            elif self.stamps[name] != now.stamps[name]:
                changes.append(f"{name} has changed")
        if not changes and list(self.stamps) != list(now.stamps):
            changes.append(f"the order was {', '.join(self.stamps)}, now {', '.join(now.stamps)}")
        policies = (self.options["bad_records"], now.options["bad_records"])
        if self.repairs and policies == ("repair", "refuse"):
            changes.append("bad records were repaired, which is now refused")
        if changes:
            raise CorpusError(
                "a preparation that began differently is unfinished here: "
                f"{'; '.join(changes)}. Repeat the command it began with to go on, "
                "or begin anew with --restart"
            )


def _decisive(options: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name: value
        for name, value in options.items()
        if name not in _INDECISIVE and (name, value) not in _ADDED.items()
    }


def _option_changes(before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Which options differ, in words."""
    old, new = _ADDED | _decisive(before), _ADDED | _decisive(now)
    return [
        f"--{name.replace('_', '-')} was {old.get(name)}, now {new.get(name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def finished_corpus(out: Path, recorded: Recorded, *, overwrite: bool) -> Manifest | None:
    """The corpus in `out` if it is what these options give; refuses to touch anything else."""
    if not (out / MANIFEST).is_file():
        strangers = [path.name for path in out.iterdir()] if out.is_dir() else []
        if strangers and STAGING not in strangers:
            raise CorpusError(f"{out} is not empty and holds no corpus; choose another --out")
        return None
    try:
        manifest = Manifest.read(out)
    except CorpusError as error:
        if overwrite:
            return None
        raise CorpusError(f"{error} Pass --overwrite to replace it") from error
    if manifest.options.get("fingerprint") == recorded.fingerprint:
        return manifest
    if overwrite:
        return None
    options = recorded.options
    before = {name: manifest.options[name] for name in options if name in manifest.options}
    changes = "; ".join(_option_changes(before, options)) or "the inputs are others or have changed"
    raise CorpusError(
        f"{out} already holds a corpus that was prepared differently: {changes}. "
        "Choose another --out, or pass --overwrite to replace it"
    )


@contextmanager
def lock(staging: Path) -> Iterator[None]:
    """Keep a second preparation out of this folder; the system lifts it when we end, anyhow."""
    staging.mkdir(parents=True, exist_ok=True)
    with open(staging / "lock", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CorpusError(
                f"{staging.parent} is being prepared by another process; wait for it, or choose "
                "another --out"
            ) from error
        try:
            yield
        finally:  # once a corpus is published, and before anything is begun, nothing else is there
            if [path.name for path in staging.iterdir()] == ["lock"]:
                shutil.rmtree(staging)


def clear(staging: Path) -> None:
    """Remove everything but the lock."""
    for path in staging.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
