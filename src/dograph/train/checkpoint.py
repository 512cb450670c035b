"""Checkpoints: complete or absent, never half; tensors in safetensors, the rest in JSON.

Everything is written under a hidden name, forced to disk, and renamed at the end, so a kill at any
time leaves the previous checkpoint intact. The model is in Hugging Face's format with its true
vocabulary size. Tensors sharded by FSDP2 are gathered for it, and sharded again when they are read.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dograph.data.sampler import Sampler, WeightLog
from dograph.errors import RunError
from dograph.files import sha256_of, sync_file, write_json, write_text
from dograph.mixers.base import Mixer
from dograph.models.loss import PerSampleLoss
from dograph.records import DAMAGE
from dograph.train.distributed import World
from dograph.train.run_dir import RunDirectory

MODEL, WEIGHTS, OPTIMIZER = "model", "model.safetensors", "optimizer.safetensors"
MIXER, WEIGHT_LOG, STATE = "mixer.safetensors", "weights.jsonl", "state.json"
METERS = "meters."  # before the names of their states
MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW, by parameter
UPDATES = "updates"  # made so far: steps less those skipped


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What training changes: the content of a checkpoint."""

    model: PerSampleLoss
    optimizer: torch.optim.Optimizer
    mixer: Mixer
    sampler: Sampler
    corpus_digest: str
    meters: nn.ModuleDict = field(default_factory=nn.ModuleDict)  # noise scale, watch


def write_checkpoint(
    run: RunDirectory, step: int, state: TrainingState, tokenizer: Any, *, main: bool = True
) -> None:
    """Store the run after `step` steps; called on every rank, the `main` one writes."""
    weights = model_tensors(state.model, keep=main)
    moments = optimizer_tensors(state.optimizer, state.model, keep=main)
    final, temporary = run.checkpoint(step), run.checkpoints / f".step-{step}.tmp"
    if not main or final.exists():
        return
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        save_model(state.model, temporary / MODEL, tokenizer, weights)
        save_file({name: t.contiguous() for name, t in moments.items()}, temporary / OPTIMIZER)
        tensors, values = mixer_state(state.mixer, state.meters)
        save_file(tensors, temporary / MIXER)
        write_text(temporary / WEIGHT_LOG, state.sampler.log.cut(step).dump())
        seal(temporary, step, state.corpus_digest, values)
        os.rename(temporary, final)
        sync_file(run.checkpoints)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        free = shutil.disk_usage(run.path).free / 2**20
        raise RunError(
            f"the checkpoint of step {step} could not be written ({reason}; "
            f"{free:.0f} MiB free). Earlier checkpoints are intact. Free disk space, then run: "
            f"dograph train --resume {run.path}"
        ) from error


def seal(folder: Path, step: int, corpus: str, mixer: dict[str, Any] | None) -> None:
    """Write the state of a checkpoint with the digests of its files, and force all to disk.

    `mixer` is its state without tensors; None: it starts here, in a fork.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STATE)
    facts: dict[str, Any] = {"version": 1, "step": step, "corpus": corpus, "mixer": mixer}
    facts["sha256"] = {str(path.relative_to(folder)): sha256_of(path) for path in files}
    write_json(folder / STATE, facts | {"state_sha256": _digest(facts)})
    for path in (*files, folder / MODEL, folder):
        sync_file(path)


def _digest(facts: dict[str, Any]) -> str:
    """Of JSON values, as they are after they have been read."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(facts))).encode()).hexdigest()


def read_checkpoint(run: RunDirectory, step: int, state: TrainingState) -> bool:
    """Restore the run as it was after `step` steps; False if the mixer starts there, in a fork.

    Damage must have been looked for: `newest_whole`, `check_checkpoint`.
    """
    folder = run.checkpoint(step)
    stored = json.loads((folder / STATE).read_text(encoding="utf-8"))
    if stored["corpus"] != state.corpus_digest:
        raise RunError(
            f"the corpus is not the one that {run.path} was trained on: its tokens have changed "
            "since. Restore the old corpus, or start a new run"
        )
    restore_model(state.model, folder / MODEL)
    restore_optimizer(state.optimizer, state.model, load_file(folder / OPTIMIZER), step)
    if WEIGHT_LOG in stored["sha256"]:
        state.sampler.log = WeightLog.load(folder / WEIGHT_LOG, state.sampler.names)
    if stored["mixer"] is None:
        return False
    restore_mixer(state.mixer, state.meters, folder / MIXER, stored["mixer"])
    return True


def newest_whole(run: RunDirectory, world: World, *, strict: bool) -> tuple[int | None, list[str]]:
    """The newest checkpoint that is not damaged, and the damage of newer ones; on every rank.

    None if the run has no checkpoint yet. An error if all are damaged, or with `strict` one is.
    """
    steps, damage, whole = run.checkpoint_steps() if world.is_main else [], [], None
    for step in reversed(steps):
        try:
            check_checkpoint(run.checkpoint(step))
            whole = step
            break
        except RunError as error:
            damage.append(str(error))
    whole, damage = json.loads(world.share(json.dumps([whole, damage])))
    if damage and (strict or whole is None):
        remedy = f"Without --strict the run goes on from step {whole}"
        if whole is None:
            remedy = f"{run.path} has no checkpoint that is whole; restore one, or start anew"
            remedy += f": dograph train {run.config_file} run={run.path}-2"
        raise RunError(f"{'; '.join(damage)}. {remedy}")
    return whole, damage


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, after checking its digest (older ones have none) and its files."""
    name = STATE
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state.pop("state_sha256", None) not in (None, _digest(state)):
            raise ValueError("it has another digest")
        facts = {key: state[key] for key in ("corpus", "mixer", "sha256")}
        for name, digest in facts["sha256"].items():
            if sha256_of(folder / name) != digest:
                raise ValueError("it has another digest")
    except (OSError, *DAMAGE) as error:
        raise RunError(f"{folder / name} is damaged or missing") from error
    return facts


def mixer_state(mixer: Mixer, meters: nn.ModuleDict) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of a mixer and of the meters, as tensors and JSON values."""
    state = mixer.state_dict()
    tensors = {name: v.contiguous() for name, v in state.items() if isinstance(v, Tensor)}
    values = {name: value for name, value in state.items() if name not in tensors}
    return tensors | meters.state_dict(prefix=METERS), values


def restore_mixer(
    mixer: Mixer, meters: nn.ModuleDict, file: Path, values: Mapping[str, Any]
) -> None:
    """Restore `mixer_state`; a meter that is new, or has other sources now, starts anew."""
    tensors, states = load_file(file), meters.state_dict(prefix=METERS)
    for name in [name for name in tensors if name.startswith(METERS)]:
        stored = tensors.pop(name)
        if name in states and states[name].shape == stored.shape:
            states[name].copy_(stored)
    mixer.load_state_dict({**values, **tensors})


def save_model(
    wrapped: PerSampleLoss,
    directory: Path,
    tokenizer: Any,  # a `tokenizers.Tokenizer`, or None
    weights: dict[str, Tensor] | None = None,  # of `model_tensors`, if computed already
) -> None:
    """Write what `from_pretrained` of AutoModelForCausalLM (and AutoTokenizer) can read."""
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would disturb the run's own progress line
    model, padded = wrapped.model, wrapped.model.config.vocab_size
    weights = model_tensors(wrapped, keep=True) if weights is None else weights
    model.config.vocab_size = wrapped.vocab_size
    try:
        model.save_pretrained(directory, state_dict=weights, max_shard_size="1TB")
    finally:
        model.config.vocab_size = padded
    if tokenizer is not None:
        try:
            PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
        except Exception as error:  # the library raises no narrower class, even for a full disk
            raise OSError(f"the tokenizer could not be saved: {error}") from error


def restore_model(wrapped: PerSampleLoss, directory: Path) -> None:
    """Load weights into a model of the same shape, padding the vocabulary again."""
    stored = load_file(directory / WEIGHTS)
    for name, parameter in wrapped.model.named_parameters():
        if name not in stored:
            raise RunError(f"{directory / WEIGHTS} lacks the parameter {name}")
        pad_rows_into(parameter.data, stored[name])
    for name, buffer in wrapped.model.named_buffers():
        if name in stored:
            buffer.copy_(stored[name])


def model_tensors(wrapped: PerSampleLoss, *, keep: bool) -> dict[str, Tensor]:
    """The weights by name, whole, without vocabulary padding."""
    return whole(wrapped, wrapped.model.state_dict(keep_vars=True), keep=keep)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: PerSampleLoss, *, keep: bool = True
) -> dict[str, Tensor]:
    """AdamW's state by moment and parameter name, whole, without vocabulary padding."""
    tensors: dict[str, Tensor] = {}
    named = [(n, p) for n, p in model.model.named_parameters() if p in optimizer.state]
    for moment in MOMENTS:
        held = {name: optimizer.state[parameter][moment] for name, parameter in named}
        parts = whole(model, held, keep=keep)
        tensors |= {f"{moment}.{name}": tensor for name, tensor in parts.items()}
    if keep:
        updates = [float(optimizer.state[parameter]["step"]) for _, parameter in named]
        tensors[UPDATES] = torch.tensor(max(updates, default=0.0))
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: PerSampleLoss, tensors: dict[str, Tensor], step: int
) -> None:
    """Restore what `optimizer_tensors` returned after `step` steps."""
    updates = tensors.get(UPDATES, torch.tensor(float(step)))  # older versions skip no update
    for name, parameter in model.model.named_parameters():
        stored = {moment: tensors.get(f"{moment}.{name}") for moment in MOMENTS}
        if not parameter.requires_grad or all(t is None for t in stored.values()):
            continue  # it never had a gradient
        state = optimizer.state[parameter]
        state["step"] = updates.to(parameter.device, copy=True)
        for moment, tensor in stored.items():
            if tensor is None:
                raise RunError(f"the checkpoint lacks {moment} of {name}: it is of another model")
            state[moment] = torch.zeros_like(parameter)
            pad_rows_into(state[moment], tensor)


def whole(loss: PerSampleLoss, tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Tensors by parameter name, gathered from their shards and without vocabulary padding.

    All ranks must call it. Shards are gathered one tensor at a time and copied to the host of the
    rank that is to `keep` them, so no device holds more than one. Tied tensors stay tied.
    """
    model = loss.model
    vocab = {id(model.get_input_embeddings().weight)}  # parameters with one row per token
    vocab |= {id(parameter) for parameter in model.get_output_embeddings().parameters()}
    every = model.named_parameters(remove_duplicate=False)
    padded = {name for name, parameter in every if id(parameter) in vocab}
    result: dict[str, Tensor] = {}
    first: dict[int, str] = {}  # the first name of a tied tensor
    for name, tensor in tensors.items():
        full = tensor.detach()
        if isinstance(tensor, DTensor):
            if (same := first.setdefault(id(tensor), name)) != name:
                if keep:
                    result[name] = result[same]
                continue
            full = tensor.full_tensor().detach()
            if not keep:
                continue
            full = full.cpu()
        result[name] = full[: loss.vocab_size] if name in padded else full
    return result


def pad_rows_into(target: Tensor, stored: Tensor) -> None:
    """Copy `stored` into the first rows of `target`; the rows of the padding become zero."""
    missing = target.shape[0] - stored.shape[0] if target.ndim else 0
    if missing:
        stored = torch.cat([stored, stored.new_zeros(missing, *stored.shape[1:])])
    if isinstance(target, DTensor):  # each rank takes its shard of the whole tensor: no sending
        mesh, places = target.device_mesh, target.placements
        stored = distribute_tensor(stored.to(target.device), mesh, places, src_data_rank=None)
    target.copy_(stored)
