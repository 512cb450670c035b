"""The rule of weight matrices: Linear and Conv1D, with or without a bias.

Shapes: B samples, T tokens, x and y the columns of the two projections.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.sketch.gradients import Gradients, Grads
from dograph.sketch.rules import Rule, over_tokens, summed_products
from dograph.sketch.scaling import scaled


class MatrixRule(Rule):
    """Linear, and Hugging Face's Conv1D, whose weight is the transpose."""

    vectors = ("bias",)

    def __init__(self, path: str, module: Any, names: dict[str, str], *, wide: bool) -> None:
        super().__init__(path, module, names, wide=wide)
        self.inputs_on_rows = not isinstance(module, nn.Linear)
        weight = module.weight
        self.num_inputs, self.num_outputs = (
            weight.shape if self.inputs_on_rows else weight.shape[::-1]
        )

    @property
    def group(self) -> Literal["blocks", "rest"]:
        return "rest" if self.wide else "blocks"

    def detached(self, value: Tensor) -> Tensor:
        weight, bias = self.module.weight.detach(), self.module.bias
        bias = None if bias is None else bias.detach()
        return F.linear(value, weight.T if self.inputs_on_rows else weight, bias)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value.detach().to(output.dtype)  # autocast multiplied it in this precision

    def half_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*shape, self.num_inputs), (*shape, self.num_outputs)

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        rows, columns = (left, right) if self.inputs_on_rows else (right, left)
        row_Rq, col_Cp = (side.to(left.dtype) for side in projection)
        return summed_products(rows @ row_Rq, columns @ col_Cp)

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        return over_tokens(grad)

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor, into: Grads) -> None:
        if self.num_inputs <= self.num_outputs:
            left = scaled(left, times_B)
        else:
            right = scaled(right, times_B)
        pair = (left, right) if self.inputs_on_rows else (right, left)
        first_Nx, second_Ny = (half.flatten(0, 1) for half in pair)
        into.add_product(self.names["weight"], first_Nx, second_Ny, 1 / len(times_B))

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        pair = (left, right) if self.inputs_on_rows else (right, left)
        return {self.names["weight"]: torch.bmm(pair[0].mT, pair[1])}
