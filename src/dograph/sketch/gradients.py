"""Where weighted gradients are put: the parameters' own `.grad`, in as few passes as can be.

Shapes: N rows (samples times tokens), x and y the two axes of a weight.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dograph.kernels import usable

Gradients = dict[str, Tensor]
_HALF = (torch.bfloat16, torch.float16)


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
        known = parameter.grad is not None
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        grad = parameter.grad
        # One product writes float32 and adds to what is there: no rounding, no pass of its own.
        torch.addmm(
            grad,
            first_Nx.T,
            second_Ny,
            out_dtype=torch.float32,
            beta=int(known),
            alpha=times,
            out=grad,
        )
        return None

    def add_rows(self, name: str, index_N: Tensor, row_Ny: Tensor, times: float) -> None:
        """`times` the rows, added up by their index."""
        parameter = self.parameters[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.index_add_(0, index_N, row_Ny.to(parameter.dtype), alpha=times)


# Samples times their weights, rounded once.
#
# The one pass over memory that a weighted gradient costs beyond a plain one. PyTorch's broadcast
# product of bfloat16 runs at a third of an H200's memory speed (benchmarks/results), so on a GPU a
# Triton kernel takes its place.


def scaled(value: Tensor, times_B: Tensor) -> Tensor:
    """Scale sample by sample: value * times in float32 or better, rounded as value is."""
    narrow = value.dtype in (torch.bfloat16, torch.float16, torch.float32)
    if narrow and value.is_contiguous() and usable(value):
        from dograph.kernels.gradients import scaled_by_kernel

        return scaled_by_kernel(value, times_B)
    return scaled_plainly(value, times_B)


def scaled_plainly(value: Tensor, times_B: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    wide = torch.promote_types(value.dtype, torch.float32)
    times = times_B.to(wide).view(-1, *[1] * (value.dim() - 1))
    return (value * times).to(value.dtype)
