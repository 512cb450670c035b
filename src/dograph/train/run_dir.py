"""A run on disk: its directory, and the tools that get its metrics besides metrics.jsonl.

docs/runs.md lists the files of a run and their content.
"""

import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit

from dograph.config import RunConfig, parse_config, read_yaml
from dograph.errors import DographError, RunError, require
from dograph.files import sync_file, write_bytes, write_json, write_text
from dograph.records import Row, StepGaps, read_steps

CHECKPOINT = "step-{:08d}"
FORK = "fork.json"  # the parent of a run that was forked
EVAL = "eval.json"  # of `dograph eval`, for the model of a complete run
LOADING = ".loading.tmp"  # locked by a process that loads what the run needs
TAKES_MIXTURES: Literal["takes mixtures"] = "takes mixtures"
PROJECT = "dograph"  # the name of the project in W&B and Trackio
Write = Callable[[int, Row], None]  # logs the metrics of a step
Backend = tuple[Write, Callable[[], None]]  # the second closes it

log = logging.getLogger(__name__)


class RunDirectory:
    """The paths of a run, and the lock that reserves it for one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.probes, self.checkpoints = path, path / "probes", path / "checkpoints"
        self.config_file, self.weights_file = path / "config.yaml", path / "weights.jsonl"
        self.metrics_file, self.edits_file = path / "metrics.jsonl", path / "edits.jsonl"
        self.samples_file, self.graph_file = path / "samples.jsonl", path / "graph.jsonl"
        self.validation_file, self.watch_file = path / "validation.jsonl", path / "watch.jsonl"
        self._lock: IO[str] | None = None

    def create(self, config: RunConfig, environment: dict[str, object]) -> None:
        """Make the directory of a new run."""
        self.refuse_existing()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.lock()
        write_json(self.path / "env.json", environment)
        write_text(self.config_file, config.dump())

    def refuse_existing(self) -> None:
        """A new run must not write into an existing one."""
        if self.path.is_dir() and not self.checkpoint_steps():
            names = {path.name for path in self.path.iterdir() if path.suffix != ".tmp"}
            if names <= {".lock", "env.json", "checkpoints"}:  # left by a kill during `create`
                return
        if self.path.exists():
            raise RunError(
                f"{self.path} already exists. Go on with it: dograph train --resume {self.path}; "
                f"or name another: run={self.path}-2"
            )

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run."""
        run = cls(path)
        if run.config_file.is_file():
            return run
        if is_locked(path / LOADING):
            raise RunError(f"{path} is still loading; try again once its first steps are shown")
        what = "It is a prepared corpus. " if (path / "manifest.json").is_file() else ""
        if not path.exists():
            what = "There is no such folder. "
        if (path / "compare.json").is_file():
            what = f"It is a comparison; its runs are the folders in {path / 'cells'}. "
        raise RunError(
            f"{path} is not a run: it has no config.yaml. {what}Runs are made by: dograph train "
            "run=DIR"
        )

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Mark the folder of a run to come as loading; it is removed if the run is not made."""
        self.refuse_existing()
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.path / LOADING, "w") as mark:
                fcntl.flock(mark, fcntl.LOCK_EX)  # freed by the end of the process, however it ends
                yield
        finally:
            (self.path / LOADING).unlink(missing_ok=True)
            with suppress(OSError):  # it holds a run
                for folder in made:
                    folder.rmdir()

    def lock(self) -> None:
        """Reserve the directory; the lock of a dead process does not count."""
        self._lock = open(self.path / ".lock", "a")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            why = f"{self.path} is in use by another process; wait for it to end"
            raise RunError(why) from None
        self._lock.truncate(0)

    def announce(self) -> None:
        """Write into the lock file that this process takes another mixture during the run."""
        assert self._lock is not None
        self._lock.write(TAKES_MIXTURES)
        self._lock.flush()

    def use(self) -> Literal["free", "busy", "takes mixtures"]:
        """Whether a live process holds the lock, and whether it takes another mixture."""
        if not is_locked(lock := self.path / ".lock"):
            return "free"
        return TAKES_MIXTURES if lock.read_text() == TAKES_MIXTURES else "busy"

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def config(self) -> RunConfig:
        return parse_config(read_yaml(self.config_file), str(self.config_file))

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / CHECKPOINT.format(step)

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending; incomplete ones have another name."""
        names = (path.name for path in self.checkpoints.glob("step-*") if path.is_dir())
        return sorted(int(name.removeprefix("step-")) for name in names if name[5:].isdecimal())

    def clean(self) -> None:
        """Remove temporary files of a killed process."""
        places = ((self.checkpoints, ".*"), (self.path, ".*.tmp"), (self.probes, ".*.tmp"))
        for path in [path for folder, pattern in places for path in folder.glob(pattern)]:
            _remove(path)

    def rotate(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints, each by a rename first."""
        for step in self.checkpoint_steps()[:-keep]:
            doomed = self.checkpoints / f".old-{step}"
            os.rename(self.checkpoint(step), doomed)
            shutil.rmtree(doomed)

    def probe(self, step: int) -> Path:
        """The JSON file of a probe, written after its tensors: with it the probe is complete."""
        return self.probes / f"{CHECKPOINT.format(step)}.json"

    def cut(self, step: int) -> tuple[int, list[str]]:
        """Drop the rows and probes of steps after `step`, which will be repeated.

        Returns the last step that was recorded, and a warning if rows before `step` are missing or
        damaged.
        """
        self.metrics_file.touch()
        last, gaps = 0, StepGaps()
        others = (self.samples_file, self.graph_file, self.validation_file, self.watch_file)
        for file in (self.metrics_file, *others):
            start, kept = 0, [(0, 0)]  # parts of the file; of one in disorder there are several
            for end, made in read_steps(file):
                last = max(last, made)
                if made <= step:
                    first = kept.pop()[0] if kept[-1][1] == start else start
                    kept.append((first, end))
                if file == self.metrics_file:
                    gaps.add(min(made, step + 1))
                start = end
            if file.is_file() and kept != [(0, file.stat().st_size)]:
                content = file.read_bytes()
                write_bytes(file, b"".join(content[first:end] for first, end in kept))
        gaps.add(step + 1)  # its rows were written before its checkpoint
        for path in self.probes.glob("step-*"):
            if path.stem[5:].isdecimal() and int(path.stem[5:]) > step:
                path.unlink()
        return last, gaps.warnings(self.metrics_file)

    def set_aside(self, step: int) -> list[str]:
        """Rename checkpoints of steps after `step`, which are damaged; returns their new names."""
        names = []
        for later in self.checkpoint_steps():
            if later > step:
                aside = self.checkpoints / f"damaged-{self.checkpoint(later).name}"
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.checkpoint(later), aside)
                names.append(aside.name)
        return names

    def reopen(self, steps: int) -> None:
        """Remove what a complete run has, since this one has steps to make, `steps` in all.

        Scores of the model of an earlier end are kept under the name of its step.
        """
        if (link := self.path / "model").is_dir():
            name = link.resolve().parent.name.removeprefix("step-")
            ended = int(name) if name.isdecimal() else max(self.checkpoint_steps(), default=0)
            if ended < steps and (scores := self.path / EVAL).is_file():
                os.rename(scores, self.path / f"eval-step-{ended}.json")
            _remove(link)
        self.validation_file.unlink(missing_ok=True)

    def link_model(self, step: int) -> None:
        """Point `model` at the model of a checkpoint."""
        link, temporary = self.path / "model", self.path / ".model.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(self.checkpoint(step).relative_to(self.path) / "model")
        if not link.is_symlink():  # a copy of a run may have a folder instead
            _remove(link)
        os.replace(temporary, link)
        sync_file(self.path)


def _remove(path: Path) -> None:
    """A file, a link or a folder, if it is there."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock of a file."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


def run_of_model(folder: Path) -> tuple[RunDirectory, int] | None:
    """The run and step of a checkpoint's model; None for a model that is not of a run."""
    checkpoint = folder.resolve().parent
    run = RunDirectory(checkpoint.parent.parent)
    step = checkpoint.name.removeprefix("step-")
    return (run, int(step)) if run.config_file.is_file() and step.isdecimal() else None


# Sinks: tools that get the metrics besides metrics.jsonl; each needs its extra to be installed.
#
# All of them write below the run's directory, and nothing leaves the machine unless the user has
# set up the tool to send it: W&B runs offline without an account, Trackio fills a local database.


class Sink:
    """Takes metrics step by step; if it fails it warns once, and the run goes on without it."""

    def __init__(self, name: str, write: Write, finish: Callable[[], None]) -> None:
        self.name, self.write, self.finish, self.is_open = name, write, finish, True

    def log(self, step: int, metrics: Row) -> None:
        if not self.is_open:
            return
        try:
            self.write(step, metrics)
        except Exception as error:
            why = "it is closed, the run goes on, and metrics.jsonl has everything"
            log.warning("the sink %s failed at step %d; %s: %r", self.name, step, why, error)
            self.close()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            try:
                self.finish()
            except Exception as error:
                log.warning("the sink %s could not be closed: %r", self.name, error)


def open_sink(
    name: str, directory: Path, run_name: str, config: dict[str, Any], first_step: int
) -> Sink:
    """Open a sink for a run whose next step is `first_step`; beyond 1 it continues the log."""
    openers = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
    try:
        return Sink(name, *openers[name](directory, run_name, config, first_step))
    except DographError:
        raise
    except Exception as error:
        raise RunError(
            f"the sink {name} could not be opened: {error}. Fix its settings, or leave it out of "
            "log.sinks; metrics.jsonl is written in any case"
        ) from error


def _tensorboard(directory: Path, name: str, config: dict[str, Any], first_step: int) -> Backend:
    require("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    # A resume repeats the steps after its checkpoint: TensorBoard drops what it has of them.
    writer = SummaryWriter(str(directory / "tensorboard"), purge_step=first_step)
    text = f"```json\n{json.dumps(config, indent=2)}\n```"  # shown as Markdown
    writer.add_text(f"{name}/config", text, first_step)

    def write(step: int, metrics: Row) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)

    return write, writer.close


def _wandb(directory: Path, name: str, config: dict[str, Any], first_step: int) -> Backend:
    wandb = require("wandb", "wandb")
    id_file = directory / "wandb" / "run_id"
    if first_step <= 1 or not id_file.is_file():
        id_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(id_file, secrets.token_hex(4))
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=str(directory),
        id=id_file.read_text(),
        name=name,
        config=config,
        resume="allow",
        mode=None if _wandb_is_set_up() else "offline",
        settings=wandb.Settings(console="off"),  # it would disturb our progress display
    )
    # W&B drops rows of earlier steps than its last; with a metric as the axis it keeps them.
    run.define_metric("*", step_metric="step")
    return lambda step, metrics: run.log({"step": step, **metrics}), run.finish


def _wandb_is_set_up() -> bool:
    """Whether the user has chosen where W&B sends a run; otherwise it would ask, and wait."""
    if {"WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"} & os.environ.keys():
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    paths = [Path(os.environ.get("NETRC", "~/.netrc")).expanduser(), Path("~/_netrc").expanduser()]
    return any(host in path.read_text(errors="replace") for path in paths if path.is_file())


def _trackio(directory: Path, name: str, config: dict[str, Any], first_step: int) -> Backend:
    # trackio reads it when it is imported: the only way to choose the place of its database.
    os.environ.setdefault("TRACKIO_DIR", str(directory / "trackio"))
    trackio = require("trackio", "trackio")
    resume = "allow" if first_step > 1 else "never"
    run = trackio.init(project=PROJECT, name=name, config=config, resume=resume, embed=False)
    return lambda step, metrics: run.log(dict(metrics), step=step), run.finish
