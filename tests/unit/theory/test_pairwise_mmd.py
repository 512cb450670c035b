"""MMD between many groups: every pair against the test of two, and Holm's correction by a loop."""

from itertools import combinations

import pytest
import torch

from dograph.errors import ConfigError
from dograph.eval.inspect import pairwise_mmd
from dograph.rng import stream
from dograph.stats import holm
from mmd_oracles import mmd_squared


def normal(*shape, name="x", mean=0.0, std=1.0):
    return torch.from_numpy(stream(0, "test", name).normal(mean, std, shape))


def holm_by_loop(p_values):
    out = [0.0] * len(p_values)
    for i, p in enumerate(p_values):
        worst = 0.0
        for j, q in enumerate(p_values):
            if q < p or (q == p and j <= i):
                remaining = sum(r > q or (r == q and k >= j) for k, r in enumerate(p_values))
                worst = max(worst, remaining * q)
        out[i] = min(1.0, worst)
    return out


@pytest.mark.parametrize("size", [0, 1, 2, 5, 30])
def test_holm_equals_a_plain_loop(size):
    random = stream(0, "test", "holm", size)
    for scale in (1.0, 0.05):
        p_values = (random.random(size) * scale).round(2)  # with ties
        got = holm(p_values.tolist())
        assert got == pytest.approx(holm_by_loop(p_values.tolist()), abs=1e-12)


def test_holm_on_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def three_groups():
    """Two of one law and one far away, in scrambled order."""
    feature_NK = torch.cat(
        [normal(12, 6), normal(15, 6, name="y"), normal(9, 6, name="z", mean=2.0)]
    )
    group_N = torch.tensor([0] * 12 + [1] * 15 + [2] * 9)
    order = torch.from_numpy(stream(0, "test", "order").permutation(36))
    return feature_NK[order], group_N[order]


def test_every_pair_equals_the_test_of_two():
    feature_NK, group_N = three_groups()
    got = pairwise_mmd(feature_NK, group_N, 3, num_permutations=199, seed=2)
    for g, h in combinations(range(3), 2):
        x, y = feature_NK[group_N == g], feature_NK[group_N == h]
        value = mmd_squared(x, y, "unbiased")
        assert got[g, h].mmd_squared == pytest.approx(float(value), rel=1e-11, abs=1e-13)
        spread = (x.var(0).sum() + y.var(0).sum()) / 2
        separation = value / spread
        assert got[g, h].separation == pytest.approx(float(separation), rel=1e-11, abs=1e-13)
    assert list(got) == [(0, 1), (0, 2), (1, 2)]
    # the two far pairs are beyond all 199 relabellings: 3 * (1 / 200) after the correction
    assert got[0, 2].p_value == pytest.approx(3 / 200)
    assert got[1, 2].p_value == pytest.approx(3 / 200)
    assert got[0, 1].p_value > 0.05


def test_separation_has_no_scale_and_no_origin():
    feature_NK, group_N = three_groups()
    options = {"num_permutations": 19, "seed": 0}
    one = pairwise_mmd(feature_NK, group_N, 3, **options)
    other = pairwise_mmd(1e-6 * feature_NK + 5e-4, group_N, 3, **options)
    for pair in one:
        assert other[pair].separation == pytest.approx(one[pair].separation, rel=1e-8, abs=1e-10)
        size = pytest.approx(1e-12 * one[pair].mmd_squared, rel=1e-8, abs=0)
        assert other[pair].mmd_squared == size
        assert other[pair].p_value == one[pair].p_value


def test_the_seed_alone_decides():
    feature_NK, group_N = three_groups()
    close, both = feature_NK[group_N < 2], group_N[group_N < 2]
    one, again, other = (
        pairwise_mmd(close, both, 2, seed=seed)[0, 1].p_value for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    assert abs(one - other) < 0.1


def test_separation_of_gaussian_groups():
    """Distance 3 along one of 9 axes of variance 4: 9 / 36."""
    x, y = normal(3000, 9, std=2.0), normal(3000, 9, name="y", std=2.0)
    y[:, 0] += 3.0
    group_N = torch.arange(6000) // 3000
    got = pairwise_mmd(torch.cat([x, y])[::4], group_N[::4], 2, num_permutations=1, seed=0)
    assert got[0, 1].separation == pytest.approx(0.25, abs=0.04)


def test_separation_without_spread():
    """Rounding leaves constant groups a spread of about 1e-17, of either sign."""
    group_N = torch.tensor([0] * 3 + [1] * 6 + [2] * 7)
    for trial in range(20):
        near_K, far_K = normal(2, 5, name=trial)
        feature_NK = torch.where(group_N[:, None] < 2, near_K, far_K)
        got = pairwise_mmd(feature_NK, group_N, 3, num_permutations=1, seed=0)
        assert got[0, 1].separation == 0
        assert got[0, 2].separation == torch.inf


def test_one_group_has_no_other():
    alone = pairwise_mmd(normal(5, 3), torch.zeros(5).long(), 1, seed=0)
    assert alone == {}


# ---- errors


def test_small_groups_are_named():
    feature_NK, group_N = normal(5, 3), torch.tensor([0, 0, 1, 3, 3])
    with pytest.raises(ConfigError, match=r"at least 2 .*\{1: 1, 2: 0\}"):
        pairwise_mmd(feature_NK, group_N, 4, seed=0)


@pytest.mark.parametrize("group_N", [[0, 1, 2], [0, -1, 1], [0.0, 1.0, 1.0]])
def test_groups_out_of_range_are_refused(group_N):
    with pytest.raises(ConfigError, match="whole numbers from 0 to 1"):
        pairwise_mmd(normal(3, 2), torch.tensor(group_N), 2, seed=0)


def test_bad_inputs_are_refused():
    x, group_N = normal(4, 3), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ConfigError, match="one group per sample"):
        pairwise_mmd(x, group_N[:3], 2, seed=0)
    with pytest.raises(ConfigError, match="one group per sample"):
        pairwise_mmd(x[:, 0], group_N, 2, seed=0)
    with pytest.raises(ConfigError, match="num_permutations must be at least 1, got 0"):
        pairwise_mmd(x, group_N, 2, seed=0, num_permutations=0)
    x[1, 2] = float("nan")
    with pytest.raises(ConfigError, match="not finite"):
        pairwise_mmd(x, group_N, 2, seed=0)
