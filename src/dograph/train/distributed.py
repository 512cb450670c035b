"""The processes of a run: one, or many under torchrun; and the machine they run on.

FSDP2 (train.shard): each rank holds a part of the weights, gradients and moments. Blocks are
gathered one after the other as the forward and the backward reach them, and gradients are averaged
into the parts they belong to. A step computes what it computes with DDP. Forwards, backwards and
reading the state gather from all ranks, so all ranks must do them together (docs/decisions/027).
"""

import ctypes
import os
import platform
import resource
import sys
import time
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
from dograph.sketch.cover import blocks_of


def at_rest(model: nn.Module) -> None:
    """Free the weights that a forward without a backward left gathered (FSDP2)."""
    if isinstance(model, FSDPModule):
        model.reshard()


@dataclass(frozen=True, slots=True)
class World:
    """This process among those of the run."""

    rank: int
    size: int
    device: torch.device
    shards: bool = False  # FSDP2: each rank has a part of the parameters; else DDP

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sizes(self, num_samples: int) -> list[int]:
        """How many samples of a world batch each rank has, without communication."""
        parts = [rank_slice(num_samples, rank, self.size) for rank in range(self.size)]
        return [part.stop - part.start for part in parts]

    def place(self, model: PerSampleLoss) -> None:
        """Put the model, or this rank's shards of it, on the device; then build the optimizer."""
        if not self.shards:
            model.to(self.device)
            return
        mesh = init_device_mesh(self.device.type, (self.size,))
        for block in blocks_of(model.model)[1]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.size == 1 or self.shards:
            return model
        on_gpu = self.device.type == "cuda"
        return DistributedDataParallel(model, device_ids=[self.device] if on_gpu else None)

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Inside it DDP averages no gradients before the last micro-batch."""
        if isinstance(model, DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def agree(self, flag: int) -> int:
        """The largest flag of all ranks."""
        if self.size == 1:
            return flag
        flags = torch.tensor(flag, device=self.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return int(flags.item())

    def share(self, text: str) -> str:
        """The first rank's text on every rank; as bytes, because objects would be pickled."""
        if self.size == 1:
            return text
        given = list(text.encode()) if self.is_main else []
        letters = torch.zeros(self.agree(len(given)), dtype=torch.uint8, device=self.device)
        letters[: len(given)] = torch.tensor(given, dtype=torch.uint8)
        dist.broadcast(letters, src=0)
        return bytes(letters.tolist()).decode()

    def total(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def open_world(device: str) -> Iterator[World]:
    """The processes that torchrun started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    world = World(rank=rank if size > 1 else 0, size=size, device=pick_device(device, local))
    on_gpu = world.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(world.device)
    else:
        keep_freed_memory()
    if size > 1:  # a long timeout: ranks wait while the first one writes a large checkpoint
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(hours=2))
    try:
        yield world
    finally:
        if size > 1:
            # Gloo's threads take the GIL to free the tensors of the last all-reduce, and DDP holds
            # it while it waits for these threads to end: a deadlock (pytorch/pytorch#56297).
            time.sleep(0.0 if on_gpu else 0.2)
            dist.destroy_process_group()


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees: every step allocates the same again.

    The C library of Linux returns blocks of over 32 MB, such as logits, as soon as they are freed,
    and for the next step the system clears every page again: a quarter of the CPU time of a small
    model's step (docs/log.md).
    """
    with suppress(AttributeError):  # another C library
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(option, (1 << 31) - 1)


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of train.device; `cuda` without a number is the GPU of the local rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'train.device="{name}": {str(error).splitlines()[0]}') from error
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f'train.device="{name}", but torch sees no GPU; set train.device=cpu, or see '
            "`dograph doctor`"
        )
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"this process needs cuda:{index}, but torch sees {torch.cuda.device_count()} GPU(s); "
            "start fewer processes, or set train.device to another device"
        )
    return torch.device("cuda", index)


LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")
_SELF = Path("/proc/self")


def describe_environment() -> dict[str, object]:
    """Versions, machine and devices, for env.json."""
    return {
        "dograph": __version__,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "command": sys.argv[1:],
    }


def reset_peak(device: torch.device) -> None:
    """Measure the peak from now on: a worker process trains many runs, one after the other."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: then it is the peak of the process
        (_SELF / "clear_refs").write_text("5")  # resets the high-water mark to the present size


def peak_bytes(device: torch.device) -> int:
    """Peak memory: allocated on a GPU; on a CPU resident, program and libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        lines = (_SELF / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
