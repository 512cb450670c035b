"""The rule of weight matrices: Linear and Conv1D, with or without a bias.

Shapes: B samples, T tokens, x and y the columns of the two projections.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.sketch.projection import MatrixProjection, Projection
from dograph.sketch.rule import Gradients, Rule, widened


class MatrixRule(Rule):
    """Linear, and Hugging Face's Conv1D, whose weight is the transpose."""

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

    def slot_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*shape, self.num_inputs), (*shape, self.num_outputs)

    def project(self, projection: Projection, step: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        name, weight = self.names["weight"], self.module.weight
        like = torch.empty(0, dtype=dtype, device=weight.device)
        return projection.matrix(
            name, tuple(weight.shape), wide=self.wide, step=step, like=like
        ).tensors()

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        assert self.sketch_slot is not None
        p = MatrixProjection.from_tensors(projection, self.sketch_slot.shape[1])
        in_side, out_side = (p.row_Rq, p.col_Cp) if self.inputs_on_rows else (p.col_Cp, p.row_Rq)
        input_BTx = widened(left @ in_side.to(left.dtype))
        if "bias" in self.names:
            input_BTx = input_BTx + (p.one_row_q if self.inputs_on_rows else p.one_col_p)
        output_BTy = widened(right @ out_side.to(right.dtype))
        first, second = (input_BTx, output_BTy) if self.inputs_on_rows else (output_BTy, input_BTx)
        return p.slot(torch.bmm(first.mT, second))

    def weighted(self, left: Tensor, right: Tensor, weight_B: Tensor) -> Gradients:
        # n c is of order 1 and exactly 1 for equal weights, so a bfloat16 product loses nothing.
        scale, share = (len(weight_B) * weight_B)[:, None, None], 1 / len(weight_B)
        if self.num_inputs <= self.num_outputs:
            first, second = left * scale.to(left.dtype), right
        else:
            first, second = left, right * scale.to(right.dtype)
        pair = (first, second) if self.inputs_on_rows else (second, first)
        gradients = {self.names["weight"]: _product(*pair).mul_(share)}
        if "bias" in self.names:
            gradients[self.names["bias"]] = weight_B @ widened(right.sum(dim=1))
        return gradients

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        pair = (left, right) if self.inputs_on_rows else (right, left)
        gradients = {self.names["weight"]: torch.bmm(pair[0].mT, pair[1])}
        if "bias" in self.names:
            gradients[self.names["bias"]] = right.sum(dim=1)
        return gradients


def _product(first_BTx: Tensor, second_BTy: Tensor) -> Tensor:
    """Sum over samples and tokens of first second': (x, y), summed and stored in float32."""
    first, second = first_BTx.flatten(0, 1).T, second_BTy.flatten(0, 1)
    if first.is_cuda and first.dtype != torch.float32 and first.dtype != torch.float64:
        return torch.mm(first, second, out_dtype=torch.float32)
    return widened(first @ second)
