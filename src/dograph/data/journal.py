"""The journal of a preparation under way: enough to go on after a kill, exactly."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ValidationError

from dograph.data.chunks import Position
from dograph.data.corpus import MANIFEST, Manifest, Split, TokenizerEntry
from dograph.data.encode import RAW_DOCUMENT_DTYPE, EncodedGroup
from dograph.data.options import STAGING, Value
from dograph.errors import CorpusError
from dograph.files import sync_file, write_json

# Each source has its own files and its own row in every table: a label with more values than
# this is a mistake (an address, an author), not a source.
MAX_SOURCES = 1000


class Output(BaseModel):
    """What has been written of one split of one source."""

    split: Split
    source: str
    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    unkept_documents: int = 0  # left out by --keep
    unkept_bytes: int = 0


class Outputs:
    """Token and document files while they grow: a pair for each split of each source.

    Lengths on record are those of whole chunks only.
    """

    def __init__(self, folder: Path, outputs: list[Output], dtype: str) -> None:
        self.folder = folder
        self.outputs = outputs
        self._numbers = {(out.split, out.source): i for i, out in enumerate(outputs)}
        self._unsynced: set[Path] = set()
        for path in (*folder.glob("*.tokens"), *folder.glob("*.documents")):
            if int(path.stem) >= len(outputs):  # begun after the record was made
                path.unlink()
        for number, output in enumerate(outputs):  # what came after the record is cut off
            sizes = {
                ".tokens": output.tokens * np.dtype(dtype).itemsize,
                ".documents": output.documents * RAW_DOCUMENT_DTYPE.itemsize,
            }
            for suffix, size in sizes.items():
                path = self.stem(number).with_suffix(suffix)
                have = path.stat().st_size if path.exists() else 0
                if have < size:
                    raise CorpusError(
                        f"{path} should hold {size} bytes, found {have}; begin anew with --restart"
                    )
                with open(path, "ab") as file:
                    file.truncate(size)

    def stem(self, number: int) -> Path:
        """The two files of an output, without .tokens and .documents."""
        return self.folder / f"{number:04d}"

    def append(self, groups: list[EncodedGroup]) -> None:
        """Write the groups of one chunk; on a failure the record still says what was whole."""
        outputs = [self._output(group) for group in groups]
        for (number, output), group in zip(outputs, groups, strict=True):
            documents = group.document_M.copy()
            documents["end"] += output.tokens
            for suffix, values in ((".tokens", group.token_N), (".documents", documents)):
                path = self.stem(number).with_suffix(suffix)
                with open(path, "ab") as file:
                    file.write(values.tobytes())
                self._unsynced.add(path)
        for (_, output), group in zip(outputs, groups, strict=True):
            output.tokens += len(group.token_N)
            output.documents += len(group.document_M)
            output.bytes += int(group.document_M["bytes"].sum(dtype=np.int64))
            output.unkept_documents += group.unkept_documents
            output.unkept_bytes += group.unkept_bytes

    def sync(self) -> None:
        """Force what was written onto the disk, before the journal speaks of it."""
        for path in sorted(self._unsynced):
            sync_file(path)
        self._unsynced.clear()

    def _output(self, group: EncodedGroup) -> tuple[int, Output]:
        key = (group.split, group.source)
        if key not in self._numbers:
            if len(self.outputs) >= 2 * MAX_SOURCES:
                raise CorpusError(
                    f"more than {MAX_SOURCES} sources, the latest {group.source!r}: name a field "
                    "with fewer values with --source-field"
                )
            self._numbers[key] = len(self.outputs)
            self.outputs.append(Output(split=group.split, source=group.source))
        return self._numbers[key], self.outputs[self._numbers[key]]


_JOURNAL = "journal.json"
_INDECISIVE = ("bad_records", "left_out")
# Options that came later: a corpus from before has no record of them, and was made with these.
_ADDED: dict[str, Value] = {"keep": 1.0}


class Recorded(NamedTuple):
    """All that decides what a corpus is."""

    options: dict[str, Value]
    stamps: dict[str, str]  # of every input, in order, and of the tokenizer

    @property
    def fingerprint(self) -> str:
        """Equal for equal options and unchanged inputs in the same order."""
        content = json.dumps([dict(sorted(_decisive(self.options).items())), self.stamps])
        return hashlib.sha256(content.encode()).hexdigest()


class Journal(BaseModel):
    """State after a whole number of chunks. Files may hold more: that is cut off on resuming."""

    version: Literal[1] = 1
    options: dict[str, Value]  # as in Recorded
    stamps: dict[str, str]
    tokenizer: TokenizerEntry
    position: Position = Position()
    outputs: list[Output] = []
    repairs: dict[str, int] = {}
    repairs_bytes: int = 0  # length of repairs.jsonl
    all_read: bool = False

    @property
    def fingerprint(self) -> str:
        return Recorded(self.options, self.stamps).fingerprint

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
    # a policy for bad records matters only where there are some: the journal counts them;
    # what was left out does not enter the corpus
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


def read_journal(staging: Path) -> Journal | None:
    path = staging / _JOURNAL
    if not path.is_file():
        return None
    try:
        return Journal.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CorpusError(f"{path} is damaged; begin anew with --restart ({error})") from error


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
