"""The trainer's part in edits: making them when they are due, and taking requests for them."""

import secrets
from datetime import UTC, datetime

from dograph import __version__
from dograph.config import RunConfig
from dograph.errors import ConfigError, DographError
from dograph.train.checkpoint import TrainingState
from dograph.train.distributed import World
from dograph.train.edit_record import Edit, add_edit, dump_edits, edits_of, parse_edits
from dograph.train.forecast import repeat_warnings
from dograph.train.offers import Offer
from dograph.train.requests import Requests
from dograph.train.run_dir import RunDirectory
from dograph.types import Mixture

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
        held = edits_of(self.run) if self.world.is_main else []
        held = parse_edits(self.world.share(dump_edits(held)))
        self.due = {edit.step: edit for edit in held}
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
            add_edit(self.run, edit)
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
        (edit,) = parse_edits(self.world.share(dump_edits([] if edit is None else [edit])))
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
            add_edit(self.run, edit)
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

    def _take(self, edit: Edit) -> None:
        self.due = {step: one for step, one in self.due.items() if step < edit.step}
        self.due[edit.step] = edit
        self.apply(edit.step)
