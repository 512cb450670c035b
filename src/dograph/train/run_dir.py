"""A run on disk: the interface between commands.

config.yaml     the resolved configuration; `dograph train config.yaml` replays the run
env.json        versions and devices
metrics.jsonl   one line a step, and one a validation
weights.jsonl   the weight log: mixtures and counters by step
edits.jsonl     mixtures given on the way: after which step, what, from where
samples.jsonl   for mixers that look at samples: one line a step, weight and domain of each sample
validation.jsonl  once the run is complete: one line a source, the last loss of each block, in an
                order that is the same in every run on the corpus (data.seq_len,
                eval.max_samples_per_source)
graph.jsonl     for DoGraph: the domain graph at every validation
probes/         for mixers that need sketches: step-00000100: sketches of the same held-out rows
checkpoints/    step-00000100/: model (Hugging Face), optimizer, mixer, weight log
eval.json       what `dograph eval` found
result.json     for runs of a plan or a comparison, once complete: what the run came to
page.html       once the run is complete: the page that `dograph report` writes
model           link to the newest checkpoint's model, once the run is complete
"""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Literal

from dograph.config import RunConfig, parse_config, read_yaml
from dograph.errors import RunError
from dograph.files import sync_file, write_bytes, write_json, write_text

CHECKPOINT = "step-{:08d}"
TAKES_MIXTURES: Literal["takes mixtures"] = "takes mixtures"


class RunDirectory:
    """Paths of a run, and the lock that keeps it to one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.probes, self.checkpoints = path, path / "probes", path / "checkpoints"
        self.config_file, self.weights_file = path / "config.yaml", path / "weights.jsonl"
        self.metrics_file, self.edits_file = path / "metrics.jsonl", path / "edits.jsonl"
        self.samples_file, self.graph_file = path / "samples.jsonl", path / "graph.jsonl"
        self.validation_file = path / "validation.jsonl"
        self._lock: IO[str] | None = None

    def create(self, config: RunConfig, environment: dict[str, object]) -> None:
        """Make the directory of a new run."""
        self.refuse_existing()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.lock()
        write_json(self.path / "env.json", environment)
        write_text(self.config_file, config.dump())

    def refuse_existing(self) -> None:
        """A new run must not write into what is there."""
        if self.path.is_dir() and not self.checkpoint_steps():
            found = {path.name for path in self.path.iterdir() if path.suffix != ".tmp"}
            if found <= {".lock", "env.json", "checkpoints"}:  # all that a kill at the start leaves
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
        if not run.config_file.is_file():
            what = "It is a prepared corpus. " if (path / "manifest.json").is_file() else ""
            if (path / "compare.json").is_file():
                what = f"It is a comparison; its runs are the folders in {path / 'cells'}. "
            raise RunError(
                f"{path} is not a run: it has no config.yaml. {what}Runs are made by: dograph "
                "train run=DIR"
            )
        return run

    def lock(self) -> None:
        """Refuse to share the directory with a live process; a dead one leaves no lock."""
        self._lock = open(self.path / ".lock", "a")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            why = f"{self.path} is in use by another process; wait for it to end"
            raise RunError(why) from None
        self._lock.truncate(0)

    def announce(self) -> None:
        """Say in the lock that this process takes another mixture on the way."""
        assert self._lock is not None
        self._lock.write(TAKES_MIXTURES)
        self._lock.flush()

    def use(self) -> Literal["free", "busy", "takes mixtures"]:
        """Whether a live process holds the directory, and takes another mixture."""
        if not (lock := self.path / ".lock").is_file():
            return "free"
        with open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return "free"
            except OSError:
                return TAKES_MIXTURES if file.read() == TAKES_MIXTURES else "busy"

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def config(self) -> RunConfig:
        return parse_config(read_yaml(self.config_file), str(self.config_file))

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / CHECKPOINT.format(step)

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending. Unfinished ones have another name."""
        names = (path.name for path in self.checkpoints.glob("step-*") if path.is_dir())
        return sorted(int(name.removeprefix("step-")) for name in names if name[5:].isdecimal())

    def clean(self) -> None:
        """Remove what a kill left behind."""
        left = (self.checkpoints.glob(".*"), self.path.glob(".*.tmp"), self.probes.glob(".*.tmp"))
        for path in [path for found in left for path in found]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def rotate(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints, each by a rename first."""
        for step in self.checkpoint_steps()[:-keep]:
            doomed = self.checkpoints / f".old-{step}"
            os.rename(self.checkpoint(step), doomed)
            shutil.rmtree(doomed)

    def probe(self, step: int) -> Path:
        """A probe's file; the tensors' lies beside it. It is whole where this one is there."""
        return self.probes / f"{CHECKPOINT.format(step)}.json"

    def cut(self, step: int) -> None:
        """Drop what was written of steps after `step`; it will be made again."""
        self.metrics_file.touch()
        for file in (self.metrics_file, self.samples_file, self.graph_file, self.validation_file):
            if file.is_file():
                written = file.read_bytes().splitlines(keepends=True)
                whole = [line for line in written if line.endswith(b"\n")]
                write_bytes(file, b"".join(x for x in whole if json.loads(x)["step"] <= step))
        for path in self.probes.glob("step-*"):
            if path.stem[5:].isdecimal() and int(path.stem[5:]) > step:
                path.unlink()

    def link_model(self, step: int) -> None:
        """Point `model` at the model of a checkpoint."""
        link, temporary = self.path / "model", self.path / ".model.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(self.checkpoint(step).relative_to(self.path) / "model")
        os.replace(temporary, link)
        sync_file(self.path)


def run_of_model(folder: Path) -> tuple[RunDirectory, int] | None:
    """The run and the step that a checkpoint's model is of; None where no run made it."""
    checkpoint = folder.resolve().parent
    run = RunDirectory(checkpoint.parent.parent)
    step = checkpoint.name.removeprefix("step-")
    return (run, int(step)) if run.config_file.is_file() and step.isdecimal() else None
