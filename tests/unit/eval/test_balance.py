"""Balance over sources by hand and against numpy and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from dograph.errors import ConfigError
from dograph.eval.balance import balance, balance_difference, gains

SOURCES = ("arxiv", "book", "web")


def losses(*values):
    return dict(zip(SOURCES, values, strict=True))


def drawn(seed, shift, scale):
    rng = np.random.default_rng(seed)
    centre = np.array([2.0, 3.0, 4.0])
    return losses(*(3 + scale * (centre - 3) + shift + rng.normal(0, 0.01, 3)))


def test_balance_by_hand():
    found = balance({"arxiv": 2.0, "web": 4.0, "book": 3.0})
    assert found.spread == pytest.approx(math.sqrt(2 / 3))
    assert (found.gap, found.best, found.worst) == (2.0, 2.0, 4.0)
    assert (found.best_source, found.worst_source) == ("arxiv", "web")
    assert balance({"a": 1.5, "b": 1.5}).spread == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_loss_that_is_not_finite_is_the_worst(bad, place):
    values = [2.0, 3.0, 4.0]
    values[place] = bad
    found = balance(losses(*values))
    assert found.worst_source == SOURCES[place]
    assert math.isnan(found.spread)
    assert not math.isfinite(found.gap)
    assert math.isfinite(found.best)


def test_gains_are_what_the_baseline_lost_more():
    found = gains(losses(2.0, 3.5, 4.0), losses(2.5, 3.0, 4.0))
    assert found == {"arxiv": 0.5, "book": -0.5, "web": 0.0}


def test_differences_are_paired_by_seed():
    method = {seed: drawn(seed, -0.1, 0.9) for seed in (5, 1, 2, 3, 9)}
    baseline = {seed: drawn(100 + seed, 0.0, 1.0) for seed in (1, 2, 3, 5, 8)}
    found = balance_difference(method, baseline)
    assert found.seeds == [1, 2, 3, 5]

    def interval(difference):
        return (difference.interval.low, difference.interval.high)

    def expected(figure):
        test = stats.ttest_rel(
            [figure(list(method[s].values())) for s in found.seeds],
            [figure(list(baseline[s].values())) for s in found.seeds],
        )
        return tuple(test.confidence_interval(0.95))

    assert interval(found.spread) == pytest.approx(expected(np.std))
    assert interval(found.gap) == pytest.approx(expected(np.ptp))
    assert found.verdict == "more balanced"
    for source in SOURCES:
        test = stats.ttest_rel(
            [baseline[s][source] for s in found.seeds], [method[s][source] for s in found.seeds]
        )
        got = found.gains[source]
        assert interval(got) == pytest.approx(tuple(test.confidence_interval(0.95)))
        wide = test.confidence_interval(1 - 0.05 / 3)
        assert (got.simultaneous.low, got.simultaneous.high) == pytest.approx(tuple(wide))
    assert found.gains["web"].value > 0.15 > found.gains["arxiv"].value


def test_verdicts_need_an_interval_that_excludes_zero():
    baseline = {seed: drawn(100 + seed, 0.0, 1.0) for seed in range(4)}
    wider = {seed: drawn(seed, 0.0, 1.2) for seed in range(4)}
    alike = {seed: drawn(seed, -0.5, (0.9, 1.1)[seed % 2]) for seed in range(4)}
    assert balance_difference(wider, baseline).verdict == "less balanced"
    assert balance_difference(alike, baseline).verdict == "no clear difference"
    assert balance_difference(baseline, baseline).verdict == "no clear difference"  # [0, 0]
    one = balance_difference({0: wider[0]}, baseline)
    assert (one.spread.interval, one.verdict) == (None, "no clear difference")
    broken = {**wider, 2: losses(1.0, math.nan, 2.0)}
    assert balance_difference(broken, baseline).verdict == "no clear difference"


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match=r"at least 2 sources, got \['web'\]"):
        balance({"web": 3.0})
    with pytest.raises(ConfigError, match=r"same sources, got \['web'\] and \['book', 'web'\]"):
        gains({"web": 3.0}, {"web": 3.0, "book": 2.0})
    with pytest.raises(ConfigError, match=r"no seed has both runs.*\[0\].*\[1\]"):
        balance_difference({0: losses(1, 2, 3)}, {1: losses(1, 2, 3)})
    with pytest.raises(ConfigError, match="same sources"):
        balance_difference({0: losses(1, 2, 3)}, {0: {"arxiv": 1.0, "book": 2.0}})
