"""Separation against its definition, by leaving rows out, in closed form and by its coverage."""

from itertools import combinations, product

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from dograph.eval.gradients import Separation, jackknife_variance, separation
from dograph.eval.inspect import pairwise_mmd


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


def of(point_NK, source_N):
    return separation(point_NK @ point_NK.T, source_N)


def test_it_is_the_mean_over_pairs_of_the_separation_of_the_theory():
    point_NK, source_N = three_sources()
    pairs = pairwise_mmd(point_NK, source_N, 3, num_permutations=1, seed=0)
    expected = sum(pairs[g, h].separation for g, h in combinations(range(3), 2)) / 3
    assert of(point_NK, source_N).value == pytest.approx(float(expected), rel=1e-12)


def test_the_closed_form_of_gaussians():
    """MMD^2 = |mu - nu|^2 = 9 and tr cov = 4 * 9 / 4 + 5: the truth within its own error."""
    std_K = torch.tensor([1.5] * 4 + [1.0] * 5, dtype=torch.float64)
    mean_SK = torch.zeros(2, 9, dtype=torch.float64)
    mean_SK[1, 2] = 3.0
    source_N = rows([700, 500])
    found = of(gaussians(torch.Generator().manual_seed(0), source_N, mean_SK, std_K), source_N)
    error = found.standard_error()
    assert abs(found.value - 9 / 14) < 3 * error < 0.15


def test_values_without_a_row_are_those_of_the_other_rows():
    point_NK, source_N = three_sources()
    found = of(point_NK, source_N)
    for n in range(len(source_N)):
        others = torch.arange(len(source_N)) != n
        again = of(point_NK[others], source_N[others])
        assert float(found.without_N[n]) == pytest.approx(again.value, rel=1e-11)


def test_jackknife_variance_of_means_is_the_textbooks():
    """Of a sum of the sources' means: the sum of s^2 / n."""
    generator = torch.Generator().manual_seed(1)
    source_N = rows([5, 12])
    value_N = torch.randn(17, generator=generator, dtype=torch.float64)
    parts = [value_N[:5], value_N[5:]]
    total = sum(part.mean() for part in parts)
    without_N = total + torch.cat([(part.mean() - part) / (len(part) - 1) for part in parts])
    expected = sum(part.var() / len(part) for part in parts)
    assert_close(jackknife_variance(without_N, source_N), expected, rtol=1e-12, atol=0)


def test_rotation_shift_and_scale_change_nothing():
    point_NK, source_N = three_sources()
    generator = torch.Generator().manual_seed(5)
    turn_KK, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))
    one, other = of(point_NK, source_N), of(1e-3 * point_NK @ turn_KK + 0.2, source_N)
    assert one.value == pytest.approx(other.value, rel=1e-8)
    assert_close(other.without_N, one.without_N, rtol=1e-8, atol=0)
    assert other.standard_error() == pytest.approx(one.standard_error(), rel=1e-7)


def test_the_parts_of_pairs_are_unbiased():
    """Sum of squares against w^2 tr(cov_g cov_h), the covariances and the weights being known.

    With equal means and no noise in the spreads, the value is sum_{i<j} w_ij h_ij alone.
    """
    std_K = torch.linspace(0.2, 1.2, 30, dtype=torch.float64)
    sizes, trace, fourth = (5, 8), float(std_K.pow(2).sum()), float(std_K.pow(4).sum())
    expected = sum(2 / (n * (n - 1)) for n in sizes) + 4 / (sizes[0] * sizes[1])
    source_N, generator = rows(sizes), torch.Generator().manual_seed(0)
    zero_SK = torch.zeros(2, 30, dtype=torch.float64)
    got = []
    for _ in range(700):
        point_NK = gaussians(generator, source_N, zero_SK, std_K)
        pair_NN = of(point_NK, source_N).pair_NN
        # the slopes hold estimates of the spread: put the true one in their place
        spread = (point_NK[:5].var(0).sum() + point_NK[5:].var(0).sum()) / 2
        apart = of(point_NK, source_N).value * spread
        scale_SS = torch.full((2, 2), float(spread / trace), dtype=torch.float64)
        scale_SS.fill_diagonal_(float(1 / trace / (1 / spread + apart / (2 * spread**2))))
        got.append(float((pair_NN * scale_SS[source_N][:, source_N]).square().sum() / 2))
    mean, error = torch.tensor(got).mean(), torch.tensor(got).std() / 700**0.5
    assert abs(float(mean) - expected * fourth / trace**2) < 3 * float(error)
    assert float(error) < 0.03 * float(mean)


def separation_of(gram_NN, source_N):
    """The definition, pair by pair of sources, so that it can be differentiated."""
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


def test_the_part_of_a_pair_is_its_slope_times_what_its_rows_do_not_tell():
    """The slope of the value in k_ij by autograd, times the centred product made unbiased."""
    point_NK, source_N = three_sources()
    gram_NN = (point_NK @ point_NK.T).requires_grad_()
    value = separation_of(gram_NN, source_N)
    (slope_NN,) = torch.autograd.grad(value, gram_NN)
    found = of(point_NK, source_N)
    assert found.value == pytest.approx(value.item(), rel=1e-12)
    sizes = torch.bincount(source_N).tolist()
    mean_SK = torch.stack([point_NK[source_N == s].mean(dim=0) for s in range(3)])
    away_NK = point_NK - mean_SK[source_N]
    for i, j in combinations(range(len(source_N)), 2):
        n, m = sizes[source_N[i]], sizes[source_N[j]]
        product_ij = away_NK[i] @ away_NK[j] * (n * m / ((n - 1) * (m - 1))) ** 0.5
        if source_N[i] == source_N[j]:
            own_nK = point_NK[source_N == source_N[i]]
            k_nn = (own_nK @ own_nK.T).fill_diagonal_(0)
            rows = sum((own_nK @ point_NK[x]).sum() - point_NK[x].square().sum() for x in (i, j))
            product_ij = point_NK[i] @ point_NK[j] - rows / (n - 2)
            product_ij = product_ij + k_nn.sum() / ((n - 1) * (n - 2))
            product_ij = product_ij * ((n - 1) / (n - 3)) ** 0.5
        expected = float((slope_NN[i, j] + slope_NN[j, i]) * product_ij)
        both = [float(found.pair_NN[i, j]), float(found.pair_NN[j, i])]
        assert both == pytest.approx([expected] * 2, rel=1e-8, abs=1e-12)
    for s in range(3):  # what a row has in common with all of a source is no pair's
        sums_N = found.pair_NN[:, source_N == s].sum(dim=1)
        assert_close(sums_N, torch.zeros_like(sums_N), rtol=0, atol=1e-10)


def test_pairs_are_taken_off_the_jackknife_as_often_as_it_counts_them_too_much():
    """Of the mean of x_i x_j over pairs, x being signs: all 2^5 of them, so nothing is random."""
    num, source_N = 5, torch.zeros(5, dtype=torch.long)
    weight = 2 / (num * (num - 1))
    counted = []
    for signs in product((-1.0, 1.0), repeat=num):
        x_N = torch.tensor(signs, dtype=torch.float64)
        others_N = x_N.sum() - x_N
        without_N = (others_N.square() - (num - 1)) / ((num - 1) * (num - 2))
        counted.append(jackknife_variance(without_N, source_N))
    pair_NN = weight * (torch.outer(x_N, x_N) - torch.eye(num))
    true = weight**2 * num * (num - 1) / 2  # the variance: pairs are uncorrelated
    too_much = float(torch.stack(counted).mean()) - true
    assert too_much == pytest.approx(true * 5 / 3)  # 2 (n - 1) / (n - 2), less 1
    far_N = torch.tensor([0.0, 3.0, -1.0, 2.0, 5.0], dtype=torch.float64)
    whole = float(jackknife_variance(far_N, source_N))
    found = Separation(0.0, far_N, pair_NN, source_N).standard_error()
    assert found == pytest.approx((whole - too_much) ** 0.5)
    least = Separation(0.0, torch.zeros(num).double(), pair_NN, source_N).standard_error()
    assert least == pytest.approx(true**0.5)


@pytest.mark.parametrize(
    ("size", "width", "apart", "shrink", "most"),
    [
        # No difference at all: pairs of rows are all there is, and an error of at least theirs
        # (with t of few rows) makes the interval somewhat wide.
        (40, 200, 0.0, None, 0.985),
        (20, 200, 2.0, None, 0.975),  # both orders count
        (30, 4, 1.5, None, 0.975),  # single rows count most
        (20, 200, 2.0, 0.5, 0.975),  # a change between two probes of the same rows
    ],
)
def test_intervals_hold_the_truth_95_times_of_100(size, width, apart, shrink, most):
    """Three Gaussian sources on axes of their own: separation 2 apart^2 / width."""
    source_N, generator = rows([size] * 3), torch.Generator().manual_seed(0)
    mean_SK, std_K = torch.zeros(3, width, dtype=torch.float64), torch.ones(width).double()
    mean_SK.fill_diagonal_(apart)
    truth = 2 * apart**2 / width
    quantile, hits, values, errors, plain = stats.t.ppf(0.975, size - 1), 0, [], [], []
    for _ in range(500):
        point_NK = gaussians(generator, source_N, mean_SK, std_K)
        found, aim = of(point_NK, source_N), truth
        if shrink is not None:
            noise_NK = gaussians(generator, source_N, 0 * mean_SK, std_K)
            later_NK = 0.8 * (point_NK - mean_SK[source_N]) + 0.6 * noise_NK
            found = of(later_NK + shrink * mean_SK[source_N], source_N) - found
            aim = (shrink**2 - 1) * truth
        error = found.standard_error()
        hits += abs(found.value - aim) <= quantile * error
        values.append(found.value)
        errors.append(error)
        plain.append(float(jackknife_variance(found.without_N, source_N)))
    assert 0.925 <= hits / 500 <= most
    deviation = torch.tensor(values).std()
    assert torch.tensor(errors).square().mean().sqrt() / deviation == pytest.approx(1, abs=0.12)
    if apart == 0:  # counting pairs twice
        assert torch.tensor(plain).mean().sqrt() / deviation == pytest.approx(2**0.5, abs=0.15)


def test_a_change_knows_that_the_rows_are_the_same():
    point_NK, source_N = three_sources()
    none = of(point_NK, source_N) - of(2 * point_NK, source_N)
    assert none.value == pytest.approx(0, abs=1e-12)
    assert none.standard_error() == pytest.approx(0, abs=1e-8)


def test_sources_without_spread_have_no_separation():
    point_NK = torch.tensor([[1.0, 0.0]] * 5 + [[0.3, 1.0]] * 5, dtype=torch.float64)
    found = of(point_NK, rows([5, 5]))
    assert isinstance(found, Separation)
    assert torch.tensor(found.value).isnan()
