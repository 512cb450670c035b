"""The simulated optimum and its caps."""

import numpy as np
import pytest
from scipy.optimize import brentq

from dograph.errors import ConfigError
from dograph.mixtures.from_table import cap_vector
from dograph.mixtures.proposals import DRAWS, TOP, capped, simulate

PRIOR_S = np.array([0.5, 0.3, 0.15, 0.05])
FREE_S = np.ones(4)


def bowl(best_S):
    return lambda weight_NS: 2 + ((weight_NS - best_S) ** 2).sum(1)


def test_the_optimum_of_a_bowl_is_approached():
    best_S = np.array([0.1, 0.6, 0.2, 0.1])
    weight_S, result = simulate(bowl(best_S), np.full(4, 0.25), FREE_S, draws=50_000)
    assert np.abs(weight_S - best_S).sum() < 0.05
    assert result["top"] == 128
    assert result["cut_to_caps"] == 0
    assert not result["constant"]


def test_it_is_the_mean_of_the_lowest_draws():
    """The prediction of the second source's weight: the lowest draws are those with least of it."""
    seen = []

    def predict(weight_NS):
        seen.append(weight_NS.copy())
        return weight_NS[:, 1]

    weight_S, result = simulate(predict, PRIOR_S, FREE_S, draws=5000, top=100)
    drawn_NS = seen[0]
    np.testing.assert_allclose(drawn_NS.mean(0), PRIOR_S, atol=0.03)
    variance_S = PRIOR_S * (1 - PRIOR_S) / 2  # Dirichlet of concentration 1
    np.testing.assert_allclose(drawn_NS.var(0), variance_S, rtol=0.1)
    order = sorted(range(5000), key=lambda n: (drawn_NS[n, 1], n))
    assert result["top"] == 100
    np.testing.assert_allclose(weight_S, drawn_NS[order[:100]].mean(0), atol=1e-12)


def test_the_constants_are_the_authors():
    """100,000 draws, the mean of the 128 lowest, seed 42."""
    assert (DRAWS, TOP) == (100_000, 128)
    counts = []

    def predict(weight_NS):
        counts.append(len(weight_NS))
        return weight_NS[:, 1]

    weight_S, result = simulate(predict, PRIOR_S, FREE_S)
    assert counts == [100_000]
    assert result["top"] == 128
    again_S, _ = simulate(predict, PRIOR_S, FREE_S, seed=42, draws=100_000, top=128)
    np.testing.assert_array_equal(weight_S, again_S)


def test_equal_losses_go_by_index():
    seen = []

    def predict(weight_NS):
        seen.append(weight_NS)
        return (weight_NS[:, 0] > 0.5).astype(float)

    weight_S, _ = simulate(predict, PRIOR_S, FREE_S, draws=1000, top=16)
    first = np.flatnonzero(seen[0][:, 0] <= 0.5)[:16]
    np.testing.assert_allclose(weight_S, seen[0][first].mean(0), atol=1e-12)


def test_caps_hold_for_every_draw_and_average():
    cap_S = np.array([1.0, 0.3, 0.2, 0.0])
    seen = []

    def predict(weight_NS):
        seen.append(weight_NS)
        return -weight_NS[:, 1] - 0.5 * weight_NS[:, 2]

    weight_S, result = simulate(predict, PRIOR_S, cap_S, draws=4000)
    assert (seen[0] <= cap_S).all()
    np.testing.assert_allclose(seen[0].sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(weight_S, [0.5, 0.3, 0.2, 0], atol=1e-6)
    assert 0.5 < result["cut_to_caps"] <= 1


def test_caps_that_leave_one_mixture():
    cap_S = np.array([0.4, 0.3, 0.2, 0.1])
    weight_S, _ = simulate(
        lambda w: w[:, 0] + 1e-3 * w[:, 1] ** 2, PRIOR_S, cap_S, draws=500, top=8
    )
    np.testing.assert_allclose(weight_S, cap_S, atol=1e-9)


def test_a_constant_surrogate_proposes_the_prior():
    weight_S, result = simulate(lambda w: np.full(len(w), 3.0), PRIOR_S, FREE_S, draws=500)
    assert result["constant"]
    np.testing.assert_array_equal(weight_S, PRIOR_S)
    cap_S = np.array([0.2, 1, 1, 1])
    weight_S, result = simulate(lambda w: np.full(len(w), 3.0), PRIOR_S, cap_S, draws=500)
    np.testing.assert_allclose(weight_S, [0.2, 0.48, 0.24, 0.08])


def test_a_source_without_prior_is_never_drawn():
    prior_S = np.array([0.5, 0.0, 0.5])
    weight_S, _ = simulate(lambda w: w[:, 0], prior_S, np.array([1.0, 0, 1]), draws=500, top=8)
    assert weight_S[1] == 0


def brute_cap(weight_S, cap_S):
    """min(cap, a w) by bisection on a."""
    low, high = 0.0, 1e20
    for _ in range(400):
        middle = np.sqrt(max(low, 1e-20) * high) if high > 1 else (low + high) / 2
        short = np.minimum(cap_S, middle * weight_S).sum() < 1
        low, high = (middle, high) if short else (low, middle)
    return np.minimum(cap_S, high * weight_S)


def test_cutting_keeps_proportions():
    draws = np.random.default_rng(8)
    weight_NS = draws.dirichlet(np.full(6, 0.5), size=200)
    cap_S = np.array([0.3, 0.25, 0.2, 0.6, 0.15, 0.1])
    cut_NS = capped(weight_NS, cap_S, np.full(6, 1 / 6))
    for weight_S, cut_S in zip(weight_NS, cut_NS, strict=True):
        np.testing.assert_allclose(cut_S, brute_cap(weight_S, cap_S), atol=1e-7)
    np.testing.assert_allclose(cut_NS.sum(1), 1, atol=1e-12)
    corner_NS = capped(np.eye(3)[:1], np.array([0.5, 1, 1]), np.array([0.2, 0.6, 0.2]))
    np.testing.assert_allclose(corner_NS, [[0.5, 0.375, 0.125]])


def test_lower_bounds_and_caps_at_once():
    """clip(a w, low, cap) by bisection on a; the lower bounds leave room for 1."""
    draws = np.random.default_rng(9)
    for _ in range(200):
        prior_S = draws.dirichlet(np.ones(6))
        low_S, cap_S = draws.uniform(0, 1) * prior_S, draws.uniform(1, 4) * prior_S
        weight_NS = draws.dirichlet(np.full(6, 0.4), size=5)
        cut_NS = capped(weight_NS, cap_S, low_S=low_S)
        for weight_S, cut_S in zip(weight_NS, cut_NS, strict=True):
            scale = brentq(
                lambda a, w=weight_S, low=low_S, cap=cap_S: np.clip(a * w, low, cap).sum() - 1,
                0,
                1e9,
                xtol=1e-15,
                rtol=1e-14,
            )
            expected_S = np.clip(scale * weight_S, low_S, cap_S)
            np.testing.assert_allclose(cut_S, expected_S, atol=1e-9)
        np.testing.assert_allclose(cut_NS.sum(1), 1, atol=1e-12)
    inside_NS = np.array([[0.5, 0.3, 0.2]])
    assert capped(inside_NS, np.ones(3), low_S=np.full(3, 0.2)) is inside_NS
    empty_NS = capped(np.array([[1.0, 0.0, 0.0]]), np.array([0.5, 1, 1]), low_S=np.full(3, 0.1))
    np.testing.assert_allclose(empty_NS, [[0.5, 0.1, 0.1]])  # nobody is there to take the rest


def test_cap_vectors():
    names, half_S = ["web", "code"], np.array([0.5, 0.5])
    np.testing.assert_array_equal(cap_vector({"code": 0.3}, half_S, names), [1, 0.3])
    np.testing.assert_array_equal(cap_vector({}, np.array([0.0, 1]), names), [0, 1])
    np.testing.assert_array_equal(cap_vector({"web": 7}, half_S, names), [1, 1])
    usage_S = cap_vector({"web": 0.6}, np.array([0.2, 0.8]), names, 2.0)
    np.testing.assert_allclose(usage_S, [0.4, 1])
    for caps, message in (
        ({"web": -1}, ">= 0"),
        ({"web": float("nan")}, ">= 0"),
        ({"web": 0.3, "code": 0.3}, "allow 0.6"),
    ):
        with pytest.raises(ConfigError, match=message):
            cap_vector(caps, half_S, names)


def test_a_simulation_passes_over_infinite_losses():
    def predict(weight_NS):
        return np.where(weight_NS[:, 0] > 0.5, np.inf, weight_NS[:, 0])

    prior_S = np.array([0.6, 0.3, 0.1])
    weight_S, result = simulate(predict, prior_S, np.ones(3), draws=2000, top=64)
    assert not result["constant"]
    assert weight_S[0] < 0.1
