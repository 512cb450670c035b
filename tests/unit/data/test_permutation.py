"""The keyed shuffle is a bijection, differs by key, and looks like a shuffle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dograph.data import sampler as permutation


def permute(position_N, size, key):
    count = len(position_N)
    return permutation.permute(
        position_N, np.full(count, size), np.full(count, key, dtype=np.uint64)
    )


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_is_a_bijection(size, key):
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [5, 100, 4097, 10**9])
def test_each_image_depends_on_its_own_position_alone(size):
    positions = np.unique(np.linspace(0, size - 1, 50).astype(np.int64))
    together = permute(positions, size, 7)
    alone = [permute(positions[i : i + 1], size, 7)[0] for i in range(len(positions))]
    assert together.tolist() == alone


def test_keys_give_unrelated_orders():
    size = 2000
    first, second = (permute(np.arange(size), size, key) for key in (1, 2))
    assert abs(stats.spearmanr(first, second).statistic) < 0.08
    assert abs(stats.spearmanr(first, np.arange(size)).statistic) < 0.08


def test_first_place_is_uniform_over_keys():
    size, draws = 10, 4000
    counts = np.bincount([permute(np.array([0]), size, key)[0] for key in range(draws)])
    assert stats.chisquare(counts).pvalue > 1e-4


def test_sizes_and_keys_may_differ_within_a_call():
    sizes, keys = np.array([3, 1, 1000, 7]), np.array([5, 6, 7, 8], dtype=np.uint64)
    positions = np.array([2, 0, 999, 4])
    mixed = permutation.permute(positions, sizes, keys)
    alone = [permute(positions[i : i + 1], sizes[i], keys[i])[0] for i in range(4)]
    assert mixed.tolist() == alone
