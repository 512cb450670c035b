"""Balance over sources by hand and against numpy."""

import math

import numpy as np
import pytest

from dograph.errors import ConfigError
from dograph.eval.recorded import balance

SOURCES = ("arxiv", "book", "web")


def losses(*values):
    return dict(zip(SOURCES, values, strict=True))


def test_balance_by_hand():
    found = balance({"arxiv": 2.0, "web": 4.0, "book": 3.0})
    assert found.spread == pytest.approx(math.sqrt(2 / 3))
    assert found.gap == 2.0
    assert balance({"a": 1.5, "b": 1.5}).spread == 0


def test_it_is_the_deviation_and_the_range_of_these_sources():
    values = np.random.default_rng(0).normal(3, 1, 3)
    found = balance(losses(*values.tolist()))
    assert (found.spread, found.gap) == pytest.approx((np.std(values), np.ptp(values)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_loss_that_is_not_finite_leaves_no_spread_and_no_gap(bad, place):
    values = [2.0, 3.0, 4.0]
    values[place] = bad
    found = balance(losses(*values))
    assert math.isnan(found.spread)
    assert not math.isfinite(found.gap)


def test_one_source_has_no_balance():
    with pytest.raises(ConfigError, match=r"at least 2 sources, got \['web'\]"):
        balance({"web": 3.0})
