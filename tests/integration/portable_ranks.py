"""One rank of somebody's own trainer: a Sketcher under every wrapper, without ours.

Shapes: B samples of all ranks, b of this one, T tokens, K sketch.
"""

from dataclasses import dataclass
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dograph.errors import ConfigError
from dograph.mixers.dograph import DoGraph
from dograph.models.build import build_model
from dograph.rng import key64
from dograph.sketch.gradients import WorldRows, average_gradients
from dograph.sketch.head import IGNORED, head_projection, sketched_cross_entropy
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher
from dograph.types import Signals
from tiny_steps import take_steps

DIM = 64
NUM_SAMPLES = 7
# How unevenly the samples lie on the ranks.
SHARES = {1: [7], 2: [5, 2], 3: [4, 1, 2]}
# Wrapper, mode, and whether activations are computed again.
KINDS = {
    "bare full": ("none", "full", False),
    "DDP full": ("DDP", "full", False),
    "DDP twopass": ("DDP", "twopass", False),
    "FSDP2 twopass": ("FSDP2", "twopass", False),
    "FSDP2 twopass, checkpointing": ("FSDP2", "twopass", True),
    "FSDP2 head": ("FSDP2", "head", False),
}


@dataclass
class Found:
    """Two steps: the sketches and weights of the world batch, and the whole gradients."""

    sketch_BK: list[torch.Tensor]
    weight_B: list[torch.Tensor]
    gradients: list[dict[str, torch.Tensor]]


class Watched(DoGraph):
    """DoGraph as the paper has it, which remembers what it saw and said."""

    def __init__(self):
        super().__init__("paper", num_domains=3, restarts=2)

    def weigh(self, signals):
        self.sketch_BK, self.weight_B = signals.sketch_BK, super().weigh(signals)
        return self.weight_B


def tokens(step):
    draw = torch.Generator().manual_seed(key64(0, "tokens", step) >> 1)
    return torch.randint(1, 100, (NUM_SAMPLES, 16), generator=draw)


def tiny():
    return build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=0).train()


class SketchingLoss(nn.Module):
    """Somebody's model with the portable ending in place of its output layer and loss."""

    def __init__(self, loss):
        super().__init__()
        self.model, self.vocab_size = loss.model, loss.vocab_size
        self.projection = None

    def forward(self, token_BT):
        hidden_BTD = self.model.base_model(token_BT, use_cache=False).last_hidden_state
        target_BT = F.pad(token_BT[:, 1:], (0, 1), value=IGNORED)
        weight_VD = self.model.get_output_embeddings().weight
        return sketched_cross_entropy(
            hidden_BTD, weight_VD, target_BT, self.projection, vocab_size=self.vocab_size
        )


def wrapped(model, wrapper):
    if wrapper == "DDP" and dist.is_initialized():
        return DistributedDataParallel(model)
    if wrapper == "FSDP2" and dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # also where there is a GPU
        for block in model.model.transformer.h:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


def train(kind):
    """Two steps of plain SGD on this rank's samples, as the Sketcher's docstring shows them."""
    wrapper, mode, checkpointing = KINDS[kind]
    model = SketchingLoss(tiny()) if mode == "head" else tiny()
    if checkpointing:
        model.model.gradient_checkpointing_enable({"use_reentrant": False})
    runnable = wrapped(model, wrapper)
    take = _head_step if mode == "head" else _step
    sketcher = None if mode == "head" else Sketcher(runnable, mode=mode, dim=DIM, refresh="step")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mixer, found = Watched(), Found([], [], [])
    for step in range(2):
        take(runnable, sketcher, mixer, own(tokens(step)), step)
        found.sketch_BK.append(mixer.sketch_BK)
        found.weight_B.append(mixer.weight_B)
        found.gradients.append({name: whole(p.grad) for name, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return found


def _step(runnable, sketcher, mixer, token_bT, step):
    with sketcher.record(token_bT, step):
        sketcher.backward(runnable(token_bT), mixer)


def _head_step(runnable, _, mixer, token_bT, step):
    weight_VD = runnable.model.get_output_embeddings().weight
    projection = Projection(dim=DIM, refresh="step")
    runnable.projection = head_projection(weight_VD, projection, step=step)
    loss_b, sketch_bK = runnable(token_bT)
    batch = WorldRows(len(token_bT), token_bT.device)
    sketch_BK = batch.gather(sketch_bK)
    seen = Signals(step=step, num_samples=NUM_SAMPLES, sketch_BK=sketch_BK, projection=step)
    weight_b = batch.local(mixer.weigh(seen))
    (weight_b * loss_b).sum().backward()


def own(token_BT):
    """This rank's rows."""
    size, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    return token_BT.split(SHARES[size])[rank]


def whole(gradient):
    return (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).clone()


def train_all(_world=None):
    return {kind: train(kind) for kind in KINDS}


def refusals(_world):
    """What every mode says to a sharded model, or None."""
    model = wrapped(tiny(), "FSDP2")
    said = {}
    for mode in ("full", "topdown", "exact", "reference", "twopass", "head"):
        try:
            Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
        except ConfigError as error:
            said[mode] = str(error)
        else:
            said[mode] = None
    return said


def rows(world):
    """Rows of a rank that has none, and gradients of one whose parameter was not used."""
    rank = world.rank
    row_bK = torch.arange(3 * rank, dtype=torch.float32).view(rank, 3) + 10 * rank
    batch = WorldRows(rank, world.device)
    gathered = batch.gather(row_bK)
    mine = batch.local(torch.arange(float(len(gathered))))
    used, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    used.grad = torch.full((2,), float(rank))
    if rank == 0:
        other.grad = torch.ones(2)
    average_gradients(parameter for parameter in (used, other))
    return gathered, mine, [used.grad, other.grad]


def rows_at_once(world):
    """Several tensors of one batch and the weights' way back, and how often ranks were asked."""
    rank = world.rank
    gather = dist.all_gather_into_tensor
    with patch.object(dist, "all_gather_into_tensor", wraps=gather) as asked:
        batch = WorldRows(rank, world.device)
        first = batch.gather(torch.full((rank, 2), rank))
        second = batch.gather(torch.arange(float(rank)))
        mine = batch.local(second)
    return batch.sizes, first, second, mine, asked.call_count


def everything(world, corpus, runs):
    """All that ranks do here, in one start of theirs; the steps are those of our own trainer."""
    return {
        "steps": take_steps(world, corpus, runs),
        "portable": train_all(world),
        "refusals": refusals(world),
        "rows": rows(world),
        "rows at once": rows_at_once(world),
    }
