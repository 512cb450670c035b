"""Weighted gradients that wait for their weights: what a sketched micro-batch leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dograph.sketch.rule import Gradients, Rule


class Pending(Protocol):
    """Something that can fill `.grad` once the weights are known."""

    def backward(self, weight_B: Tensor) -> None:
        """Add the gradient of sum_i weight_i loss_i to `.grad`."""


@dataclass(slots=True)
class RetainedGraph:
    """`twopass`: the graph is still there, and a second backward runs through it."""

    loss_B: Tensor

    def backward(self, weight_B: Tensor) -> None:
        (weight_B.to(self.loss_B.dtype) * self.loss_B).sum().backward()


@dataclass(slots=True)
class Deferred:
    """`full`: every layer's input and output gradient; the weight gradients are made now."""

    halves: list[tuple[Rule, Tensor, Tensor]]
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        with torch.autocast(weight_B.device.type, enabled=False):
            while self.halves:  # each pair is freed as soon as it is used
                rule, left, right = self.halves.pop()
                accumulate(self.parameters, rule.weighted(left, right, weight_B.to(_dtype(rule))))


@dataclass(slots=True)
class Materialised:
    """`exact` and `reference`: every sample's gradient in full."""

    gradients: Gradients
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        accumulate(
            self.parameters,
            {
                name: torch.tensordot(weight_B.to(gradient.dtype), gradient, dims=1)
                for name, gradient in self.gradients.items()
            },
        )


@dataclass(slots=True)
class TopDown:
    """`topdown`: deferred above the cut; below it the scaled residual gradient does the rest."""

    above: Deferred
    hidden_BTD: Tensor
    grad_BTD: Tensor

    def backward(self, weight_B: Tensor) -> None:
        self.above.backward(weight_B)
        scale = weight_B[:, None, None].to(self.grad_BTD.dtype)
        torch.autograd.backward([self.hidden_BTD], [self.grad_BTD * scale])


def accumulate(parameters: Mapping[str, nn.Parameter], gradients: Gradients) -> None:
    """Add to `.grad`, as backward does."""
    for name, gradient in gradients.items():
        parameter = parameters[name]
        gradient = gradient.to(parameter.dtype)
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _dtype(rule: Rule) -> torch.dtype:
    dtype = next(rule.module.parameters(recurse=False)).dtype
    return torch.promote_types(dtype, torch.float32)
