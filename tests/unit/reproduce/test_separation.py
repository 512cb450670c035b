"""Separation against its definition and in closed form."""

import math
from itertools import combinations

import pytest
import torch

from dograph.reproduce.seen import separation


def rows(sizes):
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def gaussians(generator, source_N, mean_SK, std_K):
    noise_NK = torch.randn(len(source_N), len(std_K), generator=generator, dtype=torch.float64)
    return mean_SK[source_N] + noise_NK * std_K


def three_sources(scale=1.0):
    """Unequal in number, scrambled."""
    generator = torch.Generator().manual_seed(3)
    source_N = rows([9, 14, 5])[torch.randperm(28, generator=generator)]
    mean_SK = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    std_K = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    return scale * gaussians(generator, source_N, mean_SK, std_K), source_N


def separation_of(gram_NN, source_N):
    """The definition, pair by pair of sources, from the Gram matrix."""
    own = [(source_N == s).nonzero()[:, 0] for s in range(int(source_N.max()) + 1)]

    def mean(one, other):
        block = gram_NN[one][:, other]
        same = torch.equal(one, other)
        number = len(one) * (len(one) - 1) if same else block.numel()
        return (block.sum() - (block.diagonal().sum() if same else 0)) / number

    ratios = []
    for g, h in combinations(own, 2):
        spreads = [gram_NN[s, s].mean() - mean(s, s) for s in (g, h)]
        ratios.append((mean(g, g) + mean(h, h) - 2 * mean(g, h)) / (sum(spreads) / 2))
    return sum(ratios) / len(ratios)


def test_it_is_the_mean_over_pairs_of_the_separation_of_the_theory():
    point_NK, source_N = three_sources()
    expected = separation_of(point_NK @ point_NK.T, source_N)
    assert separation(point_NK, source_N) == pytest.approx(float(expected), rel=1e-12)


def test_the_closed_form_of_gaussians():
    """MMD^2 = |mu - nu|^2 = 9 and tr cov = 4 * 9 / 4 + 5: the truth, up to chance."""
    std_K = torch.tensor([1.5] * 4 + [1.0] * 5, dtype=torch.float64)
    mean_SK = torch.zeros(2, 9, dtype=torch.float64)
    mean_SK[1, 2] = 3.0
    source_N = rows([700, 500])
    found = separation(
        gaussians(torch.Generator().manual_seed(0), source_N, mean_SK, std_K), source_N
    )
    assert found == pytest.approx(9 / 14, abs=0.1)


def test_rotation_shift_and_scale_change_nothing():
    point_NK, source_N = three_sources()
    generator = torch.Generator().manual_seed(5)
    turn_KK, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))
    one, other = (
        separation(point_NK, source_N),
        separation(1e-3 * point_NK @ turn_KK + 0.2, source_N),
    )
    assert one == pytest.approx(other, rel=1e-8)


def test_sources_without_spread_have_no_finite_separation():
    point_NK = torch.tensor([[1.0, 0.0]] * 5 + [[0.3, 1.0]] * 5, dtype=torch.float64)
    assert separation(point_NK, rows([5, 5])) == math.inf
