import numpy as np
import pytest
from scipy import stats

from dograph.bench.session import spread
from dograph.stats import median_estimate, median_record


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9, 17, 30, 101])
def test_the_interval_is_the_narrowest_of_order_statistics_that_covers(n):
    values = list(np.random.default_rng(n).normal(size=n))
    found = median_record(median_estimate(values))
    ordered = sorted(values)
    # every symmetric pair of order statistics, with what it covers
    covers = {k: 1 - 2 * stats.binom.cdf(k, n, 0.5) for k in range((n + 1) // 2)}
    wide_enough = [k for k, covered in covers.items() if covered >= 0.95]
    k = max(wide_enough, default=0)
    assert (found["low"], found["high"]) == (ordered[k], ordered[n - 1 - k])
    assert found["median"] == pytest.approx(np.median(values))
    assert found["confidence"] == pytest.approx(max(covers[k], 0), abs=1e-4)


def test_it_covers_the_median_as_often_as_it_says():
    draw = np.random.default_rng(0)
    found = [median_record(median_estimate(list(draw.exponential(size=20)))) for _ in range(2000)]
    hits = np.mean([f["low"] <= np.log(2) <= f["high"] for f in found])
    assert abs(hits - found[0]["confidence"]) < 4 * np.sqrt(0.05 * 0.95 / 2000)


def test_quartiles():
    values = [5.0, 1.0, 2.0, 9.0, 4.0]
    found = spread(values)
    quartiles = np.percentile(values, [25, 50, 75])
    names = ("first_quartile", "median", "third_quartile")
    assert [found[name] for name in names] == pytest.approx(list(quartiles))
    assert found["steps"] == 5
