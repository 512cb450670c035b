"""Sinks: other places that metrics go to beside metrics.jsonl. Each is an extra.

All of them write below the run's directory, and nothing leaves the machine unless the user has set
up the tool to send it: W&B works offline where it knows no account, Trackio fills a local database.
"""

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from dograph.errors import ConfigError, DographError, RunError, did_you_mean, require
from dograph.files import write_text

PROJECT = "dograph"

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes the metrics of a run, step by step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_sink(
    name: str, directory: Path, run_name: str, config: dict[str, Any], first_step: int
) -> Sink:
    """Open the sink of this name for a run that will log `first_step` next.

    A first step beyond 1 continues what the run logged before it was interrupted.
    """
    openers = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
    if name not in openers:
        raise ConfigError(f'no sink "{name}"; {did_you_mean(name, openers)}')
    try:
        write, finish = openers[name](directory, run_name, config, first_step)
    except DographError:
        raise
    except Exception as error:
        raise RunError(
            f"the sink {name} could not be opened: {error}. Mend its settings, or leave it out of "
            "log.sinks; metrics.jsonl is written in any case"
        ) from error
    return GuardedSink(name, write, finish)


class GuardedSink:
    """A sink that may fail without stopping the run: it warns once, and takes no more."""

    def __init__(
        self,
        name: str,
        write: Callable[[int, Mapping[str, float]], None],
        finish: Callable[[], None],
    ) -> None:
        self.name = name
        self.write = write
        self.finish = finish
        self.is_open = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self.is_open:
            return
        try:
            self.write(step, metrics)
        except Exception as error:
            log.warning(
                "the sink %s failed at step %d and is closed; the run goes on, and metrics.jsonl "
                "has everything: %r",
                self.name,
                step,
                error,
            )
            self.close()

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.finish()
        except Exception as error:
            log.warning("the sink %s could not be closed: %r", self.name, error)


_Backend = tuple[Callable[[int, Mapping[str, float]], None], Callable[[], None]]


def _tensorboard(
    directory: Path, run_name: str, config: dict[str, Any], first_step: int
) -> _Backend:
    require("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    # What an interrupted run logged at later steps than its checkpoint is to be forgotten.
    writer = SummaryWriter(str(directory / "tensorboard"), purge_step=first_step)
    text = f"```json\n{json.dumps(config, indent=2)}\n```"  # shown as Markdown
    writer.add_text(f"{run_name}/config", text, first_step)

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)

    return write, writer.close


def _wandb(directory: Path, run_name: str, config: dict[str, Any], first_step: int) -> _Backend:
    wandb = require("wandb", "wandb")
    id_file = directory / "wandb" / "run_id"
    if first_step <= 1 or not id_file.is_file():
        id_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(id_file, secrets.token_hex(4))
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=str(directory),
        id=id_file.read_text(),
        name=run_name,
        config=config,
        resume="allow",
        mode=None if _wandb_is_set_up() else "offline",
        settings=wandb.Settings(console="off"),  # the terminal belongs to our progress display
    )
    # W&B drops what is logged at an earlier step than the last; a metric as the axis may go back.
    run.define_metric("*", step_metric="step")

    def write(step: int, metrics: Mapping[str, float]) -> None:
        run.log({"step": step, **metrics})

    return write, run.finish


def _wandb_is_set_up() -> bool:
    """Whether the user has said where W&B should send a run: otherwise it would ask, and wait."""
    if {"WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"} & os.environ.keys():
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    netrc_files = [Path(os.environ.get("NETRC", "~/.netrc")), Path("~/_netrc")]
    found = [path.expanduser() for path in netrc_files if path.expanduser().is_file()]
    return any(host in path.read_text(errors="replace") for path in found)


def _trackio(directory: Path, run_name: str, config: dict[str, Any], first_step: int) -> _Backend:
    # Read by trackio when it is imported: the only way to choose where its database lies.
    os.environ.setdefault("TRACKIO_DIR", str(directory / "trackio"))
    trackio = require("trackio", "trackio")
    run = trackio.init(
        project=PROJECT,
        name=run_name,
        config=config,
        resume="allow" if first_step > 1 else "never",
        embed=False,
    )

    def write(step: int, metrics: Mapping[str, float]) -> None:
        run.log(dict(metrics), step=step)

    return write, run.finish
