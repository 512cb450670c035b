"""dograph mix: give a run under way another mixture."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.cli.console import argument, option, say, warn
from dograph.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dograph.train.edits import Requests
    from dograph.train.run_dir import RunDirectory

POLL_SECONDS = 0.05
QUIET_SECONDS = 2.0  # a wait is told when it gets longer, and then now and then
SAY_SECONDS = 15.0
GRACE_SECONDS = 30.0  # for an answer, once the run has taken the request


def mix(
    run: Path = argument(..., "a run under way"),
    mixture: str = argument(..., "a mixture file, or the name of a preset", "FILE"),
    timeout: float = option(
        600.0, "seconds to wait for the run; then the request is undone", min=0
    ),
) -> None:
    """Change the mixture of a run while it trains.

    The run takes it where it next writes its metrics (log.every) and says after which step it
    holds. It is on disk before a batch is drawn by it: no kill loses it, and resuming needs no
    more than dograph train --resume RUN.

    \b
    dograph mix runs/mine new.yaml                 a mixture file, as dograph plan writes
    dograph mix runs/mine doge-slimpajama          a published mixture: dograph export --list
    dograph mix runs/mine new.yaml --timeout 60    give up after a minute

    A run that has stopped: dograph train --resume RUN --mixture FILE.
    """  # noqa: D301
    from dograph.data.corpus import Corpus
    from dograph.train.assembly import facts_of
    from dograph.train.edits import Requests, is_open, read_request
    from dograph.train.run_dir import RunDirectory
    from dograph.types import Mixture

    directory, requests = RunDirectory.open(run), Requests(run)
    config = directory.config()
    corpus = Corpus(config.data.corpus)
    request = read_request(mixture, facts_of(config, corpus))
    names = [name for s in corpus.train for name in (s.entry.source, s.entry.stratum)]
    Mixture(request["weights"]).require_names(names)
    use = directory.use()
    if use == "free":
        raise RunError(_not_running(directory, mixture))
    if use == "busy":
        raise ConfigError(
            f"{run} is in use by a process that takes no other mixture: a cell of a "
            "comparison or a proxy of a plan must stay what it was asked to be, and a run that is "
            "still starting takes one when it trains. Then ask again"
        )
    warn(request["notes"])
    waiting = requests.read()
    if waiting is not None and is_open(waiting):
        raise RunError(
            f"{requests.file} holds another request, of {waiting.get('given')}, which the run has "
            "not taken yet. Wait for it; if whoever asked is gone, remove the file"
        )
    requests.place(request)
    waits = _Wait(directory, requests, request["identity"], mixture)
    answer = waits.answer(timeout, config.log.every)
    warn(answer.get("warnings", []))
    print(answer["line"])


def _not_running(run: "RunDirectory", mixture: str) -> str:
    if max(run.checkpoint_steps(), default=0) >= run.config().train.steps:
        return (
            f"{run.path} is complete: no step is left to draw by another mixture. Train on in a "
            f"run of its own: model.preset=null model.path={run.path}/model mixer.name=static "
            f"mixer.file={mixture}"
        )
    return (
        f"{run.path} is not running. Go on with it and the new mixture: "
        f"dograph train --resume {run.path} --mixture {mixture}"
    )


class _Wait:
    """A request that was placed, until it is answered, taken back or lost with its run."""

    def __init__(
        self, run: "RunDirectory", requests: "Requests", identity: str, mixture: str
    ) -> None:
        self.run, self.requests, self.identity, self.mixture = run, requests, identity, mixture

    def answer(self, timeout: float, every: int) -> dict[str, Any]:
        """Wait for the run to write its metrics; then take the request back, if it still can be."""
        start, told = time.monotonic(), QUIET_SECONDS
        why = f"no answer in {timeout:g} s"
        try:
            while (waited := time.monotonic() - start) < timeout:
                if (answer := self._look()) is not None:
                    return answer
                if waited >= told:
                    say(
                        f"waiting for {self.run.path} to write its metrics, every "
                        f"log.every={every} steps ({waited:.0f} s so far; Ctrl-C takes the "
                        "request back)"
                    )
                    told += SAY_SECONDS
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            why = "stopped by Ctrl-C"
        if self.requests.withdraw(self.identity):
            raise RunError(
                f"{why}; the request is taken back and {self.run.path} goes on as before"
            )
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            if (answer := self._look() or self._recorded()) is not None:
                return answer
            time.sleep(POLL_SECONDS)
        raise RunError(f"{why}, though the request was taken; {self.run.edits_file} will tell")

    def _look(self) -> dict[str, Any] | None:
        """The answer, or None while there is none; raises where there will be none."""
        use = self.run.use()  # before looking: what a run did before it ended is then seen
        found = self.requests.read()
        if found is not None and found.get("identity") == self.identity:
            if "refused" in found:
                raise ConfigError(f"the run goes on as before: {found['refused']}")
            if "step" in found:
                return found
        if use != "free":
            return None
        self.requests.withdraw(self.identity)
        if (made := self._recorded()) is None:
            raise RunError(f"nothing changed: {_not_running(self.run, self.mixture)}")
        return made

    def _recorded(self) -> dict[str, Any] | None:
        """What edits.jsonl says of the request; it is written before any answer."""
        from dograph.train.edits import read_edits

        own = [e for e in read_edits(self.run.edits_file) if e.identity == self.identity]
        return {"line": own[-1].line} if own else None
