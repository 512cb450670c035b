"""A trained model on disk, in Hugging Face's format, with the vocabulary at its true size."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from dograph.errors import RunError
from dograph.models.loss import PerSampleLoss

# Tensors that lie in shards on the ranks (FSDP2), and the same whole, as files hold them.


def whole(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The tensors with every shard in its place; those that are not sharded are left as they are.

    All ranks must ask. One tensor at a time is gathered, and goes to the host of the rank that is
    to `keep` it; the others get none, so nobody's device holds more than one. Tied tensors stay so.
    """
    found: dict[str, Tensor] = {}
    first: dict[int, str] = {}  # the first name of a tensor that may have two
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor.detach()
        elif (same := first.setdefault(id(tensor), name)) == name:
            full = tensor.full_tensor().detach()
            if keep:
                found[name] = full.cpu()
        elif keep:
            found[name] = found[same]
    return found


WEIGHTS = "model.safetensors"


def save_model(
    wrapped: PerSampleLoss,
    directory: Path,
    tokenizer_file: Path | None,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write what `AutoModelForCausalLM.from_pretrained` (and AutoTokenizer) can read.

    `weights` are those that `model_tensors` gave, where they lie in shards.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would tear the run's own progress line
    model, padded = wrapped.model, wrapped.model.config.vocab_size
    weights = model_tensors(wrapped, keep=True) if weights is None else weights
    model.config.vocab_size = wrapped.vocab_size
    try:
        model.save_pretrained(directory, state_dict=weights, max_shard_size="1TB")
    finally:
        model.config.vocab_size = padded
    if tokenizer_file is not None:
        try:
            PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file)).save_pretrained(directory)
        except Exception as error:  # the library has no narrower one, a full disk included
            raise OSError(f"the tokenizer could not be saved: {error}") from error


def model_tensors(wrapped: PerSampleLoss, *, keep: bool) -> dict[str, Tensor]:
    """The weights by name, whole, vocabulary padding cut off; see `whole` for shards."""
    return trim_vocab(wrapped, whole(wrapped.model.state_dict(keep_vars=True), keep=keep))


def restore_model(wrapped: PerSampleLoss, directory: Path) -> None:
    """Read weights back into a model of the same shape, padding the vocabulary again."""
    stored = load_file(directory / WEIGHTS)
    for name, parameter in wrapped.model.named_parameters():
        if name not in stored:
            raise RunError(f"{directory / WEIGHTS} lacks the parameter {name}")
        pad_rows_into(parameter.data, stored[name])
    for name, buffer in wrapped.model.named_buffers():
        if name in stored:
            buffer.copy_(stored[name])


def trim_vocab(wrapped: PerSampleLoss, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut padded vocabulary rows off the tensors that have one for every token."""
    model = wrapped.model
    rows = {id(model.get_input_embeddings().weight)}
    rows |= {id(parameter) for parameter in model.get_output_embeddings().parameters()}
    every = model.named_parameters(remove_duplicate=False)
    names = {name for name, parameter in every if id(parameter) in rows}
    return {n: t[: wrapped.vocab_size] if n in names else t for n, t in tensors.items()}


def pad_rows_into(target: Tensor, stored: Tensor) -> None:
    """Copy `stored` into the first rows of `target`; rows that were trimmed become zero."""
    missing = target.shape[0] - stored.shape[0] if target.ndim else 0
    if missing:
        stored = torch.cat([stored, stored.new_zeros(missing, *stored.shape[1:])])
    if isinstance(target, DTensor):  # every rank has it whole, and cuts its own: nothing is sent
        mesh, places = target.device_mesh, target.placements
        stored = distribute_tensor(stored.to(target.device), mesh, places, src_data_rank=None)
    target.copy_(stored)
