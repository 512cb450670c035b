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
from torch import Tensor

from dograph.data.sampler import Sampler, WeightLog
from dograph.errors import RunError
from dograph.files import sha256_of, sync_file, write_json, write_text
from dograph.mixers.base import Mixer
from dograph.models.files import (
    model_tensors,
    pad_rows_into,
    restore_model,
    save_model,
    trim_vocab,
    whole,
)
from dograph.models.loss import PerSampleLoss
from dograph.train.run_dir import RunDirectory

MODEL, OPTIMIZER, MIXER = "model", "optimizer.safetensors", "mixer.safetensors"
WEIGHTS, STATE = "weights.jsonl", "state.json"
MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW, by parameter


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
        tensors = {k: v.contiguous() for k, v in mixer.items() if isinstance(v, Tensor)}
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


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: PerSampleLoss, *, keep: bool = True
) -> dict[str, Tensor]:
    """The optimizer's state by moment and parameter name, whole, vocabulary padding cut off."""
    tensors: dict[str, Tensor] = {}
    for moment in MOMENTS:
        named = {
            name: optimizer.state[parameter][moment]
            for name, parameter in model.model.named_parameters()
            if parameter in optimizer.state
        }
        trimmed = trim_vocab(model, whole(named, keep=keep))
        tensors |= {f"{moment}.{name}": tensor for name, tensor in trimmed.items()}
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: PerSampleLoss, tensors: dict[str, Tensor], step: int
) -> None:
    """Put back what `optimizer_tensors` gave after `step` updates."""
    for name, parameter in model.model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not any(f"{moment}.{name}" in tensors for moment in MOMENTS):
            continue  # it never had a gradient
        state = optimizer.state[parameter]
        state["step"] = torch.tensor(float(step), device=parameter.device)
        for moment in MOMENTS:
            if f"{moment}.{name}" not in tensors:
                raise RunError(f"the checkpoint lacks {moment} of {name}; it is of another model")
            state[moment] = torch.zeros_like(parameter)
            pad_rows_into(state[moment], tensors[f"{moment}.{name}"])
