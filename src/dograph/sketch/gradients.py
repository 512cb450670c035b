"""What micro-batches leave behind: losses, sketches, and gradients that wait for their weights.

Those of all ranks are gathered into the signals of the world batch, and weights sliced back; in one
process nothing is sent. Weighted gradients are added to the parameters' own `.grad`, in as few
passes as can be. Beside them: per-sample gradients in full (modes `exact` and `reference`).

Shapes: B samples, b those of this rank, K sketch, N rows (samples times tokens), x and y the two
axes of a weight.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dograph.kernels import usable
from dograph.types import Signals

if TYPE_CHECKING:
    from dograph.sketch.rules import Rule

Gradients = dict[str, Tensor]
Half = tuple["Rule", Tensor, Tensor]  # a layer, its input and the gradient of its output
_HALF = (torch.bfloat16, torch.float16)
_BUCKET = 1 << 23  # numbers reduced over ranks at once
_LOSSES = ("loss_B", "reference_loss_B", "excess_loss_B")
_GATHERED = (*_LOSSES, "source_B", "sketch_BK", "block_norm_B")


class Pending(Protocol):
    """Something that can fill `.grad` once the weights are known."""

    def backward(self, weight_B: Tensor) -> None:
        """Add the gradient of sum_i weight_i loss_i to `.grad`."""


@dataclass(slots=True)
class MicroBatchResult:
    """Losses, sketches and a deferred weighted backward; what was not asked for is None."""

    loss_B: Tensor
    pending: Pending | None = None
    sketch_BK: Tensor | None = None
    block_norm_B: Tensor | None = None  # of the sketch's part from the blocks' matrices
    reference_loss_B: Tensor | None = None
    excess_loss_B: Tensor | None = None
    source_B: Tensor | None = None
    groups: dict[str, Tensor] = field(default_factory=dict)  # parts that add up to the sketch

    def backward(self, weight_B: Tensor) -> None:
        """Add this micro-batch's share of the weighted gradient to `.grad`."""
        assert self.pending is not None
        self.pending.backward(weight_B)

    def without_gradient(self) -> Self:
        """What is known of the samples, without the activations that their gradient is made of."""
        return replace(self, loss_B=self.loss_B.detach(), pending=None)


@dataclass(slots=True)
class RetainedGraph:
    """`twopass`: the graph is still there, and a second backward runs through it."""

    loss_B: Tensor

    def backward(self, weight_B: Tensor) -> None:
        (weight_B.to(self.loss_B.dtype) * self.loss_B).sum().backward()


@dataclass(slots=True)
class Deferred:
    """`full`: every layer's input and output gradient; the weight gradients are made now.

    `topdown` and `head` have those of the layers above the cut, and there the residual stream with
    its gradient: scaled once, that one does the rest by the stock backward.
    """

    halves: list[Half]
    vectors: list[tuple["Rule", Tensor]]
    parameters: Mapping[str, nn.Parameter]
    cut: tuple[Tensor, Tensor] | None = None

    def backward(self, weight_B: Tensor) -> None:
        grads = Grads(self.parameters)
        times_B = len(weight_B) * weight_B
        with torch.autocast(weight_B.device.type, enabled=False):
            while self.halves:  # each pair is freed as soon as it is used
                rule, left, right = self.halves.pop()
                rule.add_weighted(left, right, times_B, grads)
            if self.vectors:  # all at once: a model has hundreds, each of them short
                rules, vectors = zip(*self.vectors, strict=True)
                vector_BF = torch.cat(vectors, dim=1)
                vector_F = weight_B.to(vector_BF.dtype) @ vector_BF
                parts = vector_F.split([vector.shape[1] for vector in vectors])
                for rule, part in zip(rules, parts, strict=True):
                    for name, gradient in rule.split(part).items():
                        grads.add(name, gradient)
        if self.cut is not None:
            hidden_BTD, grad_BTD = self.cut
            torch.autograd.backward([hidden_BTD], [scaled(grad_BTD, weight_B)])


@dataclass(slots=True)
class Materialised:
    """`exact` and `reference`: every sample's gradient in full."""

    gradients: Gradients
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        grads = Grads(self.parameters)
        for name, gradient in self.gradients.items():
            grads.add(name, torch.tensordot(weight_B.to(gradient.dtype), gradient, dims=1))


class Grads:
    """Adds to `.grad`, as backward does."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = parameters

    def add(self, name: str, gradient: Tensor) -> None:
        parameter = self.parameters[name]
        gradient = gradient.to(parameter.dtype)
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def add_product(self, name: str, first_Nx: Tensor, second_Ny: Tensor, times: float) -> None:
        """`times` the sum over rows of first second', summed and stored in float32."""
        parameter = self.parameters[name]
        fused = first_Nx.is_cuda and first_Nx.dtype in _HALF and parameter.dtype == torch.float32
        if not fused:
            product = first_Nx.T @ second_Ny
            wide = torch.promote_types(product.dtype, torch.float32)
            return self.add(name, product.to(wide).mul_(times))
        beta = int(parameter.grad is not None)
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        # One product writes float32 and adds to what is there: no rounding, no pass of its own.
        torch.addmm(
            parameter.grad,
            first_Nx.T,
            second_Ny,
            out_dtype=torch.float32,
            beta=beta,
            alpha=times,
            out=parameter.grad,
        )
        return None

    def add_rows(self, name: str, index_N: Tensor, row_Ny: Tensor, times: float) -> None:
        """`times` the rows, added up by their index."""
        parameter = self.parameters[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.index_add_(0, index_N, row_Ny.to(parameter.dtype), alpha=times)


def scaled(value: Tensor, times_B: Tensor) -> Tensor:
    """Scale sample by sample: value * times in float32 or better, rounded once, as value is.

    The one pass over memory that a weighted gradient costs beyond a plain one. PyTorch's broadcast
    product of bfloat16 runs at a third of an H200's memory speed (benchmarks/results), so on a GPU
    a Triton kernel takes its place.
    """
    narrow = value.dtype in (*_HALF, torch.float32)
    if narrow and value.is_contiguous() and usable(value):
        from dograph.kernels.gradients import scaled_by_kernel

        return scaled_by_kernel(value, times_B)
    return scaled_plainly(value, times_B)


def scaled_plainly(value: Tensor, times_B: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    wide = torch.promote_types(value.dtype, torch.float32)
    times = times_B.to(wide).view(-1, *[1] * (value.dim() - 1))
    return (value * times).to(value.dtype)


def one_backward_per_sample(loss_B: Tensor, parameters: Mapping[str, nn.Parameter]) -> Gradients:
    """Per-sample gradients the obvious way."""
    rows = [
        torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        for loss in loss_B
    ]
    return {
        name: torch.stack(
            [torch.zeros_like(parameter) if row[i] is None else row[i] for row in rows]
        )
        for i, (name, parameter) in enumerate(parameters.items())
    }


def materialised(halves: Sequence[Half], vectors: Sequence[tuple["Rule", Tensor]]) -> Gradients:
    """Per-sample gradients from what layers left; the uses of a tied parameter are added."""
    total: Gradients = {}
    found = [rule.per_sample(left, right) for rule, left, right in halves]
    for part in [*found, *(rule.split(vector_BF) for rule, vector_BF in vectors)]:
        for name, gradient in part.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total


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

    def split(self, token_bT: Tensor, at_once: int | None, *, alike: bool) -> tuple[Tensor, ...]:
        """This rank's micro-batches of at most `at_once` rows; `alike`: as many as all others'."""
        if at_once is None:
            return (token_bT,)
        pieces = -(-max(self.sizes) // at_once)
        if not alike or pieces == -(-len(token_bT) // at_once):
            return tuple(token_bT.split(at_once))
        micro_bT = tuple(token_bT.tensor_split(pieces))
        assert all(len(piece) for piece in micro_bT)
        return micro_bT

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
