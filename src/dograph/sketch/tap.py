"""The tap: an identity on a layer's output whose backward sees both halves of a gradient.

A layer's per-sample weight gradient is made of its input a and its output gradient b. The tap
gets both in its backward and returns, as the gradients of *slots*, what the mode wants: the sketch
of every sample, vectors such as a bias' gradient in full, and a and b themselves where the weighted
gradient is to be made later. A slot is a tensor of zeros with all strides 0, one number of storage,
whose value nobody reads.

Nothing is stashed and no hook is used: slots go in and gradients come out, which is what autograd,
torch.compile, activation checkpointing and wrappers know how to carry.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from dograph.sketch.rules import Rule


class Slots(NamedTuple):
    """Where a tap's findings go; None where nobody asks."""

    sketch: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    vector: Tensor | None = None


def make_slot(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of any shape for the storage of one: a leaf, there to receive a gradient."""
    one = torch.zeros(1, dtype=dtype, device=device)
    return one.as_strided(shape, (0,) * len(shape)).requires_grad_()


class Tap(torch.autograd.Function):
    """y -> y; backward: b -> b, and (sketch, left, right, vector) for the slots."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        seen: Tensor,
        rule: "Rule",
        sketch_slot: Tensor | None,
        left_slot: Tensor | None,
        right_slot: Tensor | None,
        vector_slot: Tensor | None,
        *projection: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(seen, *projection)
        ctx.rule = rule
        ctx.wants_sketch = sketch_slot is not None
        ctx.wants_halves = left_slot is not None
        ctx.wants_vector = vector_slot is not None
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seen, *projection = ctx.saved_tensors
        rule = ctx.rule
        sketch = left = right = vector = None
        # The second of two backwards only needs b; a compiled one computes the sketch again.
        if rule.listening:
            with torch.autocast(grad.device.type, enabled=False):  # sums stay in float32
                if ctx.wants_sketch or ctx.wants_halves:
                    left, right = rule.halves(seen, grad)
                if ctx.wants_sketch:
                    sketch = rule.sketch(left, right, tuple(projection))
                if ctx.wants_vector:
                    vector = rule.vector(seen, grad)
        if not ctx.wants_halves:
            left = right = None
        return (grad, None, None, sketch, left, right, vector, *(None for _ in projection))


# Layers whose forward is replaced for a while, and models inside their wrappers.


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    while isinstance(model, DistributedDataParallel | torch._dynamo.OptimizedModule):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
    return model


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    # Through __dict__: a Module's own __setattr__ takes no heed of what was there.
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
