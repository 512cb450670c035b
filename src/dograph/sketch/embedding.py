"""The rule of embedding tables, of tokens and of positions.

Shapes: B samples, T tokens, D width, q x p a sketch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.sketch.gradients import Gradients, Grads
from dograph.sketch.rules import Rule, summed_products
from dograph.sketch.scaling import scaled


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

    def half_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return shape, (*shape, self.module.weight.shape[1])

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        row_Rq, col_Cp = projection
        right = right.to(col_Cp.dtype)
        return summed_products(F.embedding(left.long(), row_Rq), right @ col_Cp)

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor, into: Grads) -> None:
        row_ND = scaled(right, times_B).flatten(0, 1)
        into.add_rows(self.names["weight"], left.long().flatten(), row_ND, 1 / len(times_B))

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        num_samples, rows = len(right), self.module.weight.shape[0]
        first = torch.arange(num_samples, device=right.device)[:, None] * rows
        gradient = right.new_zeros(num_samples * rows, right.shape[-1])
        gradient.index_add_(0, (left.long() + first).flatten(), right.flatten(0, 1))
        return {self.names["weight"]: gradient.view(num_samples, rows, -1)}
