"""The processes of a run: one, or many under torchrun.

Everything that differs between one process and many is here: gathering what each rank knows into
the world batch, slicing weights back, agreeing to stop.
"""

import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from dograph import __version__
from dograph.data.loader import rank_slice
from dograph.errors import ConfigError
from dograph.models.loss import PerSampleLoss
from dograph.sketch.coverage import blocks_of

# FSDP2: every rank holds a part of the weights, gradients and moments (docs/decisions/027).
#
# Blocks are gathered one after the other as the forward and the backward come to them; gradients
# are averaged into the parts they belong to. What a step computes is what DDP computes. Two
# things every rank must do alike, as each gathers for all: forwards and backwards, and reading
# the state.


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


@dataclass(frozen=True, slots=True)
class World:
    """This process among those of the run."""

    rank: int
    size: int
    device: torch.device
    shards: bool = False  # parameters lie in parts on the ranks (FSDP2), not whole on each (DDP)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sizes(self, num_samples: int) -> list[int]:
        """How many samples of a world batch each rank has: known to all, so none is asked."""
        parts = [rank_slice(num_samples, rank, self.size) for rank in range(self.size)]
        return [part.stop - part.start for part in parts]

    def place(self, model: PerSampleLoss) -> None:
        """Put the model, or this rank's part of it, on the device."""
        if self.shards:
            shard_model(model, self.device, self.size)
        else:
            model.to(self.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.size == 1 or self.shards:
            return model
        on_gpu = self.device.type == "cuda"
        return DistributedDataParallel(model, device_ids=[self.device] if on_gpu else None)

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Inside it, gradients stay on this rank until the last micro-batch.

        Not those of shards: they would be held whole.
        """
        if isinstance(model, DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def agree(self, flag: int) -> int:
        """The largest flag that any rank holds."""
        if self.size == 1:
            return flag
        flags = torch.tensor(flag, device=self.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return int(flags.item())

    def share(self, text: str) -> str:
        """The first rank's text, on every rank; as bytes, for objects would travel pickled."""
        if self.size == 1:
            return text
        given = text.encode()
        size = torch.tensor(len(given), device=self.device)
        dist.broadcast(size, src=0)
        letters = torch.zeros(int(size.item()), dtype=torch.uint8, device=self.device)
        if self.is_main:
            letters.copy_(torch.tensor(list(given), dtype=torch.uint8))
        dist.broadcast(letters, src=0)
        return bytes(letters.tolist()).decode()

    def total(self, values: Tensor) -> Tensor:
        """Sum over ranks."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def open_world(device: str) -> Iterator[World]:
    """This process' world: torchrun's, if it started us, else a world of one."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size == 1:
        yield World(rank=0, size=1, device=place)
        return
    # The others wait while the first rank writes a checkpoint, which may be large.
    patience = timedelta(hours=2)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=patience)
    try:
        yield World(rank=rank, size=size, device=place)
    finally:
        dist.destroy_process_group()


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'train.device="{name}": {str(error).splitlines()[0]}') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f'train.device="{name}", but torch sees no GPU; set train.device=cpu, or see '
            "`dograph doctor`"
        )
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", local_rank)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"{device} was asked for, but torch sees {torch.cuda.device_count()} GPU(s); start "
            "fewer processes or name another device"
        )
    return device


# What a run ran on: versions, machine, devices.


LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")


def describe_environment() -> dict[str, object]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "dograph": __version__,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpus,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "command": sys.argv[1:],
    }


_SELF = Path("/proc/self")


def reset_peak(device: torch.device) -> None:
    """Count memory from now on. A worker makes many runs; each should answer for its own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: the mark of the whole process is left
        (_SELF / "clear_refs").write_text("5")  # the high-water mark falls to what is held now


def peak_bytes(device: torch.device) -> int:
    """Most memory held: allocated on a GPU; resident on a CPU, program and libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = (_SELF / "status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
