"""Intervals and corrections against scipy, against hand computations, and by their coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from dograph.stats import (
    ABOVE_ZERO,
    ANY,
    PER_CENT,
    SHARE,
    SHARE_CHANGE,
    Estimate,
    Interval,
    claim,
    holm,
    mean_estimate,
    paired_difference,
    percentile_interval,
    resample,
    summaries,
    t_quantile,
)

SEEDS, REPLICATIONS = 5, 4000


@pytest.mark.parametrize("num", [2, 3, 5, 11])
def test_paired_t_is_that_of_scipy(num):
    rng = np.random.default_rng(num)
    ours, theirs = rng.normal(3.0, 0.1, num), rng.normal(3.02, 0.1, num)
    by_seed = (dict(enumerate(values)) for values in (ours, theirs))
    found = paired_difference(*by_seed, family=7)
    expected = stats.ttest_rel(ours, theirs)
    interval, wide = expected.confidence_interval(0.95), expected.confidence_interval(1 - 0.05 / 7)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.interval.low, found.interval.high) == pytest.approx(interval, rel=1e-9)
    assert (found.simultaneous.low, found.simultaneous.high) == pytest.approx(wide, rel=1e-9)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())


def test_one_seed_has_no_interval():
    assert mean_estimate([0.25], 3) == Estimate(0.25, None, 1)


def test_no_variance_is_one_number():
    same = mean_estimate([0.5] * 5, 3)
    assert (same.interval, same.simultaneous, same.p_value) == (Interval(0.5, 0.5),) * 2 + (0.0,)
    assert mean_estimate([0.0] * 5).p_value == 1.0
    # a third is no binary fraction: its mean differs from it in the last bit
    assert mean_estimate([1 / 3] * 3).interval == Interval(1 / 3, 1 / 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_never_claimed(bad):
    found = mean_estimate([0.1, 0.2, bad, 0.1, 0.2])
    assert (found.interval, found.p_value) == (None, None)
    assert claim(found, holm([found.p_value])[0]).startswith("no claim")


def test_holm_by_hand():
    # ascending 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, and 0.06 again
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("bad", [-1e-9, 1.001, math.nan, math.inf])
def test_what_is_no_p_value_is_refused(bad):
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.02, bad])
    assert holm([0.0, 1.0]) == [0.0, 1.0]


def test_a_test_that_could_not_be_made_still_counts():
    assert holm([0.02, None, 0.03]) == [pytest.approx(0.06), None, pytest.approx(0.06)]


def test_claims():
    def of(mean, num=5):
        return Estimate(mean, None, num, None, 0.001)

    assert claim(of(-1.0), 0.01) == "lower"
    assert claim(of(1.0), 0.01) == "higher"
    assert claim(of(1.0), 0.051) == "unclear"
    assert claim(of(-1.0, num=4), 1e-9) == "no claim: 4 of 5 seeds"


def test_summaries_by_hand():
    loss = np.array([[1.0, 4.0, 2.5], [3.0, 3.0, 3.0]])
    found = summaries(loss, np.array([6.0, 3.0, 1.0]))
    assert found["mean"] == pytest.approx([2.5, 3.0])
    assert found["natural"] == pytest.approx([0.6 + 1.2 + 0.25, 3.0])
    assert found["worst"] == pytest.approx([4.0, 3.0])
    assert found["gap"] == pytest.approx([3.0, 0.0])


def covered(differences, truth=0.0):
    found = [mean_estimate(row, 1).interval for row in differences]
    return np.mean([i.low <= truth <= i.high for i in found])


def test_coverage_of_five_seeds():
    """95 % of intervals hold the truth; the Monte Carlo error of 4000 is 0.0034."""
    rng = np.random.default_rng(0)
    normal = covered(rng.normal(0.3, 2.0, (REPLICATIONS, SEEDS)), 0.3)
    assert normal == pytest.approx(0.95, abs=0.01)
    # Strongly skewed differences cost some: what losses of paired runs show is far milder.
    skewed = covered(rng.exponential(1.0, (REPLICATIONS, SEEDS)) - 1.0)
    assert 0.85 < skewed < 0.93
    mild = covered(rng.gamma(16.0, 1.0, (REPLICATIONS, SEEDS)) - 16.0)  # skewness 0.5
    assert mild == pytest.approx(0.945, abs=0.01)
    print(f"coverage at n = 5: normal {normal:.4f}, gamma(16) {mild:.4f}, exponential {skewed:.4f}")


def tables(rng, rows, effect, number=2000):
    """Differences of methods to one baseline, whose noise all rows of a table share."""
    for _ in range(number):
        runs = rng.normal(0.0, 1.0, (rows, SEEDS)) + effect[:, None]
        yield runs - rng.normal(0.0, 1.0, SEEDS)


def test_family_wise_error_of_holm():
    rng, rows = np.random.default_rng(1), 7
    false, plain, held = 0, 0, 0
    for table in tables(rng, rows, np.zeros(rows)):
        found = [mean_estimate(row, rows) for row in table]
        p_values = [difference.p_value for difference in found]
        false += any(p <= 0.05 for p in holm(p_values))
        plain += any(p <= 0.05 for p in p_values)
        held += all(d.simultaneous.low <= 0 <= d.simultaneous.high for d in found)
    assert false / 2000 <= 0.05 + 0.01
    assert held / 2000 >= 0.95 - 0.01
    assert plain / 2000 > 0.12  # what the correction is there for
    print(f"any false claim: Holm {false / 2000:.4f}, uncorrected {plain / 2000:.4f}")


def test_holm_is_no_weaker_than_bonferroni():
    rng, rows = np.random.default_rng(2), 4
    for table in tables(rng, rows, np.array([0.0, -3.0, 3.0, -6.0]), number=50):
        p_values = [mean_estimate(row).p_value for row in table]
        assert all(
            adjusted <= min(1.0, rows * p) + 1e-12
            for adjusted, p in zip(holm(p_values), p_values, strict=True)
        )


def made(rng, sizes, shift, noise=0.05, seeds=3):
    """Blocks whose difficulty both methods share; the second is better by `shift` on average."""
    found = {}
    for s, num in enumerate(sizes):
        hard = rng.normal(4.0, 0.6, num)[:, None, None]
        own = shift + rng.normal(0.0, noise, num)  # by how much this block differs
        loss = hard + np.zeros((num, 2, seeds))
        loss[:, 1] -= own[:, None]
        found[f"s{s}"] = (np.full(num, 127.0), loss)
    return found


def test_resamples_are_paired_and_the_same_every_time():
    blocks = made(np.random.default_rng(3), [8, 5], 0.1)
    first, again = resample(blocks), resample(blocks)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, resample(blocks, seed=1))
    # What the blocks share drops out: the difference varies far less than a loss does.
    figure = summaries(first, np.ones(2))["mean"]
    interval = percentile_interval(figure, 1, 0)
    assert interval.high - interval.low < 0.2 * np.ptp(np.quantile(figure[:, 0, 0], [0.025, 0.975]))
    assert percentile_interval(figure, 0, 0) == Interval(0.0, 0.0)


def test_resampled_losses_weigh_predictions_alike():
    blocks = {"a": (np.array([1.0, 3.0]), np.array([1.0, 5.0]).reshape(2, 1, 1))}
    # n - 1 = 1 block is drawn: its own loss, whatever its length
    assert set(np.unique(resample(blocks))) == {1.0, 5.0}
    three = {"a": (np.array([1.0, 3.0, 2.0]), np.array([1.0, 5.0, 2.0]).reshape(3, 1, 1))}
    pairs = {(a * x + b * y) / (a + b) for a, x in _pairs(three) for b, y in _pairs(three)}
    assert {round(v, 9) for v in np.unique(resample(three))} == {round(v, 9) for v in pairs}


def test_sources_are_resampled_apart():
    """Equal blocks in two sources are not drawn alike; 4000 times."""
    one = (np.ones(6), np.arange(6.0).reshape(6, 1, 1))
    loss_RMNS = resample({"a": one, "b": one})
    assert loss_RMNS.shape == (4000, 1, 1, 2)
    between = np.corrcoef(loss_RMNS[:, 0, 0, 0], loss_RMNS[:, 0, 0, 1])[0, 1]
    assert abs(between) < 0.08  # five standard errors


def _pairs(blocks):
    return list(zip(blocks["a"][0], blocks["a"][1][:, 0, 0], strict=True))


def test_a_source_of_one_block_cannot_be_resampled():
    assert resample(made(np.random.default_rng(4), [8, 1], 0.1)) is None
    assert resample({}) is None


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "share"), [([32] * 7, 0.945), ([4, 6, 5], 0.92)])
def test_coverage_over_items(sizes, share):
    """32 samples of each of seven sources (the default), and a very short validation.

    The oracle is the stratified normal interval, mean +- 1.96 sqrt(sum s^2 / n) / S: as wide, to
    the 1 or 2 % that quantiles of 600 draws fall short (drawing n blocks would cost 12 % at n = 5),
    and held as often. The Monte Carlo error of 300 is 0.013.
    """
    rng, number = np.random.default_rng(5), 300
    hits, normal, ratios = 0, 0, []
    for replication in range(number):
        blocks = made(rng, sizes, 0.02, seeds=1)
        found = resample(blocks, seed=replication, number=600)
        figure = summaries(found, np.ones(len(sizes)))["mean"]
        interval = percentile_interval(figure, 1, 0)
        hits += interval.low <= -0.02 <= interval.high
        own = [loss_nMN[:, 1, 0] - loss_nMN[:, 0, 0] for _, loss_nMN in blocks.values()]
        reach = 1.96 * math.sqrt(sum(d.var(ddof=1) / len(d) for d in own)) / len(sizes)
        normal += abs(np.mean([d.mean() for d in own]) + 0.02) <= reach
        ratios.append((interval.high - interval.low) / (2 * reach))
    print(f"over items of {sizes}: {hits / number:.3f}, normal theory {normal / number:.3f}")
    assert np.mean(ratios) == pytest.approx(0.99, abs=0.012)
    assert hits == pytest.approx(normal, abs=0.02 * number)
    assert hits / number == pytest.approx(share, abs=0.035)


def test_an_interval_leaves_out_a_fortieth_at_either_end():
    """Differences from 0 to 100 nats, averaged over two seeds that are 1 nat apart."""
    figure_RMN = np.zeros((101, 2, 2))
    figure_RMN[:, 1] = np.arange(101.0)[:, None] + [-0.5, 0.5]
    found = percentile_interval(figure_RMN, 1, 0)
    assert (found.low, found.high) == pytest.approx((2.5, 97.5))


@pytest.mark.parametrize(
    ("interval", "ends", "left"),
    [
        ((-0.3, 1.2), SHARE, (0.0, 1.0)),
        ((0.2, 1.2), SHARE, (0.2, 1.0)),
        ((-0.3, 0.9), SHARE, (0.0, 0.9)),
        ((0.2, 0.9), SHARE, (0.2, 0.9)),
        ((-1.5, 0.2), SHARE_CHANGE, (-1.0, 0.2)),
        ((-5.0, 250.0), PER_CENT, (0.0, 100.0)),
        ((-5.0, 250.0), ABOVE_ZERO, (0.0, 250.0)),
        ((-5.0, 250.0), ANY, (-5.0, 250.0)),
        ((-math.inf, math.inf), SHARE, (0.0, 1.0)),
    ],
)
def test_the_part_between_the_ends(interval, ends, left):
    assert Interval(*interval).cut(ends) == Interval(*left)


def test_no_interval_stays_none():
    assert Estimate(2.0).within(SHARE) == Estimate(2.0)


@pytest.mark.parametrize("freedom", [1, 4, 30, 798])
def test_quantiles_are_those_of_scipy(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-12)


def test_the_side_of_zero():
    ends = [(-2.0, -1.0), (-1.0, 0.0), (-1.0, 1.0), (0.0, 1.0), (1.0, 2.0)]
    assert [Interval(*pair).side for pair in ends] == [-1, 0, 0, 0, 1]
