import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dograph.domains.partition import (
    apply_limits,
    apply_limits_lagged,
    divide_by_norms,
    keep_source_shares,
    limit_variance,
)


def weights(seed, size, concentration=0.3):
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.full(size, concentration)))


def effective_share(weight_B):
    return 1 / (len(weight_B) * float(weight_B.double().square().sum()))


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 100), rho=st.floats(0.01, 1))
def test_effective_floor_is_met_and_tight(seed, size, rho):
    weight_B = weights(seed, size)
    floored_B = limit_variance(weight_B, rho)
    before, after = effective_share(weight_B), effective_share(floored_B)
    assert float(floored_B.sum()) == pytest.approx(1)
    assert bool((floored_B >= 0).all())
    if before >= rho:
        torch.testing.assert_close(floored_B, weight_B, rtol=1e-12, atol=1e-15)
    else:
        assert after == pytest.approx(rho, rel=1e-9), "no more is given up than the floor asks"
        ratio_B = (floored_B - 1 / size) / (weight_B - 1 / size)
        torch.testing.assert_close(ratio_B, ratio_B[0].expand(size), rtol=1e-6, atol=1e-9)


def test_effective_floor_of_equal_weights_and_of_one_sample():
    equal_B = torch.full((7,), 1 / 7)
    assert torch.equal(limit_variance(equal_B, 0.9), equal_B)
    assert torch.equal(limit_variance(equal_B, 1.0), equal_B)
    assert torch.equal(limit_variance(torch.ones(1), 0.5), torch.ones(1))
    single_B = torch.zeros(48)
    single_B[3] = 1
    assert effective_share(limit_variance(single_B, 0.9)) == pytest.approx(0.9, rel=1e-5)
    torch.testing.assert_close(limit_variance(single_B, 1.0), torch.full((48,), 1 / 48))


@pytest.mark.parametrize("size", [1, 4, 5])
def test_within_unit_counts_directions(size):
    rng = np.random.default_rng(size)
    norm = rng.lognormal(0, 2, size)
    norm[0] = 0
    weight_B = weights(0, size, 5.0)
    steady = np.maximum(norm, 0.1 * np.median(norm))
    if size == 1:  # no norm to go by
        assert torch.equal(divide_by_norms(weight_B, torch.tensor(norm)), weight_B)
        return
    expected = weight_B.numpy() / steady
    got = divide_by_norms(weight_B, torch.tensor(norm)).numpy()
    np.testing.assert_allclose(got, expected / expected.sum(), rtol=1e-12)


def test_within_unit_of_equal_weights_is_the_inverse_norm():
    norm_B = torch.tensor([1.0, 2.0, 4.0])
    got_B = divide_by_norms(torch.full((3,), 1 / 3), norm_B)
    torch.testing.assert_close(got_B, torch.tensor([4.0, 2.0, 1.0]) / 7)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_within_unit_without_usable_norms_changes_nothing(bad):
    weight_B = weights(0, 6)
    assert torch.equal(divide_by_norms(weight_B, torch.zeros(6)), weight_B)
    assert torch.equal(divide_by_norms(weight_B, torch.full((6,), bad)), weight_B)


def test_kept_shares_by_hand():
    weight_B = torch.tensor([0.4, 0.1, 0.3, 0.2, 0.0])
    source_B = torch.tensor([1, 1, 0, 1, 5])
    # Source 1 was drawn 3 of 5 times, in parts 4 : 1 : 2; source 5 weighs nothing: alike.
    expected_B = torch.tensor([0.6 * 4 / 7, 0.6 / 7, 0.2, 0.6 * 2 / 7, 0.2])
    torch.testing.assert_close(keep_source_shares(weight_B, source_B), expected_B)


def test_bounds_are_taken_in_their_order():
    """Directions first, then the sources' shares, and the floor after both."""
    weight_B, source_B = torch.tensor([0.4, 0.1, 0.3, 0.2]), torch.tensor([0, 0, 0, 1])
    norm_B = torch.tensor([4.0, 1.0, 1.0, 2.0])
    inside_B = torch.tensor([0.1, 0.1, 0.3]) / 0.5 * 0.75  # 0.4 / 4, 0.1 / 1 and 0.3 / 1
    kept_B = torch.cat((inside_B, torch.tensor([0.25])))
    torch.testing.assert_close(apply_limits(weight_B, None, norm_B, source_B), kept_B)
    held_B = apply_limits(weight_B, 0.9, norm_B, source_B)
    # n sum c^2 = 1.24, so what is apart from 1/4 shrinks by sqrt((1 / 0.9 - 1) / 0.24).
    pull = ((1 / 0.9 - 1) / 0.24) ** 0.5
    torch.testing.assert_close(held_B, 0.25 + pull * (kept_B - 0.25))


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), num=st.integers(1, 6), rho=st.floats(0.2, 1))
def test_bounds_over_domains_are_those_of_their_samples(seed, num, rho):
    """A batch with every domain's samples written out: the same weights, domain by domain."""
    rng = np.random.default_rng(seed)
    count_M = rng.integers(0, 9, num)
    count_M[0] += 1
    size = int(count_M.sum())
    weight_M = rng.dirichlet(np.full(num, 0.5)) + 1e-9
    weight_M = torch.tensor(weight_M / (count_M @ weight_M))
    share_M, label_B = torch.tensor(count_M / size), np.repeat(np.arange(num), count_M)
    floored_M = limit_variance(weight_M, rho, size=size, share_X=share_M)
    expected_B = limit_variance(weight_M[label_B], rho)
    np.testing.assert_allclose(floored_M[label_B], expected_B, atol=1e-12)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12), rho=st.floats(0.3, 1))
def test_no_micro_batch_passes_the_bounds(seed, size, rho):
    rng = np.random.default_rng(seed)
    share_M, weight_M = rng.dirichlet(np.ones(5)), rng.dirichlet(np.full(5, 0.5))
    each_M, share_M = torch.tensor(weight_M / share_M) / 20, torch.tensor(share_M)
    label_b, norm_b = (
        torch.tensor(rng.integers(0, 5, size)),
        torch.tensor(rng.lognormal(0, 2, size)),
    )
    plain_b = 20 * apply_limits_lagged(each_M, share_M, label_b, rho, size=20)
    weight_b = 20 * apply_limits_lagged(each_M, share_M, label_b, rho, norm_b, size=20)
    whole = float(plain_b.mean())
    assert float(weight_b.mean()) == pytest.approx(whole, rel=1e-9)
    assert float(weight_b.square().mean()) <= max(1 / rho, whole**2) * (1 + 1e-9)
    held_M = 20 * limit_variance(each_M, rho, size=20, share_X=share_M)
    assert float(share_M @ held_M) == pytest.approx(1)
    assert float(share_M @ held_M.square()) <= 1 / rho * (1 + 1e-9)
    # inside, weights fall with the norm as by `divide_by_norms` where no bound is in the way
    free_b = apply_limits_lagged(each_M, share_M, label_b, None, norm_b, size=20)
    part_b = divide_by_norms(each_M[label_b] / each_M[label_b].sum(), norm_b)
    torch.testing.assert_close(free_b / free_b.sum(), part_b, rtol=1e-9, atol=0)


def test_a_micro_batch_of_domains_that_count_nothing_keeps_what_the_floor_gives():
    share_M, each_M = torch.tensor([0.5, 0.5]), torch.tensor([0.0, 2.0]) / 8
    label_b, norm_b = torch.tensor([0, 0]), torch.tensor([1.0, 3.0])
    held_b = apply_limits_lagged(each_M, share_M, label_b, 0.8, norm_b, size=8)
    # 1 + t (0 - 1) with t = sqrt(1/0.8 - 1) = 0.5, and 3 : 1 inside the micro-batch
    torch.testing.assert_close(8 * held_b, torch.tensor([0.75, 0.25]))
