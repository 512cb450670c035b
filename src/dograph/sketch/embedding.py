"""The rule of embedding tables, of tokens and of positions.

Shapes: B samples, T tokens, D width, q x p a sketch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.sketch.projection import MatrixProjection, Projection
from dograph.sketch.rule import Gradients, Rule, widened


class EmbeddingRule(Rule):
    """A table of tokens or positions; a position's index may come without a batch axis."""

    def detached(self, value: Tensor) -> Tensor:
        return F.embedding(value, self.module.weight.detach(), self.module.padding_idx)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value

    def spread(self, output: Tensor) -> Tensor:
        # Positions are looked up once for the batch: without a batch axis of its own, the
        # gradient would arrive summed over the samples.
        return output.expand(self.num_samples, *output.shape[-2:])

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        padding = self.module.padding_idx
        if padding is not None:
            grad = grad * (seen != padding).unsqueeze(-1)
        return seen.expand(grad.shape[:-1]).double(), grad  # a slot takes a floating gradient

    def left_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64

    def right_dtype(self, dtype: torch.dtype) -> torch.dtype:
        weight: Tensor = self.module.weight
        return weight.dtype

    def slot_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return shape, (*shape, self.module.weight.shape[1])

    def project(self, projection: Projection, step: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        weight = self.module.weight
        like = torch.empty(0, dtype=dtype, device=weight.device)
        return projection.matrix(
            self.names["weight"], tuple(weight.shape), wide=self.wide, step=step, like=like
        ).tensors()

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        assert self.sketch_slot is not None
        p = MatrixProjection.from_tensors(projection, self.sketch_slot.shape[1])
        row_BTq = widened(F.embedding(left.long(), p.row_Rq))
        col_BTp = widened(right @ p.col_Cp.to(right.dtype))
        return p.slot(torch.bmm(row_BTq.mT, col_BTp))

    def weighted(self, left: Tensor, right: Tensor, weight_B: Tensor) -> Gradients:
        scaled_BTD = right * weight_B[:, None, None].to(right.dtype)
        weight: Tensor = self.module.weight
        gradient = torch.zeros_like(weight).index_add_(
            0, left.long().flatten(), scaled_BTD.flatten(0, 1).to(weight.dtype)
        )
        return {self.names["weight"]: gradient}

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        num_samples, rows = len(right), self.module.weight.shape[0]
        first = torch.arange(num_samples, device=right.device)[:, None] * rows
        gradient = right.new_zeros(num_samples * rows, right.shape[-1])
        gradient.index_add_(0, (left.long() + first).flatten(), right.flatten(0, 1))
        return {self.names["weight"]: gradient.view(num_samples, rows, -1)}
