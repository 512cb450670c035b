"""Intervals against scipy, and against what resampling says."""

import json

import numpy as np
import pytest
from scipy import stats

from dograph.report.comparison import band
from dograph.report.content import (
    block_losses,
    of_blocks,
    of_mean,
    of_weighted,
    over_seeds,
    t_quantile,
    t_reach,
)
from dograph.report.series import Curve, Line, rounded


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 29, 30, 31, 50, 200, 5000])
def test_students_t_is_scipys(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-5)


def test_over_seeds_is_scipys_interval():
    values = [3.1, 3.3, 2.9, 3.25]
    found = over_seeds(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert over_seeds([3.0]).low is None


def test_one_value_and_many_at_once_reach_as_far_as_scipy_says():
    value_NX = np.random.default_rng(1).normal(3.0, 0.2, (6, 4))
    expected_X = stats.t.ppf(0.975, 5) * stats.sem(value_NX, axis=0)
    deviation_X = value_NX.std(axis=0, ddof=1)
    np.testing.assert_allclose(t_reach(deviation_X, 6), expected_X, rtol=3e-5)
    assert t_reach(float(deviation_X[0]), 6) == pytest.approx(expected_X[0], rel=3e-5)
    assert of_mean(3.0, None, 1).low is None


def test_seeds_have_one_interval_wherever_they_are_shown():
    """From their values, from a comparison's mean and deviation, and as a band over steps."""
    values = [3.1, 3.3, 2.9, 3.25]
    found = over_seeds(values)
    deviation = float(np.std(values, ddof=1))
    assert of_mean(found.value, deviation, 4) == found
    drawn = band([Curve(Line([20], [value]), None, 1, 1) for value in values])
    assert (drawn.low, drawn.high) == (
        rounded(np.array([found.low])),
        rounded(np.array([found.high])),
    )


@pytest.fixture
def blocks(tmp_path):
    rng = np.random.default_rng(4)
    file = tmp_path / "validation.jsonl"
    rows = [
        {
            "source": source,
            "predictions": rng.integers(20, 60, 400).tolist(),
            "loss_nats": rng.normal(middle, 0.3, 400).tolist(),
        }
        for source, middle in (("a", 3.0), ("b", 4.0))
    ]
    rows.append({"source": "one", "predictions": [5], "loss_nats": [1.0]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows, block_losses(file)


def test_the_interval_over_blocks_is_that_of_resampling(blocks):
    rows, found = blocks
    rng, row = np.random.default_rng(0), rows[0]
    size_n, loss_n = np.array(row["predictions"]), np.array(row["loss_nats"])
    draw_Rn = rng.integers(0, 400, (4000, 400))
    drawn_R = (size_n * loss_n)[draw_Rn].sum(axis=1) / size_n[draw_Rn].sum(axis=1)
    low, high = np.quantile(drawn_R, [0.025, 0.975])
    estimate = of_blocks(found["a"])
    assert estimate.value == pytest.approx((size_n * loss_n).sum() / size_n.sum())
    width = high - low
    assert abs(estimate.low - low) < 0.08 * width
    assert abs(estimate.high - high) < 0.08 * width


def test_a_mean_of_sources_is_surer_than_each(blocks):
    _, found = blocks
    both = of_weighted(3.5, [(0.5, found["a"]), (0.5, found["b"])])
    expected = 0.5 * np.sqrt(found["a"].variance + found["b"].variance)
    assert both.high - 3.5 == pytest.approx(t_quantile(798) * expected)


def test_one_block_says_nothing_of_others(blocks, tmp_path):
    _, found = blocks
    assert set(found) == {"a", "b"}
    assert block_losses(tmp_path / "none.jsonl") == {}
