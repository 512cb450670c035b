"""Checkpoints: complete or absent, never half; tensors in safetensors, the rest in JSON.

Everything is written under a hidden name, forced to disk, and renamed into place at the end. A
kill at any instant leaves the previous checkpoint as it was.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dograph.data.sampler import Sampler, WeightLog
from dograph.errors import RunError
from dograph.files import sha256_of, sync_file, write_json, write_text
from dograph.mixers.base import Mixer
from dograph.models.files import model_tensors, restore_model, save_model
from dograph.models.loss import PerSampleLoss
from dograph.train.optim import optimizer_tensors, restore_optimizer
from dograph.train.run_dir import RunDirectory

MODEL, OPTIMIZER, MIXER, WEIGHTS, STATE = (
    "model",
    "optimizer.safetensors",
    "mixer.safetensors",
    "weights.jsonl",
    "state.json",
)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What training changes, and so what a checkpoint holds."""

    model: PerSampleLoss
    optimizer: torch.optim.Optimizer
    mixer: Mixer
    sampler: Sampler
    corpus_digest: str


def write_checkpoint(
    run: RunDirectory,
    step: int,
    state: TrainingState,
    tokenizer_file: Path | None,
    *,
    main: bool = True,
) -> None:
    """Store the run as it stands after `step` steps: every rank asks, the `main` one writes."""
    weights = model_tensors(state.model, keep=main)  # gathered where they lie in shards
    moments = optimizer_tensors(state.optimizer, state.model, keep=main)
    final, temporary = run.checkpoint(step), run.checkpoints / f".step-{step}.tmp"
    if not main or final.exists():
        return
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        save_model(state.model, temporary / MODEL, tokenizer_file, weights)
        save_file({name: t.contiguous() for name, t in moments.items()}, temporary / OPTIMIZER)
        mixer = state.mixer.state_dict()
        tensors = {k: v.contiguous() for k, v in mixer.items() if isinstance(v, torch.Tensor)}
        save_file(tensors, temporary / MIXER)
        write_text(temporary / WEIGHTS, state.sampler.log.cut(step).dump())
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        digests = {str(path.relative_to(temporary)): sha256_of(path) for path in files}
        facts: dict[str, Any] = {"version": 1, "step": step, "corpus": state.corpus_digest}
        facts["mixer"] = {k: v for k, v in mixer.items() if k not in tensors}
        write_json(temporary / STATE, facts | {"sha256": digests})
        for path in (*files, temporary / MODEL, temporary):
            sync_file(path)
        os.rename(temporary, final)
        sync_file(run.checkpoints)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        free = shutil.disk_usage(run.path).free / 2**20
        raise RunError(
            f"the checkpoint of step {step} could not be written ({reason}; "
            f"{free:.0f} MiB free). Earlier checkpoints are whole. Free disk space, then run: "
            f"dograph train --resume {run.path}"
        ) from error


def read_checkpoint(run: RunDirectory, step: int, state: TrainingState) -> None:
    """Put everything back as it was after `step` steps."""
    folder = run.checkpoint(step)
    stored = check_checkpoint(folder)
    if stored["corpus"] != state.corpus_digest:
        raise RunError(
            f"the corpus is not the one that {run.path} was trained on: its tokens have changed "
            "since. Put the old corpus back, or start a new run"
        )
    restore_model(state.model, folder / MODEL)
    restore_optimizer(state.optimizer, state.model, load_file(folder / OPTIMIZER), step)
    state.mixer.load_state_dict({**stored["mixer"], **load_file(folder / MIXER)})
    state.sampler.log = WeightLog.load(folder / WEIGHTS, state.sampler.names)


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint whose files are what was written."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{folder / STATE} is damaged or missing ({error}). Remove {folder} to resume from the "
            "checkpoint before it"
        ) from error
    for name, digest in state["sha256"].items():
        path = folder / name
        if not path.is_file() or sha256_of(path) != digest:
            raise RunError(
                f"{path} is damaged or missing. Remove {folder} to resume from the checkpoint "
                "before it"
            )
    return state
