"""FLOPs of a model's step, counted from its matrices and its attention.

A product of (N, in) and (in, out) is 2 N in out. A step is a forward and two products of the same
size in the backward for each one in the forward: three forwards. Attention is counted in full,
causal or not, and what a kernel computes a second time is not: the usual convention of MFU.

Shapes: B samples, T tokens, N = B T.
"""

from dataclasses import dataclass

from torch import nn

from dograph.models.presets import Shape
from dograph.sketch.coverage import cover
from dograph.sketch.matrix import MatrixRule


@dataclass(frozen=True, slots=True)
class Flops:
    """Of one forward over a batch."""

    matrices: float
    attention: float

    @property
    def forward(self) -> float:
        return self.matrices + self.attention

    @property
    def step(self) -> float:
        return 3 * self.forward


def count_flops(model: nn.Module, shape: Shape, num_samples: int, num_tokens: int) -> Flops:
    """FLOPs of a forward of so many samples of so many tokens."""
    rows = num_samples * num_tokens
    matrices = [rule for rule in cover(model) if isinstance(rule, MatrixRule)]
    return Flops(
        matrices=sum(2.0 * rows * rule.num_inputs * rule.num_outputs for rule in matrices),
        # Scores and their product with the values: two products a layer, of T x T a head.
        attention=4.0 * rows * num_tokens * shape.width * shape.layers,
    )
