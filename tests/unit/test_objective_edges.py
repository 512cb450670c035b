"""Objectives where rounding, or an iteration that has not settled, could pass for an answer."""

import pytest
import torch

from dograph.domains.objectives import Alignment
from dograph.domains.partition import partition
from dograph.testing import random_domains


@pytest.mark.parametrize("seed", range(1, 6))
def test_an_update_that_is_rounding_agrees_with_nothing(seed):
    """Six gradients that sum to zero but for float32: its length squared is above 0, and noise."""
    part_BK = torch.randn(5, 9, generator=torch.Generator().manual_seed(seed))
    domains = partition(torch.cat((part_BK, -part_BK.sum(dim=0, keepdim=True))), torch.arange(6), 6)
    assert 0 < float(domains.gram_MM.double().sum()) / 36 < 1e-6
    torch.testing.assert_close(Alignment()(domains), torch.full((6,), 1 / 6))


def test_a_penalty_does_not_hide_a_formula_that_has_not_settled():
    """The penalised problem is solved to its end, but around a formula that would still move."""
    sketch_BK, label_B = random_domains(1, 5)
    domains = partition(sketch_BK.double(), label_B, 5)
    once, twice = (Alignment(iterations=n)(domains) for n in (1, 2))
    change = (twice - once).abs().max()
    assert change > 1e-3
    penalised = Alignment(iterations=1, graph_penalty=0.7)
    torch.testing.assert_close(penalised.residual(domains, penalised(domains)), change)
