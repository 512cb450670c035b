"""Another mixture for a run on its way: the record of edits, requests, and the trainer's part."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dograph import __version__
from dograph.config import RunConfig
from dograph.errors import ConfigError, DographError, RunError, did_you_mean
from dograph.files import write_json, write_text
from dograph.mixtures.file import RunFacts, mismatches, read_mixture_file
from dograph.mixtures.published import PRESETS
from dograph.train.checkpoint import TrainingState
from dograph.train.distributed import World
from dograph.train.forecast import repeat_warnings
from dograph.train.run_dir import RunDirectory
from dograph.types import Mixture

# edits.jsonl: which other mixtures a run was given on the way, one JSON object a line.
#
# It is an input of the run, as config.yaml is: an edit is on disk before a batch is drawn by it,
# and whenever a resumed run comes to its step it is made again. So the run stays a pure function
# of its settings and its edits, whatever kills it.
#
# Lines are only added. One that is of an earlier step than lines before it, or of the same, takes
# their place: the steps in which they held are made again without them.


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
        undone = ", ".join(map(str, self.undoes))
        instead = f"; in place of the edit after {undone}" if undone else ""
        return f"mixture after step {self.step}: {shares}{until}{instead}"


EDITS = TypeAdapter(list[Edit])


def read_edits(path: Path) -> list[Edit]:
    """All edits ever made of a run, in the order in which they were."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return EDITS.validate_python([json.loads(line) for line in lines])
    except (OSError, ValueError, ValidationError) as error:
        raise RunError(
            f"{path} is damaged ({str(error).splitlines()[0]}): what the run drew from cannot be "
            "told. Put it back as it was; lines are JSON objects that `dograph train` wrote"
        ) from error


def edits_of(run: RunDirectory) -> list[Edit]:
    """Those that hold in a run: an edit undoes those before it of its step or later ones."""
    held: list[Edit] = []
    for edit in read_edits(run.edits_file):
        held = [one for one in held if one.step < edit.step] + [edit]
    return held


# A request for another mixture, left in the directory of a run under way, and its answer.
#
# One file holds the request until the trainer has taken it, then the answer. Taking it, and taking
# it back, are renames of this file, so that one of the two sides wins and both know which.


NAME = "mixture-request.json"
REQUESTED = ("identity", "given", "weights", "provenance", "notes")  # of an edit, by who asks
Message = dict[str, Any]


class Requests:
    """The one place for a request in a run directory."""

    def __init__(self, run: Path) -> None:
        self.file = run / NAME
        self._claimed = run / f".{NAME}.claimed.tmp"
        self._withdrawn = run / f".{NAME}.withdrawn.tmp"

    def read(self) -> Message | None:
        """What lies there, a request or an answer."""
        return _read(self.file)

    def place(self, request: Message) -> None:
        write_json(self.file, request)

    def withdraw(self, identity: str) -> bool:
        """Take a request back; False where the run, or another request, was there first."""
        if not is_open(self.read(), identity):
            return False
        found = _moved(self.file, self._withdrawn)
        if is_open(found, identity):
            self._withdrawn.unlink()
            return True
        if found is not None:  # it was answered, or given up to another, between the two looks
            os.rename(self._withdrawn, self.file)
        return False

    def claim(self) -> Message | None:
        """Take a request that waits, so that nobody takes it back any more."""
        return _moved(self.file, self._claimed) if is_open(self.read()) else None

    def reply(self, answer: Message) -> None:
        """Put the answer where the request was."""
        write_json(self.file, answer)
        self._claimed.unlink(missing_ok=True)

    def clear(self) -> None:
        for path in (self.file, self._claimed, self._withdrawn):
            path.unlink(missing_ok=True)


def _read(path: Path) -> Message | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not one of ours: they are written whole
        return None
    return found if isinstance(found, dict) else None


def _moved(path: Path, to: Path) -> Message | None:
    with suppress(FileNotFoundError):
        os.rename(path, to)
        return _read(to)
    return None


def is_open(found: Message | None, identity: str | None = None) -> bool:
    """Whether it is a request that waits, and not an answer; one of this identity, if given."""
    if found is None or "step" in found or "refused" in found:
        return False
    return identity is None or found.get("identity") == identity


def read_request(name: str, facts: RunFacts) -> Message:
    """A request for the mixture file or published mixture `name` in a run of which `facts` hold.

    Its weights go by the corpus' own names; its notes are what speaks against using it.
    """
    path = Path(name)
    if path.exists():
        file = read_mixture_file(path)
        given, mixture, provenance = str(path.resolve()), file.mixture, file.provenance
        notes = mismatches(provenance, facts, file.weights)
    elif name in PRESETS:
        given, provenance = name, PRESETS[name].provenance
        mixture, left_over = PRESETS[name].fit(facts.sources)
        notes = mismatches(provenance, facts) + left_over
    else:
        raise ConfigError(
            f"{name} is no mixture file and no preset; of presets, {did_you_mean(name, PRESETS)}"
        )
    asked = {"identity": secrets.token_hex(8), "given": given, "weights": dict(mixture.weights)}
    return asked | {"provenance": provenance.record() if provenance else None, "notes": notes}


REASON = "edited"  # of an edit's entry in the weight log


class Edits:
    """A run's edits, as its trainer makes them."""

    def __init__(
        self, config: RunConfig, run: RunDirectory, world: World, state: TrainingState
    ) -> None:
        self.config, self.run, self.world = config, run, world
        self.mixer, self.sampler = state.mixer, state.sampler
        self.requests = Requests(run.path)
        self.listening = False
        self.due: dict[int, Edit] = {}

    def open(self, done: int) -> None:
        """Read the edits of a run that goes on after `done` steps; make the one that is due."""
        held = self._shared(edits_of(self.run) if self.world.is_main else [])
        self.due = {edit.step: edit for edit in held}
        self.apply(done)

    def apply(self, done: int) -> None:
        """Make the edit of this step, if there is one."""
        if done in self.due:
            self.sampler.remix(done, Mixture(self.due[done].weights), REASON)

    def check(self, request: Message, done: int) -> None:
        """Refuse what cannot be drawn from, and a run or a mixer that takes no other mixture."""
        self.sampler.weights_of(Mixture(request["weights"]))
        if done >= self.config.train.steps:
            raise ConfigError(
                f"{self.run.path} is complete after {done} steps: none is left to draw by another "
                f"mixture. Train on in a run of its own: model.preset=null "
                f"model.path={self.run.path}/model mixer.name=static mixer.file=FILE"
            )
        if (why := self.mixer.refuses_edits()) is not None:
            raise ConfigError(
                f"the mixture of {self.run.path} cannot be given by hand: mixer.name="
                f"{self.config.mixer.name} {why}. Mixers that keep to the mixture they began with "
                "allow it (natural, uniform, static, scheduled, unimax, plans, and those that "
                "weigh samples). With this one, start another run from its last model: "
                "model.preset=null model.path=DIR"
            )

    def make(self, done: int, request: Message) -> None:
        """Draw by another mixture after `done` steps, in a run that goes on; every rank asks."""
        self._take(self._record(done, request, "resume") if self.world.is_main else None)

    def listen(self) -> None:
        """Take requests from now on; what a dead process left unanswered is dropped."""
        if self.world.is_main:
            self.requests.clear()
            self.run.announce()
            self.listening = True

    def look(self, done: int) -> Edit | None:
        """Make the edit that somebody asks for, if one does.

        Every rank comes here after the same step; the first one knows, and tells the others.
        """
        edit, asked = None, self.requests.claim() if self.listening else None
        if asked is not None:
            try:
                asked = {name: asked[name] for name in REQUESTED}
                self.check(asked, done)
                edit = self._record(done, asked | {"identity": str(asked["identity"])}, "mix")
            except (DographError, KeyError, TypeError, AttributeError) as error:
                why = str(error) if isinstance(error, DographError) else f"it lacks {error}"
                self.requests.reply({"identity": asked.get("identity"), "refused": why})
        return self._take(edit)

    def answer(self, edit: Edit) -> list[str]:
        """Tell who asked that it is done; return what speaks against it, one line each."""
        warnings = repeat_warnings(self.config, self.sampler, self.mixer)
        if self.world.is_main:
            told = {"identity": edit.identity, "step": edit.step, "line": edit.line}
            self.requests.reply(told | {"warnings": warnings})
        return warnings

    def _record(self, done: int, request: Message, how: str) -> Edit:
        """Add an edit to edits.jsonl: it is on disk before it is in force."""
        stages = [step for step in self.mixer.schedule() if done < step < self.config.train.steps]
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

    def _take(self, edit: Edit | None) -> Edit | None:
        """Put the first rank's edit in force on every rank; None where it has none."""
        for made in self._shared([] if edit is None else [edit]):
            self.due = {step: one for step, one in self.due.items() if step < made.step}
            self.due[made.step] = made
            self.apply(made.step)
            return made
        return None

    def _shared(self, edits: list[Edit]) -> list[Edit]:
        """The first rank's, on every rank."""
        return EDITS.validate_json(self.world.share(EDITS.dump_json(edits).decode()))
