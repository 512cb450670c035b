"""A preparation under way: what has been written so far, and the journal that says so."""

import json
import time
from pathlib import Path

from dograph.data.encode import Encoded
from dograph.data.input import Input
from dograph.data.journal import Journal
from dograph.data.outputs import Outputs
from dograph.data.publish import REPAIRS
from dograph.data.readers import where
from dograph.files import sync_file

COMMIT_SECONDS = 5.0


class Preparation:
    """Writes encoded chunks and commits to the journal now and then."""

    def __init__(self, staging: Path, journal: Journal, inputs: list[Input], dtype: str) -> None:
        self.staging = staging
        self.journal = journal
        self.inputs = inputs
        self.outputs = Outputs(staging, journal.outputs, dtype)
        self._committed = time.monotonic()
        self._writing = False
        self._repairs = staging / REPAIRS
        if self._repairs.exists():
            with open(self._repairs, "ab") as file:
                file.truncate(journal.repairs_bytes)

    def write(self, encoded: Encoded) -> None:
        """Append a chunk; after an interruption on the way the last commit stands."""
        self._writing = True
        listed = self._list_repairs(encoded)
        self.outputs.append(encoded.groups)
        repairs = self.journal.repairs
        for kind in [bad.kind for bad in encoded.bad]:
            repairs[kind] = repairs.get(kind, 0) + 1
        for source, count in encoded.excluded.items():
            kind = f"excluded: {source}"
            repairs[kind] = repairs.get(kind, 0) + count
        self.journal.repairs_bytes += listed
        self.journal.position = encoded.end
        self._writing = False
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Everything written so far is safe once this returns; half a chunk is not kept."""
        if self._writing:
            return
        self.outputs.sync()
        if self._repairs.exists():
            sync_file(self._repairs)
        self.journal.write(self.staging)
        self._committed = time.monotonic()

    def _list_repairs(self, encoded: Encoded) -> int:
        """Add to repairs.jsonl; returns the bytes that took."""
        lines = []
        for bad in encoded.bad:
            entry = {
                "place": where(self.inputs[encoded.input], bad),
                "kind": bad.kind,
                "what": bad.what,
                "done": bad.repair,
            }
            lines.append(json.dumps(entry) + "\n")
        if not lines:
            return 0
        content = "".join(lines).encode()
        with open(self._repairs, "ab") as file:
            file.write(content)
        return len(content)
