"""The world batch: every rank's samples put together, weights sliced back, gradients averaged.

In one process nothing is sent. Shapes: B samples of the world batch, b those of this rank.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dograph.sketch.gradients import MicroBatchResult
from dograph.types import Signals

_BUCKET = 1 << 23  # numbers reduced at once
_GATHERED = (
    "loss_B",
    "reference_loss_B",
    "excess_loss_B",
    "source_B",
    "sketch_BK",
    "block_norm_B",
)


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_sharded(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor)


class WorldRows:
    """Which rows of the world batch are whose.

    Where the ranks' numbers of rows are not given as `sizes`, they are asked for once, when this is
    made, and read when first needed: make it before work is queued on the device, and reading waits
    for none of that work. Every rank must make one.
    """

    def __init__(
        self, num_local: int, device: torch.device, sizes: Sequence[int] | None = None
    ) -> None:
        self.num_local = num_local
        self._sizes = [num_local] if sizes is None and world_size() == 1 else list(sizes or ())
        if self._sizes:
            return
        mine = torch.full((1,), num_local, device=device)
        every = [torch.empty_like(mine) for _ in range(world_size())]
        dist.all_gather(every, mine)
        self._counts = torch.cat(every).to("cpu", non_blocking=True)
        self._answered = torch.cuda.Event() if device.type == "cuda" else None
        if self._answered is not None:
            self._answered.record()

    @property
    def sizes(self) -> list[int]:
        """How many rows each rank has."""
        if not self._sizes:
            if self._answered is not None:
                self._answered.synchronize()
            self._sizes = [int(count) for count in self._counts.tolist()]
        return self._sizes

    def gather(self, value_b: Tensor) -> Tensor:
        """The rows of every rank, in the order of ranks."""
        if len(self.sizes) == 1:
            return value_b
        padded = value_b.new_zeros(max(self.sizes), *value_b.shape[1:])
        padded[: len(value_b)] = value_b
        parts = [torch.empty_like(padded) for _ in self.sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, self.sizes, strict=True)])

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights, times the world size because wrappers average over ranks."""
        if len(self.sizes) == 1:
            return weight_B
        first = sum(self.sizes[: dist.get_rank()])
        return weight_B[first : first + self.num_local] * len(self.sizes)


def joined(results: Sequence[MicroBatchResult]) -> MicroBatchResult:
    """What this rank's micro-batches are known to be, one after the other."""
    if len(results) == 1:
        return results[0]
    parts = {name: [getattr(result, name) for result in results] for name in _GATHERED}
    whole: dict[str, Any] = {n: torch.cat(part) for n, part in parts.items() if part[0] is not None}
    return MicroBatchResult(**whole)


def gather_signals(
    results: Sequence[MicroBatchResult],
    rows: Sequence[WorldRows],
    *,
    losses: bool = True,
    **known: Any,
) -> Signals:
    """What a mixer weighs: the samples of these micro-batches on every rank, one after the other.

    `rows[i]` says whose are those of `results[i]`; `losses=False` sends no losses. `known` are the
    signals that need no gathering.
    """
    found: dict[str, Tensor] = {}
    for name in _GATHERED if losses else _GATHERED[1:]:
        parts = [
            own.gather(value.detach() if value.requires_grad else value)
            for own, result in zip(rows, results, strict=True)
            if (value := getattr(result, name)) is not None
        ]
        if parts:
            found[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    if results:
        known.setdefault("num_samples", sum(sum(own.sizes) for own in rows))
        known.setdefault("device", results[0].loss_B.device)
    return Signals(**{**found, **known})


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average `.grad` over ranks, many parameters at a time."""
    if world_size() == 1:
        return
    buckets: list[list[Tensor]] = [[]]
    held = 0
    for parameter in parameters:
        if parameter.grad is None:  # unused here, but perhaps not elsewhere
            parameter.grad = torch.zeros_like(parameter)
        if held > _BUCKET:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter.grad)
        held += parameter.grad.numel()
    waiting = []
    for bucket in buckets:
        flat = torch.cat([grad.flatten() for grad in bucket])
        waiting.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
    for bucket, flat, work in waiting:
        work.wait()
        flat /= world_size()
        for grad, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            grad.copy_(part.view_as(grad))
