"""A request for another mixture, left in the directory of a run under way, and its answer.

One file holds the request until the trainer has taken it, then the answer. Taking it, and taking
it back, are renames of this file, so that one of the two sides wins and both know which.
"""

import json
import os
from pathlib import Path
from typing import Any

from dograph.files import write_json

NAME = "mixture-request.json"


class Requests:
    """The one place for a request in a run directory."""

    def __init__(self, run: Path) -> None:
        self.file = run / NAME
        self._claimed = run / f".{NAME}.claimed.tmp"
        self._withdrawn = run / f".{NAME}.withdrawn.tmp"

    def read(self) -> dict[str, Any] | None:
        """What lies there, a request or an answer."""
        return _read(self.file)

    def place(self, request: dict[str, Any]) -> None:
        """Ask."""
        write_json(self.file, request)

    def withdraw(self, identity: str) -> bool:
        """Take a request back; False where the run, or another request, was there first."""
        found = self.read()
        if found is None or not (is_open(found) and found.get("identity") == identity):
            return False
        found = self._moved(self._withdrawn)
        if found is None:
            return False
        own = is_open(found) and found.get("identity") == identity
        if own:
            self._withdrawn.unlink()
        else:  # it was answered, or given up to another, between the two looks
            os.rename(self._withdrawn, self.file)
        return own

    def claim(self) -> dict[str, Any] | None:
        """Take a request that waits, so that nobody takes it back any more."""
        found = self.read()
        return self._moved(self._claimed) if found is not None and is_open(found) else None

    def reply(self, answer: dict[str, Any]) -> None:
        """Put the answer where the request was."""
        write_json(self.file, answer)
        self._claimed.unlink(missing_ok=True)

    def clear(self) -> None:
        for path in (self.file, self._claimed, self._withdrawn):
            path.unlink(missing_ok=True)

    def _moved(self, to: Path) -> dict[str, Any] | None:
        try:
            os.rename(self.file, to)
        except FileNotFoundError:
            return None
        return _read(to)


def is_open(found: dict[str, Any]) -> bool:
    """Whether it is a request that waits, and not an answer."""
    return "step" not in found and "refused" not in found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not one of ours: they are written whole
        return None
    return found if isinstance(found, dict) else None
