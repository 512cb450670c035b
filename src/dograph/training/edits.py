"""Edits: another mixture from some step on, given to a run that has stopped or is under way.

edits.jsonl says which, one JSON object a line. It is an input of the run, as config.yaml is: an
edit is on disk before a batch is drawn by it, and whenever a resumed run comes to its step it is
made again. So the run stays a pure function of its settings and its edits, whatever kills it.

Lines are only added. One that is of an earlier step than lines before it, or of the same, takes
their place: the steps in which they held are made again without them.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dograph import __version__
from dograph.errors import ConfigError, DographError, RunError
from dograph.files import write_text
from dograph.training.checkpoint import TrainingState
from dograph.training.config import RunConfig
from dograph.training.forecast import repeat_warnings
from dograph.training.offers import Offer
from dograph.training.requests import Requests
from dograph.training.run_dir import RunDirectory
from dograph.training.world import World
from dograph.types import Mixture

REASON = "edited"  # of an edit's entry in the weight log


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
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return TypeAdapter(list[Edit]).validate_python(rows)
    except (OSError, ValueError, ValidationError) as error:
        raise RunError(
            f"{path} is damaged ({str(error).splitlines()[0]}): what the run drew from cannot be "
            "told. Put it back as it was; lines are JSON objects that `dograph train` wrote"
        ) from error


def in_force(edits: Iterable[Edit]) -> list[Edit]:
    """Those that hold: an edit undoes what was made before it for its step or later ones."""
    held: list[Edit] = []
    for edit in edits:
        held = [one for one in held if one.step < edit.step] + [edit]
    return held


def edits_of(run: RunDirectory) -> list[Edit]:
    """Those that hold in a run."""
    return in_force(read_edits(run.edits_file))


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
        held = edits_of(self.run) if self.world.is_main else []
        self.due = {edit.step: edit for edit in self.world.share(held)}
        self.apply(done)

    def apply(self, done: int) -> None:
        """Make the edit of this step, if there is one."""
        if done in self.due:
            self.sampler.remix(done, Mixture(self.due[done].weights), REASON)

    def check(self, mixture: Mixture, done: int) -> None:
        """Refuse what cannot be drawn from, and a run or a mixer that takes no other mixture."""
        self.sampler.weights_of(mixture)
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

    def make(self, done: int, offer: Offer, how: str, identity: str | None = None) -> Edit:
        """Draw by an offered mixture after `done` steps; on disk before it is in force.

        Every rank calls it, with the same offer.
        """
        edit = self._edit(done, offer, how, identity or secrets.token_hex(8))
        if self.world.is_main:
            self._append(edit)
        self.world.barrier()
        self._take(edit)
        return edit

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
        edit = self._requested(done) if self.listening else None
        if not self.world.agree(int(edit is not None)):
            return None
        edit = self.world.share(edit)
        assert edit is not None
        self._take(edit)
        return edit

    def answer(self, edit: Edit) -> list[str]:
        """Tell who asked that it is done; return what speaks against it, one line each."""
        warnings = repeat_warnings(self.config, self.sampler, self.mixer)
        if self.world.is_main:
            told = {"identity": edit.identity, "step": edit.step, "line": edit.line}
            self.requests.reply(told | {"warnings": warnings})
        return warnings

    def _requested(self, done: int) -> Edit | None:
        asked = self.requests.claim()
        if asked is None:
            return None
        try:
            offer = Offer(
                asked["given"], Mixture(asked["weights"]), asked["provenance"], asked["notes"]
            )
            self.check(offer.mixture, done)
            edit = self._edit(done, offer, "mix", str(asked["identity"]))
            self._append(edit)
        except (DographError, KeyError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, DographError) else f"it lacks {error}"
            self.requests.reply({"identity": asked.get("identity"), "refused": why})
            return None
        return edit

    def _edit(self, done: int, offer: Offer, how: str, identity: str) -> Edit:
        stages = [step for step in self.mixer.schedule() if done < step < self.config.train.steps]
        return Edit(
            step=done,
            weights=dict(offer.mixture.weights),
            old=self.sampler.by_source(self.sampler.log.find(done).weight_S),
            new=self.sampler.by_source(self.sampler.weights_of(offer.mixture)),
            given=offer.given,
            provenance=offer.provenance,
            how=how,
            identity=identity,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            made_by=f"dograph {__version__}",
            notes=offer.notes,
            until=min(stages, default=None),
            undoes=sorted(step for step in self.due if step >= done),
        )

    def _append(self, edit: Edit) -> None:
        made = [*read_edits(self.run.edits_file), edit]
        try:
            write_text(self.run.edits_file, "".join(json.dumps(asdict(one)) + "\n" for one in made))
        except OSError as error:
            raise RunError(
                f"{self.run.edits_file} cannot be written ({error.strerror}), so the mixture stays "
                "as it was. Mend it (perhaps make room) and ask again"
            ) from error

    def _take(self, edit: Edit) -> None:
        self.due = {step: one for step, one in self.due.items() if step < edit.step}
        self.due[edit.step] = edit
        self.apply(edit.step)
