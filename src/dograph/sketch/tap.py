"""The tap: an identity on a layer's output whose backward sees both halves of a gradient.

A layer's per-sample weight gradient is made of its input a and its output gradient b. The tap
gets both in its backward and returns, as the gradients of *slots*, what the mode wants: the sketch
of every sample, and a and b themselves where the weighted gradient is to be made later. A slot is
a tensor of zeros with all strides 0, one number of storage, whose value nobody reads.

Nothing is stashed and no hook is used: slots go in and gradients come out, which is what autograd,
torch.compile, activation checkpointing and wrappers know how to carry.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dograph.sketch.rule import Rule


def make_slot(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of any shape for the storage of one: a leaf, there to receive a gradient."""
    one = torch.zeros(1, dtype=dtype, device=device)
    return one.as_strided(shape, (0,) * len(shape)).requires_grad_()


class Tap(torch.autograd.Function):
    """y -> y; backward: b -> b, and (sketch, left, right) for the slots."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        seen: Tensor,
        sketch_slot: Tensor | None,
        left_slot: Tensor | None,
        right_slot: Tensor | None,
        rule: "Rule",
        *projection: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(seen, *projection)
        ctx.rule = rule
        ctx.wants = (sketch_slot is not None, left_slot is not None, right_slot is not None)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seen, *projection = ctx.saved_tensors
        rule, (wants_sketch, wants_left, wants_right) = ctx.rule, ctx.wants
        sketch_BK = left = right = None
        # The second of two backwards only needs b; a compiled one computes the sketch again.
        if rule.listening:
            with torch.autocast(grad.device.type, enabled=False):  # sums stay in float32
                left, right = rule.halves(seen, grad)
                if wants_sketch:
                    sketch_BK = rule.sketch(left, right, tuple(projection))
        return (
            grad,
            None,
            sketch_BK,
            left if wants_left else None,
            right if wants_right else None,
            None,
            *(None for _ in projection),
        )


class Cut(torch.autograd.Function):
    """The residual stream -> itself; backward: its gradient goes to the slot as well."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, slot: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad
