"""Intervals against scipy, and against what resampling says."""

import json

import numpy as np
import pytest
from scipy import stats

from dograph.report.one_run import BlockLoss, block_losses, over_blocks
from dograph.report.sections import band
from dograph.report.series import Series, rounded
from dograph.stats import ABOVE_ZERO, mean_estimate, t_quantile


def test_seeds_have_one_interval_wherever_they_are_shown():
    """From their values, and as a band over steps."""
    values = [3.1, 3.3, 2.9, 3.25]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = mean_estimate(values)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    drawn = band([Series(x=[20], y=[value]) for value in values], "a method", 0)
    assert drawn.low == rounded(np.array([low]))
    assert drawn.high == rounded(np.array([high]))


def test_a_band_has_the_interval_of_every_step():
    value_NX = np.random.default_rng(1).normal(3.0, 0.2, (6, 4))
    drawn = band([Series(x=[1, 2, 3, 4], y=list(row)) for row in value_NX], "a method", 0)
    low_X, high_X = stats.t.interval(0.95, 5, value_NX.mean(axis=0), stats.sem(value_NX, axis=0))
    assert (drawn.low, drawn.high) == (rounded(low_X), rounded(high_X))


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
    estimate = over_blocks(found["a"].mean, [(1.0, found["a"])])
    assert estimate.value == pytest.approx((size_n * loss_n).sum() / size_n.sum())
    width = high - low
    assert abs(estimate.low - low) < 0.08 * width
    assert abs(estimate.high - high) < 0.08 * width


def test_a_mean_of_sources_is_surer_than_each(blocks):
    _, found = blocks
    both = over_blocks(3.5, [(0.5, found["a"]), (0.5, found["b"])])
    expected = 0.5 * np.sqrt(found["a"].variance + found["b"].variance)
    assert both.high - 3.5 == pytest.approx(t_quantile(798) * expected)


def test_one_block_says_nothing_of_others(blocks, tmp_path):
    _, found = blocks
    assert set(found) == {"a", "b"}
    assert block_losses(tmp_path / "none.jsonl") == {}


def test_intervals_of_losses_stay_above_zero():
    """Two seeds that differ much: the t interval alone would reach below zero."""
    values = [0.2, 0.9]
    assert mean_estimate(values).low < 0
    cut = mean_estimate(values).within(ABOVE_ZERO)
    assert (cut.low, cut.value) == (0.0, pytest.approx(0.55))
    assert cut.high == mean_estimate(values).high
    assert band([Series(x=[20], y=[value]) for value in values], "m", 0).low == [0.0]
    own = over_blocks(0.55, [(1.0, BlockLoss(0.55, 0.5, 2))])
    assert own.low == 0.0
    assert own.high == pytest.approx(0.55 + t_quantile(1) * np.sqrt(0.5))
