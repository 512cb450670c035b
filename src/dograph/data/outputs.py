"""Token and document files while they grow: one pair for each split of each source."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel

from dograph.data.encode import RAW_DOCUMENT_DTYPE, Group
from dograph.data.manifest import Split
from dograph.errors import CorpusError
from dograph.files import sync_file

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
    """Appends groups of documents. Lengths on record are those of whole chunks only."""

    def __init__(self, folder: Path, outputs: list[Output], dtype: str) -> None:
        self.folder = folder
        self.outputs = outputs
        self.dtype = np.dtype(dtype)
        self._numbers = {(out.split, out.source): i for i, out in enumerate(outputs)}
        self._unsynced: set[Path] = set()
        for path in (*folder.glob("*.tokens"), *folder.glob("*.documents")):
            if int(path.stem) >= len(outputs):  # begun after the record was made
                path.unlink()
        for number, output in enumerate(outputs):
            _cut(self.tokens_path(number), output.tokens * self.dtype.itemsize)
            _cut(self.documents_path(number), output.documents * RAW_DOCUMENT_DTYPE.itemsize)

    def tokens_path(self, number: int) -> Path:
        return self.folder / f"{number:04d}.tokens"

    def documents_path(self, number: int) -> Path:
        return self.folder / f"{number:04d}.documents"

    def append(self, groups: list[Group]) -> None:
        """Write the groups of one chunk; on a failure the record still says what was whole."""
        numbers = [self._number(group) for group in groups]
        for number, group in zip(numbers, groups, strict=True):
            documents = group.document_M.copy()
            documents["end"] += self.outputs[number].tokens
            self._write(self.tokens_path(number), group.token_N)
            self._write(self.documents_path(number), documents)
        for number, group in zip(numbers, groups, strict=True):
            output = self.outputs[number]
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

    def _write(self, path: Path, values: np.ndarray) -> None:
        with open(path, "ab") as file:
            file.write(values.tobytes())
        self._unsynced.add(path)

    def _number(self, group: Group) -> int:
        key = (group.split, group.source)
        if key not in self._numbers:
            if len(self.outputs) >= 2 * MAX_SOURCES:
                raise CorpusError(
                    f"more than {MAX_SOURCES} sources, the latest {group.source!r}: name a field "
                    "with fewer values with --source-field"
                )
            self._numbers[key] = len(self.outputs)
            self.outputs.append(Output(split=group.split, source=group.source))
        return self._numbers[key]


def _cut(path: Path, size: int) -> None:
    """Drop what was written after the last record of its length."""
    have = path.stat().st_size if path.exists() else 0
    if have < size:
        raise CorpusError(
            f"{path} should hold {size} bytes, found {have}; begin anew with --restart"
        )
    with open(path, "ab") as file:
        file.truncate(size)
