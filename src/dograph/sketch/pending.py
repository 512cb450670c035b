"""Weighted gradients that wait for their weights: what a sketched micro-batch leaves behind.

Shapes: B samples, T tokens, D width, F numbers of all vectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dograph.sketch.gradients import Gradients, Grads
from dograph.sketch.rules import Rule
from dograph.sketch.scaling import scaled

Half = tuple[Rule, Tensor, Tensor]  # a layer, its input and the gradient of its output


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

    halves: list[Half]
    vectors: list[tuple[Rule, Tensor]]
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        grads = Grads(self.parameters)
        times_B = len(weight_B) * weight_B
        with torch.autocast(weight_B.device.type, enabled=False):
            while self.halves:  # each pair is freed as soon as it is used
                rule, left, right = self.halves.pop()
                rule.add_weighted(left, right, times_B, grads)
            if self.vectors:
                self._add_vectors(weight_B, grads)

    def _add_vectors(self, weight_B: Tensor, grads: Grads) -> None:
        """All at once: a model has hundreds, each of them short."""
        rules, vectors = zip(*self.vectors, strict=True)
        vector_BF = torch.cat(vectors, dim=1)
        vector_F = weight_B.to(vector_BF.dtype) @ vector_BF
        parts = vector_F.split([vector.shape[1] for vector in vectors])
        for rule, part in zip(rules, parts, strict=True):
            for name, gradient in rule.split(part).items():
                grads.add(name, gradient)


@dataclass(slots=True)
class Materialised:
    """`exact` and `reference`: every sample's gradient in full."""

    gradients: Gradients
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        grads = Grads(self.parameters)
        for name, gradient in self.gradients.items():
            grads.add(name, torch.tensordot(weight_B.to(gradient.dtype), gradient, dims=1))


@dataclass(slots=True)
class TopDown:
    """`topdown`, `head`: deferred above the cut; the scaled residual gradient does the rest."""

    above: Deferred
    hidden_BTD: Tensor
    grad_BTD: Tensor

    def backward(self, weight_B: Tensor) -> None:
        self.above.backward(weight_B)
        torch.autograd.backward([self.hidden_BTD], [scaled(self.grad_BTD, weight_B)])
