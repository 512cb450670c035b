"""What a micro-batch leaves behind: losses, sketches, and a gradient that waits for its weights.

Weighted gradients are added to the parameters' own `.grad`, in as few passes as can be. Beside
them: per-sample gradients in full, which modes `exact` and `reference` make.

Shapes: B samples, K sketch, N rows (samples times tokens), x and y the two axes of a weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor, nn

from dograph.kernels import usable

if TYPE_CHECKING:
    from dograph.sketch.rules import Rule

Gradients = dict[str, Tensor]
Half = tuple["Rule", Tensor, Tensor]  # a layer, its input and the gradient of its output
_HALF = (torch.bfloat16, torch.float16)


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
