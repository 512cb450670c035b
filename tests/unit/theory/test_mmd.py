"""MMD of two groups of gradients: double loops, closed forms, exact enumeration, chance."""

from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch
from torch.testing import assert_close

from dograph.errors import ConfigError
from dograph.eval.inspect import pairwise_mmd
from dograph.rng import stream
from mmd_oracles import gradient_kernel, mmd_squared


def normal(*shape, name="x", mean=0.0, std=1.0):
    return torch.from_numpy(stream(0, "test", name).normal(mean, std, shape))


def permutation_test(x, y, **how):
    """MMD^2 and p-value."""
    group_N = torch.tensor([0] * len(x) + [1] * len(y))
    found = pairwise_mmd(torch.cat([x, y]), group_N, 2, **how)
    return found[0, 1].mmd_squared, found[0, 1].p_value


def unbiased(x, y):
    return permutation_test(x, y, num_permutations=1, seed=0)[0]


def by_loops(x, y, estimator="unbiased"):
    x, y = x.tolist(), y.tolist()

    def average(left, right, skip):
        values = [
            sum(a * b for a, b in zip(u, v, strict=True))
            for i, u in enumerate(left)
            for j, v in enumerate(right)
            if not (skip and i == j)
        ]
        return sum(values) / len(values)

    skip = estimator == "unbiased"
    return average(x, x, skip) + average(y, y, skip) - 2 * average(x, y, False)


@pytest.mark.parametrize(("n", "m", "k"), [(2, 2, 1), (5, 3, 4), (3, 9, 20)])
def test_equals_double_loops(n, m, k):
    x, y = normal(n, k, mean=1.0), normal(m, k, name="y")
    assert unbiased(x, y) == pytest.approx(by_loops(x, y), rel=1e-12, abs=1e-13)
    for estimator in ("biased", "unbiased"):  # of the oracle that other tests use
        expected = by_loops(x, y, estimator)
        assert mmd_squared(x, y, estimator).item() == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_biased_is_the_squared_distance_of_the_means():
    x, y = normal(7, 5, mean=3.0), normal(4, 5, name="y")
    expected = (x.mean(0) - y.mean(0)).square().sum()
    assert_close(mmd_squared(x, y), expected, rtol=1e-13, atol=0)
    kernel_sums = (
        gradient_kernel(x, x).mean()
        + gradient_kernel(y, y).mean()
        - 2 * gradient_kernel(x, y).mean()
    )
    assert_close(kernel_sums, expected, rtol=1e-12, atol=0)
    assert mmd_squared(x[:1], y[:1]).item() == pytest.approx((x[0] - y[0]).square().sum().item())


def test_estimators_differ_by_the_spread_of_the_means():
    x, y = normal(7, 5, std=2.0), normal(4, 5, name="y")
    excess = x.var(0).sum() / 7 + y.var(0).sum() / 4
    assert mmd_squared(x, y).item() - unbiased(x, y) == pytest.approx(excess.item(), rel=1e-12)


def test_expectations_over_gaussian_draws():
    """E unbiased = |mu - nu|^2; E biased is larger by tr cov(x) / N + tr cov(y) / M."""
    n, m, k, draws = 4, 6, 3, 1500
    random = stream(0, "test", "gaussian")
    x = torch.from_numpy(random.normal([0.5, 0.0, -0.2], 1.0, (draws, n, k)))
    y = torch.from_numpy(random.normal(0.0, 2.0, (draws, m, k)))
    distance, excess = 0.25 + 0.04, k * 1.0 / n + k * 4.0 / m
    pairs = list(zip(x, y, strict=True))
    values = torch.tensor([unbiased(a, b) for a, b in pairs])
    biased = torch.stack([mmd_squared(a, b) for a, b in pairs])
    for found, expected in ((values, distance), (biased, distance + excess)):
        error = found.std() / draws**0.5
        assert abs(found.mean() - expected) < 4 * error
        assert error < 0.1 * excess  # so a missing correction would show
    assert values.min() < 0 < biased.min()


def test_invariances():
    x, y = normal(6, 5, mean=1.0), normal(9, 5, name="y")
    value = unbiased(x, y)
    assert unbiased(y, x) == pytest.approx(value, rel=1e-12)
    assert unbiased(x.flip(0), y.roll(2, 0)) == pytest.approx(value, rel=1e-12)
    assert unbiased(3 * x, 3 * y) == pytest.approx(9 * value, rel=1e-12)
    rotation = torch.linalg.qr(normal(5, 5, name="rotation")).Q
    assert unbiased(x @ rotation, y @ rotation) == pytest.approx(value, rel=1e-12)
    # a shift that squares to 1e16 would leave the plain kernel sums no digit of the difference
    assert unbiased(x + 1e8, y + 1e8) == pytest.approx(value, rel=1e-6)


def test_single_precision_gradients_are_summed_in_double():
    x, y = normal(50, 40).float(), normal(60, 40, name="y").float()
    assert unbiased(x, y) == pytest.approx(unbiased(x.double(), y.double()), rel=1e-12)


# ---- permutation test of two groups


def all_relabellings(x, y):
    pooled = torch.cat([x, y])
    values = []
    for chosen in combinations(range(len(pooled)), len(x)):
        others = [i for i in range(len(pooled)) if i not in chosen]
        values.append(by_loops(pooled[list(chosen)], pooled[others]))
    return np.array(values)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (2, 5), (5, 3)])
def test_agrees_with_exact_enumeration(n, m):
    x, y = normal(n, 2, mean=0.8), normal(m, 2, name="y")
    exact = all_relabellings(x, y)
    observed = by_loops(x, y)
    p_value = (exact >= observed - 1e-9).mean()
    num = 5000
    value, got = permutation_test(x, y, num_permutations=num, seed=1)
    assert value == pytest.approx(observed, rel=1e-12)
    assert abs(got - p_value) < 4 * (p_value * (1 - p_value) / num) ** 0.5 + 1 / num


def test_the_observed_labelling_is_one_of_those_counted():
    """p = (1 + k) / (1 + n), with k of n relabellings as large: never 0, and never too small."""
    x, y, num = normal(4, 2, mean=0.3), normal(6, 2, name="y"), 30
    pooled, own = torch.cat([x, y]), np.tile(np.arange(10) < 4, (num, 1))
    drawn = stream(9, "theory", "mmd", 0, 1).permuted(own, axis=1)
    values = [by_loops(pooled[row], pooled[~row]) for row in torch.from_numpy(drawn)]
    k = sum(value >= by_loops(x, y) - 1e-9 for value in values)
    assert 0 < k < num
    assert permutation_test(x, y, num_permutations=num, seed=9)[1] == (
        pytest.approx((1 + k) / (1 + num), rel=1e-12)
    )


def test_ties_count_as_large():
    """3 against 3, far apart: 2 of 20 relabellings tie with the observed one, none exceeds it."""
    for shift in range(8):  # each rounds differently
        x = normal(3, 4, name=shift, mean=7.3 + shift / 3)
        y = normal(3, 4, name=shift + 100)
        _, got = permutation_test(x, y, num_permutations=2000, seed=shift)
        assert abs(got - 0.1) < 4 * (0.09 / 2000) ** 0.5 + 1 / 2000


def test_samples_that_are_all_equal_never_differ():
    same = torch.full((6, 3), 0.1)
    got = permutation_test(same, same[:4], num_permutations=19, seed=0)
    assert got == (pytest.approx(0, abs=1e-12), 1.0)


@pytest.mark.parametrize(("n", "m"), [(8, 7), (4, 14)])
def test_p_values_are_uniform_under_the_null(n, m):
    random = stream(3, "test", "null", n)
    p_values = []
    for trial in range(250):
        x, y = (torch.from_numpy(random.standard_t(4, (size, 3))) for size in (n, m))
        _, got = permutation_test(x, y, num_permutations=49, seed=trial)
        # the p-value is one of 1/50, ..., 1: spread each over its cell
        p_values.append(got - random.random() / 50)
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.05
    shifted = [min(p + 0.1, 1.0) for p in p_values]
    assert scipy.stats.kstest(shifted, "uniform").pvalue < 0.05


def test_different_means_are_found():
    found = 0
    for trial in range(40):
        x = normal(20, 5, name=trial)
        y = normal(25, 5, name=1000 + trial, mean=0.7)
        _, got = permutation_test(x, y, num_permutations=99, seed=trial)
        found += got <= 0.05
    assert found >= 36


def test_the_seed_alone_decides():
    x, y = normal(9, 3, mean=0.3), normal(7, 3, name="y")
    one = permutation_test(x, y, seed=4)
    assert permutation_test(x, y, seed=4) == one
    assert permutation_test(x, y, seed=5) != one


# ---- errors


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(bad):
    """Unrefused, they would compare false everywhere and give the smallest p-value."""
    x, y = normal(4, 3), normal(4, 3, name="y")
    x[1, 2] = bad
    with pytest.raises(ConfigError, match="not finite"):
        permutation_test(y, x, seed=0)
