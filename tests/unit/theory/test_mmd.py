"""MMD of two groups of gradients: double loops, closed forms, exact enumeration, chance."""

from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch
from torch.testing import assert_close

from dograph.errors import ConfigError
from dograph.rng import stream
from dograph.theory.mmd import gradient_kernel, mmd_squared, pairwise_mmd

ESTIMATORS = ["biased", "unbiased"]


def normal(*shape, name="x", mean=0.0, std=1.0):
    return torch.from_numpy(stream(0, "test", name).normal(mean, std, shape))


def by_loops(x, y, estimator):
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


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("n", "m", "k"), [(2, 2, 1), (5, 3, 4), (3, 9, 20)])
def test_equals_double_loops(n, m, k, estimator):
    x, y = normal(n, k, mean=1.0), normal(m, k, name="y")
    got = mmd_squared(x, y, estimator)
    assert got.shape == ()
    assert got.item() == pytest.approx(by_loops(x, y, estimator), rel=1e-12, abs=1e-13)


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
    assert_close(mmd_squared(x, y) - mmd_squared(x, y, "unbiased"), excess, rtol=1e-12, atol=0)


def test_expectations_over_gaussian_draws():
    """E unbiased = |mu - nu|^2; E biased is larger by tr cov(x) / N + tr cov(y) / M."""
    n, m, k, draws = 4, 6, 3, 1500
    random = stream(0, "test", "gaussian")
    x = torch.from_numpy(random.normal([0.5, 0.0, -0.2], 1.0, (draws, n, k)))
    y = torch.from_numpy(random.normal(0.0, 2.0, (draws, m, k)))
    distance, excess = 0.25 + 0.04, k * 1.0 / n + k * 4.0 / m
    for estimator, expected in (("unbiased", distance), ("biased", distance + excess)):
        values = torch.stack([mmd_squared(a, b, estimator) for a, b in zip(x, y, strict=True)])
        error = values.std() / draws**0.5
        assert abs(values.mean() - expected) < 4 * error
        assert error < 0.1 * excess  # so a missing correction would show
        assert (values.min() < 0) == (estimator == "unbiased")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_invariances(estimator):
    x, y = normal(6, 5, mean=1.0), normal(9, 5, name="y")
    value = mmd_squared(x, y, estimator)
    assert_close(mmd_squared(y, x, estimator), value, rtol=1e-12, atol=0)
    assert_close(mmd_squared(x.flip(0), y.roll(2, 0), estimator), value, rtol=1e-12, atol=0)
    assert_close(mmd_squared(3 * x, 3 * y, estimator), 9 * value, rtol=1e-12, atol=0)
    rotation = torch.linalg.qr(normal(5, 5, name="rotation")).Q
    assert_close(mmd_squared(x @ rotation, y @ rotation, estimator), value, rtol=1e-12, atol=0)
    # a shift that squares to 1e16 would leave the plain kernel sums no digit of the difference
    assert_close(mmd_squared(x + 1e8, y + 1e8, estimator), value, rtol=1e-6, atol=0)


def test_single_precision_gradients_are_summed_in_double():
    x, y = normal(50, 40).float(), normal(60, 40, name="y").float()
    expected = mmd_squared(x.double(), y.double())
    assert mmd_squared(x, y).dtype == torch.float64
    assert_close(mmd_squared(x, y), expected, rtol=1e-12, atol=0)
    plain = torch.einsum("nk,mk->nm", x.double(), y.double())
    assert_close(gradient_kernel(x, y), plain, rtol=1e-12, atol=1e-12)


# ---- permutation test of two groups


def permutation_test(x, y, **how):
    """MMD^2 and p-value."""
    group_N = torch.tensor([0] * len(x) + [1] * len(y))
    found = pairwise_mmd(torch.cat([x, y]), group_N, 2, **how)
    return found.mmd_squared_GG[0, 1].item(), found.p_value_GG[0, 1].item()


def all_relabellings(x, y, estimator):
    pooled = torch.cat([x, y])
    values = []
    for chosen in combinations(range(len(pooled)), len(x)):
        others = [i for i in range(len(pooled)) if i not in chosen]
        values.append(by_loops(pooled[list(chosen)], pooled[others], estimator))
    return np.array(values)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("n", "m"), [(3, 3), (2, 5), (5, 3)])
def test_agrees_with_exact_enumeration(n, m, estimator):
    x, y = normal(n, 2, mean=0.8), normal(m, 2, name="y")
    exact = all_relabellings(x, y, estimator)
    observed = by_loops(x, y, estimator)
    p_value = (exact >= observed - 1e-9).mean()
    num = 5000
    value, got = permutation_test(x, y, num_permutations=num, seed=1, estimator=estimator)
    assert value == pytest.approx(observed, rel=1e-12)
    assert abs(got - p_value) < 4 * (p_value * (1 - p_value) / num) ** 0.5 + 1 / num


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_observed_labelling_is_one_of_those_counted(estimator):
    """p = (1 + k) / (1 + n), with k of n relabellings as large: never 0, and never too small."""
    x, y, num = normal(4, 2, mean=0.3), normal(6, 2, name="y"), 30
    pooled, own = torch.cat([x, y]), np.tile(np.arange(10) < 4, (num, 1))
    drawn = stream(9, "theory", "mmd", 0, 1).permuted(own, axis=1)
    values = [by_loops(pooled[row], pooled[~row], estimator) for row in torch.from_numpy(drawn)]
    k = sum(value >= by_loops(x, y, estimator) - 1e-9 for value in values)
    assert 0 < k < num
    assert permutation_test(x, y, num_permutations=num, seed=9, estimator=estimator)[1] == (
        pytest.approx((1 + k) / (1 + num), rel=1e-12)
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ties_count_as_large(estimator):
    """3 against 3, far apart: 2 of 20 relabellings tie with the observed one, none exceeds it."""
    for shift in range(8):  # each rounds differently
        x = normal(3, 4, name=shift, mean=7.3 + shift / 3)
        y = normal(3, 4, name=shift + 100)
        _, got = permutation_test(x, y, num_permutations=2000, seed=shift, estimator=estimator)
        assert abs(got - 0.1) < 4 * (0.09 / 2000) ** 0.5 + 1 / 2000


def test_samples_that_are_all_equal_never_differ():
    same = torch.full((6, 3), 0.1)
    got = permutation_test(same, same[:4], num_permutations=19, seed=0, estimator="unbiased")
    assert got == (pytest.approx(0, abs=1e-12), 1.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("n", "m"), [(8, 7), (4, 14)])
def test_p_values_are_uniform_under_the_null(n, m, estimator):
    random = stream(3, "test", "null", n)
    p_values = []
    for trial in range(250):
        x, y = (torch.from_numpy(random.standard_t(4, (size, 3))) for size in (n, m))
        _, got = permutation_test(x, y, num_permutations=49, seed=trial, estimator=estimator)
        # the p-value is one of 1/50, ..., 1: spread each over its cell
        p_values.append(got - random.random() / 50)
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.05
    shifted = [min(p + 0.1, 1.0) for p in p_values]
    assert scipy.stats.kstest(shifted, "uniform").pvalue < 0.05


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_different_means_are_found(estimator):
    found = 0
    for trial in range(40):
        x = normal(20, 5, name=trial)
        y = normal(25, 5, name=1000 + trial, mean=0.7)
        _, got = permutation_test(x, y, num_permutations=99, seed=trial, estimator=estimator)
        found += got <= 0.05
    assert found >= 36


def test_both_estimators_give_one_p_value_for_equal_sizes():
    x, y = normal(9, 3, mean=0.4), normal(9, 3, name="y")
    one, other = (permutation_test(x, y, seed=4, estimator=e)[1] for e in ESTIMATORS)
    assert one == other
    assert 0.001 < one < 1


def test_the_seed_alone_decides():
    x, y = normal(9, 3, mean=0.3), normal(7, 3, name="y")
    one = permutation_test(x, y, seed=4, estimator="biased")
    assert permutation_test(x, y, seed=4, estimator="biased") == one
    assert permutation_test(x, y, seed=5, estimator="biased") != one


# ---- errors


def test_bad_inputs_are_refused():
    x = normal(4, 3)
    with pytest.raises(ConfigError, match=r"\(4, 3\) and \(4, 2\)"):
        mmd_squared(x, x[:, :2])
    with pytest.raises(ConfigError, match="same K"):
        mmd_squared(x, x[0])
    with pytest.raises(ConfigError, match='did you mean "unbiased"'):
        mmd_squared(x, x, "unbaised")
    with pytest.raises(ConfigError, match="num_permutations must be at least 1, got 0"):
        permutation_test(x, x, seed=0, estimator="biased", num_permutations=0)
    with pytest.raises(ConfigError, match=r"\{'second': 1\}"):
        mmd_squared(x, x[:1], "unbiased")
    with pytest.raises(ConfigError, match=r"\{'first': 0\}"):
        mmd_squared(x[:0], x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(bad):
    """Unrefused, they would compare false everywhere and give the smallest p-value."""
    x, y = normal(4, 3), normal(4, 3, name="y")
    x[1, 2] = bad
    with pytest.raises(ConfigError, match="not finite"):
        permutation_test(y, x, seed=0, estimator="unbiased")
    with pytest.raises(ConfigError, match="not finite"):
        mmd_squared(x, y)
