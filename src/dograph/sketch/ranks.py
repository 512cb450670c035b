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


def gather_rows(value_b: Tensor) -> Tensor:
    """The rows of every rank, in the order of ranks, which may hold different numbers of them."""
    if world_size() == 1:
        return value_b
    sizes = _sizes(len(value_b), value_b.device)
    padded = value_b.new_zeros(max(sizes), *value_b.shape[1:])
    padded[: len(value_b)] = value_b
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def local_rows(weight_B: Tensor, num_local: int) -> Tensor:
    """This rank's weights of the world batch, times the world size."""
    if world_size() == 1:
        return weight_B
    first = sum(_sizes(num_local, weight_B.device)[: dist.get_rank()])
    return weight_B[first : first + num_local] * world_size()


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


def _sizes(num_local: int, device: torch.device) -> list[int]:
    mine = torch.tensor([num_local], device=device)
    every = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(every, mine)
    return [int(size) for size in torch.cat(every).tolist()]


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
