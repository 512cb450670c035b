"""edits.jsonl: which other mixtures a run was given on the way, one JSON object a line.

It is an input of the run, as config.yaml is: an edit is on disk before a batch is drawn by it, and
whenever a resumed run comes to its step it is made again. So the run stays a pure function of its
settings and its edits, whatever kills it.

Lines are only added. One that is of an earlier step than lines before it, or of the same, takes
their place: the steps in which they held are made again without them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dograph.errors import RunError
from dograph.files import write_text
from dograph.train.run_dir import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """After `step` steps, draw by `weights`."""

    step: int
    weights: Mapping[str, float]  # by source or stratum, as given
    old: Mapping[str, float]  # shares of the sources before
    new: Mapping[str, float]  # and after
    given: str  # a mixture file or a preset
    provenance: Mapping[str, Any] | None
    how: str  # resume: with `dograph train --resume`; mix: while it ran
    identity: str
    time: str  # when it was asked for, UTC
    made_by: str
    notes: list[str]  # what was warned of
    until: int | None  # a stage of the mixer's own schedule takes over after this step
    undoes: list[int]  # steps of edits that it takes the place of

    @property
    def line(self) -> str:
        """What changes, in one line."""
        shares = ", ".join(f"{s} {self.old[s]:.4g} -> {self.new[s]:.4g}" for s in self.new)
        until = "" if self.until is None else f"; the schedule's next stage: after {self.until}"
        undone = f"; in place of the edit after {_listed(self.undoes)}" if self.undoes else ""
        return f"mixture after step {self.step}: {shares}{until}{undone}"


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, steps))


def read_edits(path: Path) -> list[Edit]:
    """All edits ever made of a run, in the order in which they were."""
    if not path.is_file():
        return []
    try:
        return parse_edits(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError) as error:
        raise RunError(
            f"{path} is damaged ({str(error).splitlines()[0]}): what the run drew from cannot be "
            "told. Put it back as it was; lines are JSON objects that `dograph train` wrote"
        ) from error


def parse_edits(text: str) -> list[Edit]:
    rows = [json.loads(line) for line in text.splitlines()]
    return TypeAdapter(list[Edit]).validate_python(rows)


def dump_edits(edits: Iterable[Edit]) -> str:
    return "".join(json.dumps(asdict(edit)) + "\n" for edit in edits)


def in_force(edits: Iterable[Edit]) -> list[Edit]:
    """Those that hold: an edit undoes what was made before it for its step or later ones."""
    held: list[Edit] = []
    for edit in edits:
        held = [one for one in held if one.step < edit.step] + [edit]
    return held


def edits_of(run: RunDirectory) -> list[Edit]:
    """Those that hold in a run."""
    return in_force(read_edits(run.edits_file))


def add_edit(run: RunDirectory, edit: Edit) -> None:
    """Write an edit down, so that it is on disk."""
    made = [*read_edits(run.edits_file), edit]
    try:
        write_text(run.edits_file, dump_edits(made))
    except OSError as error:
        raise RunError(
            f"{run.edits_file} cannot be written ({error.strerror}), so the mixture stays as it "
            "was. Mend it (perhaps make room) and ask again"
        ) from error
