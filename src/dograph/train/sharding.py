"""FSDP2: every rank holds a part of the weights, gradients and moments (docs/decisions/027).

Blocks are gathered one after the other as the forward and the backward come to them; gradients are
averaged into the parts they belong to. What a step computes is what DDP computes. Two things every
rank must do alike, as each gathers for all: forwards and backwards, and reading the state.

Shapes: B samples of all ranks, b of this one, T tokens.
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.models.loss import PerSampleLoss
from dograph.modes import SHARDABLE
from dograph.sketch.coverage import blocks_of


def require_shardable(config: RunConfig, mixer: Mixer, world_size: int = 1) -> None:
    """Refuse with train.shard what would go wrong later.

    A mode of the sketch that fills `.grad` itself, which of a shard only FSDP2 can; ranks that
    cannot make equally many micro-batches, as each gathers for all.
    """
    if not config.train.shard:
        return
    mode = config.sketch.mode
    if "sketch" in mixer.needs and mode not in SHARDABLE:
        raise ConfigError(
            f"train.shard=true with sketch.mode={mode}, which makes the gradient of whole weights "
            f"itself; mixer {config.mixer.name} needs sketches: set sketch.mode to "
            f"{' or '.join(SHARDABLE)}, or train.shard=false (DDP)"
        )
    batch_size, at_once = config.train.batch_size, config.train.micro_batch_size
    if at_once == 1 and batch_size % world_size:  # larger ones can be shared out alike
        raise ConfigError(
            f"train.shard=true with train.micro_batch_size=1 and train.batch_size={batch_size} on "
            f"{world_size} processes: some would make one micro-batch more than others; make "
            "train.batch_size a multiple of the processes, or train.micro_batch_size 2 or more"
        )


def shard_model(model: PerSampleLoss, device: torch.device, world_size: int) -> None:
    """Leave this rank its part of every parameter, on its device: block by block, then the rest.

    Parameters are replaced: whatever refers to them, an optimizer for one, is to be made after it.
    """
    mesh = init_device_mesh(device.type, (world_size,))
    for block in blocks_of(model.model)[1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def at_rest(model: nn.Module) -> None:
    """Drop what a forward without a backward left gathered; a model that is whole stays so."""
    if isinstance(model, FSDPModule):
        model.reshard()


def clip_gradients(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale the gradient down to a norm of `most`; return the norm it had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def split_alike(token_bT: Tensor, at_once: int, most: int) -> tuple[Tensor, ...]:
    """Micro-batches of at most `at_once` samples, as many as a rank of `most` samples makes."""
    pieces = -(-most // at_once)
    same = -(-len(token_bT) // at_once) == pieces  # as DDP splits them
    micro_bT = tuple(token_bT.split(at_once) if same else token_bT.tensor_split(pieces))
    assert all(len(piece) for piece in micro_bT)
    return micro_bT
