"""A mixer's state inside a checkpoint folder of somebody else: safetensors and JSON, no pickle."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from dograph.errors import RunError
from dograph.files import sha256_of, write_bytes, write_json
from dograph.mixers.base import Mixer

TENSORS, VALUES = "dograph_mixer.safetensors", "dograph_mixer.json"


def store_mixer(mixer: Mixer, folder: Path, step: int) -> None:
    """Add the mixer's state after `step` steps to a checkpoint; the JSON comes last."""
    state = mixer.state_dict()
    tensors = {name: v.contiguous() for name, v in state.items() if isinstance(v, torch.Tensor)}
    values = {name: value for name, value in state.items() if name not in tensors}
    if not folder.is_dir():
        raise RunError(
            f"the checkpoint of step {step} is not in {folder}, so the mixer's state has no place; "
            "a hyper-parameter search saves elsewhere: run it without a mixer attached"
        )
    write_bytes(folder / TENSORS, save(tensors))
    digest = sha256_of(folder / TENSORS)
    write_json(folder / VALUES, {"version": 1, "step": step, "sha256": digest, "mixer": values})


def restore_mixer(mixer: Mixer, folder: Path) -> None:
    """Take the state of a checkpoint back."""
    try:
        stored = json.loads((folder / VALUES).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
        whole = stored["sha256"] == sha256_of(folder / TENSORS)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(
            f"{folder} holds no whole state of a mixer ({error}). Resume from a checkpoint that "
            "was saved with the mixer attached, or start anew"
        ) from error
    if not whole:
        raise RunError(
            f"{folder / TENSORS} is damaged: it does not match {VALUES}. Resume from the "
            "checkpoint before it"
        )
    mixer.load_state_dict({**stored["mixer"], **tensors})
