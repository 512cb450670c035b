"""Changing the mixture of a running run: the record of edits, the requests, the trainer's part."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dograph import __version__
from dograph.config import RunConfig
from dograph.errors import ConfigError, DographError, RunError
from dograph.files import write_json, write_text
from dograph.mixtures.file import RunFacts, find_mixture, mismatches
from dograph.records import Skipped, read_lines, read_record
from dograph.train.checkpoint import TrainingState
from dograph.train.distributed import World
from dograph.train.forecast import repeat_warnings
from dograph.train.run_dir import RunDirectory
from dograph.types import Mixture

# edits.jsonl: the mixtures that replaced the run's own during training, one JSON object per line.
#
# Like config.yaml it is an input of the run. An edit is on disk before a batch is drawn with it,
# and a resumed run applies it again at its step. So the run is a pure function of its settings and
# its edits, wherever it is killed. Lines are only appended. A line replaces earlier lines of the
# same or a later step: the run was resumed before those steps and repeats them without those edits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """After `step` steps, draw with these `weights`."""

    step: int
    weights: Mapping[str, float]  # by source or stratum, as given
    old: Mapping[str, float]  # share of each source before
    new: Mapping[str, float]  # and after
    given: str  # a mixture file or a preset
    provenance: Mapping[str, Any] | None
    how: str  # resume: by `dograph train --resume`; mix: by `dograph mix`
    identity: str
    time: str  # of the request, UTC
    made_by: str
    notes: list[str]  # warnings
    until: int | None  # the next stage of the mixer's own schedule begins after this step
    undoes: list[int]  # steps of the edits that it replaces

    @property
    def line(self) -> str:
        """The change in one line."""
        shares = ", ".join(f"{s} {self.old[s]:.4g} -> {self.new[s]:.4g}" for s in self.new)
        until = "" if self.until is None else f"; the schedule's next stage: after {self.until}"
        undone = ", ".join(map(str, self.undoes))
        instead = f"; in place of the edit after {undone}" if undone else ""
        return f"mixture after step {self.step}: {shares}{until}{instead}"


EDITS = TypeAdapter(list[Edit])


def read_edits(path: Path, skipped: Skipped | None = None) -> list[Edit]:
    """All edits of a run in the order in which they were made; damage is refused, or `skipped`."""
    found = Skipped() if skipped is None else skipped
    edits = list(read_lines(path, lambda own: EDITS.validate_python([own])[0], found))
    if skipped is None and (damage := found.warnings()):
        raise RunError(
            f"{path} is damaged, so the run's mixtures are not known ({damage[0]}). Restore it; "
            "its lines are JSON objects that `dograph train` wrote"
        )
    return edits


def edits_of(run: RunDirectory, skipped: Skipped | None = None) -> list[Edit]:
    """The edits in force: each replaces earlier ones of the same or a later step."""
    held: list[Edit] = []
    for edit in read_edits(run.edits_file, skipped):
        held = [one for one in held if one.step < edit.step] + [edit]
    return held


# A file in the run directory holds a request for another mixture, then its answer.
#
# The trainer claims a request, and `dograph mix` withdraws it, by renaming this file: exactly one
# side wins, and both know which.


NAME = "mixture-request.json"
REQUESTED = ("identity", "given", "weights", "provenance", "notes")  # fields of a request
Message = dict[str, Any]


class Requests:
    """The one place for a request in a run directory."""

    def __init__(self, run: Path) -> None:
        self.file = run / NAME
        self._claimed = run / f".{NAME}.claimed.tmp"
        self._withdrawn = run / f".{NAME}.withdrawn.tmp"

    def read(self) -> Message | None:
        """The request or answer in the file."""
        return read_record(self.file, dict[str, Any])

    def place(self, request: Message) -> None:
        write_json(self.file, request)

    def withdraw(self, identity: str) -> bool:
        """Take a request back; False if the run has claimed it, or the file has another one."""
        if not is_open(self.read(), identity):
            return False
        moved = _moved(self.file, self._withdrawn)
        if is_open(moved, identity):
            self._withdrawn.unlink()
            return True
        if moved is not None:  # answered or replaced since it was read
            os.rename(self._withdrawn, self.file)
        return False

    def claim(self) -> Message | None:
        """Take an open request, which then cannot be withdrawn any more."""
        return _moved(self.file, self._claimed) if is_open(self.read()) else None

    def reply(self, answer: Message) -> None:
        """Replace the request by its answer."""
        write_json(self.file, answer)
        self._claimed.unlink(missing_ok=True)

    def clear(self) -> None:
        for path in (self.file, self._claimed, self._withdrawn):
            path.unlink(missing_ok=True)


def _moved(path: Path, to: Path) -> Message | None:
    with suppress(FileNotFoundError):
        os.rename(path, to)
        return read_record(to, dict[str, Any])
    return None


def is_open(message: Message | None, identity: str | None = None) -> bool:
    """Whether a message is a request and not an answer; one of this identity, if given."""
    if message is None or "step" in message or "refused" in message:
        return False
    return identity is None or message.get("identity") == identity


def read_request(name: str, facts: RunFacts) -> Message:
    """A request for the mixture file or published mixture `name`, with warnings as notes."""
    file, left_over = find_mixture(name, facts.sources)
    is_file = Path(name).exists()
    notes = mismatches(file.provenance, facts, file.weights if is_file else None)
    return {
        "identity": secrets.token_hex(8),
        "given": str(Path(name).resolve()) if is_file else name,
        "weights": file.weights,
        "provenance": file.provenance.record() if file.provenance else None,
        "notes": notes + left_over,
    }


class Edits:
    """The edits of a run, for its trainer."""

    def __init__(
        self, config: RunConfig, run: RunDirectory, world: World, state: TrainingState
    ) -> None:
        self.config, self.run, self.world = config, run, world
        self.mixer, self.sampler = state.mixer, state.sampler
        self.requests = Requests(run.path)
        self.listening = False
        self.due: dict[int, Edit] = {}

    def open(self, done: int) -> None:
        """Read the edits of a run that resumes after `done` steps; apply the one that is due."""
        self._share(read_edits(self.run.edits_file) if self.world.is_main else [], done)

    def apply(self, done: int) -> None:
        """Apply the edit of this step, if there is one."""
        if done in self.due:
            self.sampler.remix(done, Mixture(self.due[done].weights), "edited")

    def check(self, request: Message, done: int) -> None:
        """Refuse an unusable mixture, a complete run, and a mixer that sets the mixture itself."""
        self.sampler.weights_of(Mixture(request["weights"]))
        if done >= self.config.batches.steps:
            raise ConfigError(
                f"{self.run.path} is complete after {done} steps: none is left to draw by another "
                f"mixture. Give it more: dograph train --resume {self.run.path} train.steps=N"
            )
        if (why := self.mixer.refuses_edits()) is not None:
            raise ConfigError(
                f"the mixture of {self.run.path} cannot be changed: mixer.name="
                f"{self.config.mixer.name} {why}. Mixers that do not change the mixture themselves "
                "allow it (natural, uniform, static, scheduled, unimax, plans, and those that "
                "weigh samples). With this one, start a new run from its last model: "
                "model.preset=null model.path=DIR"
            )

    def make(self, done: int, request: Message) -> None:
        """Change the mixture of a run that resumes after `done` steps; called on every rank."""
        self._share([self._record(done, request, "resume")] if self.world.is_main else [], done)

    def listen(self) -> None:
        """Take requests from now on; those left by a dead process are dropped."""
        if self.world.is_main:
            self.requests.clear()
            self.run.announce()
            self.listening = True

    def look(self, done: int) -> Edit | None:
        """Apply the edit that is requested, if there is one; called on every rank."""
        edits, request = [], self.requests.claim() if self.listening else None
        if request is not None:
            try:
                request = {name: request[name] for name in REQUESTED}
                self.check(request, done)
                request["identity"] = str(request["identity"])
                edits = [self._record(done, request, "mix")]
            except (DographError, KeyError, TypeError, AttributeError) as error:
                why = str(error) if isinstance(error, DographError) else f"it lacks {error}"
                self.requests.reply({"identity": request.get("identity"), "refused": why})
        return next(iter(self._share(edits, done)), None)

    def answer(self, edit: Edit) -> list[str]:
        """Reply that the edit is in force; return its warnings, one line each."""
        warnings = repeat_warnings(self.config, self.sampler, self.mixer)
        if self.world.is_main:
            reply = {"identity": edit.identity, "step": edit.step, "line": edit.line}
            self.requests.reply(reply | {"warnings": warnings})
        return warnings

    def _record(self, done: int, request: Message, how: str) -> Edit:
        """Append an edit to edits.jsonl: it is on disk before it is in force."""
        batches = self.config.batches
        stages = [batches.step_at(step) for step in self.mixer.schedule()]
        stages = [step for step in stages if done < step < batches.steps]
        weight_S = self.sampler.weights_of(Mixture(request["weights"]))
        edit = Edit(
            **request,
            step=done,
            old=self.sampler.by_source(self.sampler.log.find(done).weight_S),
            new=self.sampler.by_source(weight_S),
            how=how,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            made_by=f"dograph {__version__}",
            until=min(stages, default=None),
            undoes=sorted(step for step in self.due if step >= done),
        )
        file = self.run.edits_file
        try:
            edits = [asdict(one) for one in (*read_edits(file), edit)]
            write_text(file, "".join(json.dumps(one) + "\n" for one in edits))
        except OSError as error:
            raise RunError(
                f"{file} cannot be written ({error.strerror}), so the mixture stays as it was. "
                "Fix it (for example, free disk space), then ask again"
            ) from error
        return edit

    def _share(self, edits: list[Edit], done: int) -> list[Edit]:
        """Add the first rank's edits to `due` on every rank, apply one of this step, return all."""
        edits = EDITS.validate_json(self.world.share(EDITS.dump_json(edits).decode()))
        for edit in edits:
            self.due = {step: one for step, one in self.due.items() if step < edit.step}
            self.due[edit.step] = edit
        if edits:
            self.apply(done)
        return edits
