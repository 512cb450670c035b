"""Rules for layers of any form: gains found by trying a layer out, and rules that a user gives.

Shapes: B samples, N rows of a sample, F numbers of a vector.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dograph.sketch.rules import Rule, over_tokens, swapped, widened


class GainRule(Rule):
    """A layer whose output is affine in its own parameters, element by element: y = C + sum w A.

    Gains, biases and norms of any form, under any names. C and A come from the layer itself, which
    runs with parameters of zeros and ones.
    """

    has_matrix = by_formula = False

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        own = {name: getattr(self.module, name) for name in self.vectors}
        zero = {name: torch.zeros_like(value) for name, value in own.items()}
        parts = []
        with torch.no_grad():
            constant = self.run(seen, zero)
            for name, value in own.items():
                slope = self.run(seen, zero | {name: torch.ones_like(value)}) - constant
                product_BNF = (widened(grad) * slope).reshape(self.shape[0], -1, value.numel())
                parts.append(over_tokens(product_BNF))
        return torch.cat(parts, dim=1)

    def run(self, value: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        with swapped(self.module, parameters):
            output: Tensor = self.stock(value)
        return output


class LayerRule:
    """Base of a rule of your own, for `Sketcher(rules={MyLayer: MyRule()})`.

    `dograph.testing.check_rule` holds it against autograd. Gradients of every sample are held at
    once: meant for layers with few parameters.
    """

    def per_sample(self, module: nn.Module, value: Tensor, grad: Tensor) -> dict[str, Tensor]:
        """Gradients of the module's own parameters for each sample: (B, *shape), by name.

        `value` is the layer's input and `grad` the gradient of its output, samples on axis 0.
        """
        raise NotImplementedError


class GivenRule(Rule):
    """A user's LayerRule in the place of ours."""

    has_matrix = by_formula = False

    def __init__(self, path: str, module: Any, names: dict[str, str], *, rule: LayerRule) -> None:
        super().__init__(path, module, names)
        self.rule = rule

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        with torch.no_grad():
            gradients = self.rule.per_sample(self.module, seen, grad)
        return widened(torch.cat([gradients[own].flatten(1) for own in self.vectors], dim=1))
