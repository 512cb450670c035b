"""Several processes: every rank's samples gathered, gradients averaged. One process: nothing."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_BUCKET = 1 << 23  # numbers reduced at once


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_sharded(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor)


class WorldRows:
    """Which rows of the world batch are whose.

    The ranks' numbers of rows are asked for once, when this is made, and read when first needed:
    make it before work is queued on the device, and reading waits for none of that work. Every
    rank must make one.
    """

    def __init__(self, num_local: int, device: torch.device) -> None:
        self.num_local = num_local
        self._counts = _asked(num_local, device) if world_size() > 1 else None
        self._answered: torch.cuda.Event | None = None
        if self._counts is not None and device.type == "cuda":
            self._answered = torch.cuda.Event()
            self._answered.record()
        self._sizes: list[int] = []

    @property
    def sizes(self) -> list[int]:
        """How many rows each rank has."""
        if not self._sizes:
            if self._answered is not None:
                self._answered.synchronize()
            counts = [self.num_local] if self._counts is None else self._counts.tolist()
            self._sizes = [int(count) for count in counts]
        return self._sizes

    def gather(self, value_b: Tensor) -> Tensor:
        """The rows of every rank, in the order of ranks."""
        if self._counts is None:
            return value_b
        padded = value_b.new_zeros(max(self.sizes), *value_b.shape[1:])
        padded[: len(value_b)] = value_b
        parts = [torch.empty_like(padded) for _ in self.sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, self.sizes, strict=True)])

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights of the world batch, times the world size."""
        if self._counts is None:
            return weight_B
        first = sum(self.sizes[: dist.get_rank()])
        return weight_B[first : first + self.num_local] * world_size()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average `.grad` over ranks, many parameters at a time."""
    if world_size() == 1:
        return
    grads = []
    for parameter in parameters:
        if parameter.grad is None:  # unused here, but perhaps not elsewhere
            parameter.grad = torch.zeros_like(parameter)
        grads.append(parameter.grad)
    waiting = []
    for bucket in _buckets(grads):
        flat = torch.cat([grad.flatten() for grad in bucket])
        waiting.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
    for bucket, flat, work in waiting:
        work.wait()
        flat /= world_size()
        for grad, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            grad.copy_(part.view_as(grad))


def _asked(num_local: int, device: torch.device) -> Tensor:
    """Every rank's number of rows, on its way to the CPU."""
    mine = torch.full((1,), num_local, device=device)
    every = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(every, mine)
    return torch.cat(every).to("cpu", non_blocking=True)


def _buckets(grads: list[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = [[]]
    held = 0
    for grad in grads:
        if held > _BUCKET:
            buckets.append([])
            held = 0
        buckets[-1].append(grad)
        held += grad.numel()
    return buckets
