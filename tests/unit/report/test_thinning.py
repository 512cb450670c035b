"""Thinning keeps what a reader looks for: ends, extremes, and only points that were measured."""

import numpy as np
import pytest

from dograph.report.series import curve, rounded, running_mean, thin


@pytest.fixture(scope="module")
def noisy():
    rng = np.random.default_rng(1)
    value_N = np.cumsum(rng.standard_normal(20_000))
    value_N[[7123, 15_001]] = 1e6, -1e6  # one step each
    return np.arange(1, 20_001), value_N


def test_ends_and_extremes_are_kept(noisy):
    step_N, value_N = noisy
    steps, values = thin(step_N, value_N, 100)
    assert len(steps) <= 202
    assert (steps[0], steps[-1]) == (1, 20_000)
    assert values[list(steps).index(7124)] == 1e6
    assert values[list(steps).index(15_002)] == -1e6


def test_every_stretch_keeps_its_range(noisy):
    """So a picture a hundred pixels wide is the same with and without thinning."""
    step_N, value_N = noisy
    steps, values = thin(step_N, value_N, 100)
    for first in range(0, 20_000, 200):
        inside = (steps > first) & (steps <= first + 200)
        part = value_N[first : first + 200]
        assert values[inside].min() == part.min()
        assert values[inside].max() == part.max()


def test_points_are_measured_ones_in_order(noisy):
    step_N, value_N = noisy
    steps, values = thin(step_N, value_N, 60)
    assert (np.diff(steps) > 0).all()
    np.testing.assert_array_equal(values, value_N[steps - 1])


@pytest.mark.parametrize("num", [1, 2, 3, 22])
def test_few_points_stay_as_they_are(num):
    step_N, value_N = np.arange(num), np.random.default_rng(0).random(num)
    steps, values = thin(step_N, value_N, 10)
    np.testing.assert_array_equal(values, value_N)
    np.testing.assert_array_equal(steps, step_N)


def test_the_running_mean_is_that_of_a_plain_loop():
    value_N = np.random.default_rng(2).random(40)
    expected = []
    for n in range(37):
        half = min(n, 3)
        expected.append(value_N[n - half : n + half + 1].mean())
    expected += np.polyval(np.polyfit(range(33, 40), value_N[33:], 1), [37, 38, 39]).tolist()
    np.testing.assert_allclose(running_mean(value_N, 7), expected, atol=1e-12)


def test_the_end_of_a_noisy_curve_is_not_its_last_step():
    noise_N = np.random.default_rng(5).standard_normal(5000)
    assert abs(running_mean(noise_N, 101)[-50:]).max() < 0.5


def test_a_straight_line_is_not_bent_by_smoothing():
    line_N = np.linspace(5.0, 1.0, 1000)
    np.testing.assert_allclose(running_mean(line_N, 101), line_N, atol=1e-12)


def test_smoothing_sees_points_that_are_not_drawn(noisy):
    step_N, value_N = noisy
    found = curve(step_N, value_N, 60)
    assert found.raw is not None
    at = found.x.index(min(found.x, key=lambda x: abs(x - 7124)))
    n = found.x[at] - 1
    assert found.y[at] == pytest.approx(value_N[n - 200 : n + 201].mean(), rel=1e-4)


def test_a_single_point_is_a_curve():
    found = curve(np.array([1]), np.array([3.5]), 100)
    assert (found.x, found.y, found.raw) == ([1], [3.5], None)


def test_rounding_keeps_five_digits():
    assert rounded(np.array([1.23456789, -0.000123456789, 0.0])) == [1.2346, -0.00012346, 0.0]
