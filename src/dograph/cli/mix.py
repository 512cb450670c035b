"""dograph mix: change the mixture of a run while it trains."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dograph.cli.console import argument, option, say, warn
from dograph.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dograph.train.run_dir import RunDirectory

POLL_SECONDS = 0.05
QUIET_SECONDS, SAY_SECONDS = 2.0, 15.0  # before the first line about waiting, and between lines
GRACE_SECONDS = 30.0  # for an answer, once the run has taken the request


def mix(
    run: Path = argument(..., "a run that is training"),
    mixture: str = argument(..., "a mixture file, or the name of a published mixture", "FILE"),
    timeout: float = option(600.0, "seconds to wait; then the request is withdrawn", min=0),
) -> None:
    """Change the mixture of a run while it trains.

    The run takes it the next time it writes its metrics (log.every) and reports from which step it
    applies. It is on disk before a batch is drawn with it, so a kill does not lose it, and resuming
    needs only dograph train --resume RUN.

    \b
    dograph mix runs/mine new.yaml                 a mixture file, as dograph plan writes
    dograph mix runs/mine doge-slimpajama          a published mixture; dograph export lists them
    dograph mix runs/mine new.yaml --timeout 60    give up after a minute

    For a run that has stopped: dograph train --resume RUN --mixture FILE.
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
            f"{run} is in use by a process that takes no other mixture: a cell of a comparison or "
            "a proxy of a plan must keep its own, and a run that is still starting takes one once "
            "it trains. Try again then"
        )
    warn(request["notes"])
    waiting = requests.read()
    if waiting is not None and is_open(waiting):
        raise RunError(
            f"{requests.file} holds another request, of {waiting.get('given')}, which the run has "
            "not taken yet. Wait for it, or remove the file if nobody waits for it any more"
        )
    requests.place(request)
    answer = _wait(directory, request["identity"], mixture, timeout)
    warn(answer.get("warnings", []))
    print(answer["line"])


def _not_running(run: "RunDirectory", mixture: str) -> str:
    command = f"dograph train --resume {run.path} --mixture {mixture}"
    if max(run.checkpoint_steps(), default=0) < run.config().batches.steps:
        return f"{run.path} is not running. Continue it with the new mixture: {command}"
    why = f"{run.path} is complete: no step is left to draw with another mixture"
    return f"{why}. Give it more: {command} train.steps=N"


def _wait(run: "RunDirectory", identity: str, mixture: str, timeout: float) -> dict[str, Any]:
    """Wait until the run answers the request; withdraw it after `timeout` or Ctrl-C."""
    from dograph.train.edits import Requests, read_edits

    requests = Requests(run.path)

    def recorded() -> dict[str, Any] | None:
        """What edits.jsonl says about the request; it is written before any answer."""
        own = [one for one in read_edits(run.edits_file) if one.identity == identity]
        return {"line": own[-1].line} if own else None

    def look() -> dict[str, Any] | None:
        """The answer, or None if there is none yet; raises if there will be none."""
        use = run.use()  # before reading: what a run did before it ended is then seen
        answer = requests.read()
        if answer is not None and answer.get("identity") == identity:
            if "refused" in answer:
                raise ConfigError(f"the run keeps its mixture: {answer['refused']}")
            if "step" in answer:
                return answer
        if use != "free":
            return None
        requests.withdraw(identity)
        if (edit := recorded()) is None:
            raise RunError(f"nothing changed: {_not_running(run, mixture)}")
        return edit

    start, next_line, why = time.monotonic(), QUIET_SECONDS, f"no answer in {timeout:g} s"
    try:
        while (waited := time.monotonic() - start) < timeout:
            if (answer := look()) is not None:
                return answer
            if waited >= next_line:
                say(
                    f"waiting for {run.path} to write its metrics ({waited:.0f} s so far; "
                    f"log.every={run.config().log.every} steps; Ctrl-C withdraws the request)"
                )
                next_line += SAY_SECONDS
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        why = "stopped by Ctrl-C"
    if requests.withdraw(identity):
        raise RunError(f"{why}; the request is withdrawn and {run.path} keeps its mixture")
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        if (answer := look() or recorded()) is not None:
            return answer
        time.sleep(POLL_SECONDS)
    raise RunError(f"{why}, though the run took the request; see {run.edits_file}")
