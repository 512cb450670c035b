"""Objective precision: gradients that are zero up to rounding count as average ones.

Shapes: B samples, K sketch, M domains.
"""

import pytest
import torch

from dograph.domains.objectives import Precision
from dograph.domains.partition import partition


def weights(length):
    """Two domains of ordinary gradients, and a third whose gradients have this length."""
    draw = torch.Generator().manual_seed(0)
    label_B = torch.arange(12) % 3
    sketch_BK = torch.nn.functional.normalize(torch.randn(12, 20, generator=draw))
    sketch_BK[label_B == 2] *= length
    return Precision(q=1.0)(partition(sketch_BK, label_B, 3))


@pytest.mark.parametrize("length", [0.0, 1e-12, 1e-6, 1e-4])
def test_a_rounding_error_is_no_gradient(length):
    """Its square is below the rounding of float32, of the others' or of 0: an average domain.

    Lengths are 1, 1 and 0, so s is sqrt(2/3): weights are in proportion to s, s and 1.
    """
    s = (2 / 3) ** 0.5
    expected_M = torch.tensor([s, s, 1.0]) / (2 * s + 1)
    torch.testing.assert_close(weights(length), expected_M, rtol=1e-5, atol=0)


def test_a_small_gradient_is_one():
    weight_M = weights(1e-3)
    torch.testing.assert_close(weight_M[2] / weight_M[0], torch.tensor(1e3), rtol=1e-3, atol=0)
