"""The laws' best mixture: against scipy, the optimality conditions, and the authors' grid."""

import itertools
import time

import numpy as np
import pytest

from dograph.errors import ConfigError
from dograph.mixtures import convex
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.mixing_laws import ExponentialLaw
from law_oracles import (
    grid_mixtures,
    grid_optimum,
    is_unique,
    kkt_residual,
    long_run,
    shifted,
    weighted_value,
)

REDPAJAMA_CAPS = np.array([1, 1, 0.5857, 0.2588, 0.2254, 0.1779, 0.1727])
PUBLISHED = [0.125, 0.25, 0.140625, 0.25, 0.09375, 0.125, 0.015625]


def some_laws(seed, number, sources):
    draws = np.random.default_rng(seed)
    laws = [
        ExponentialLaw(draws.uniform(1, 3), draws.normal(), draws.normal(0, 2, sources))
        for _ in range(number)
    ]
    return laws, draws.dirichlet(np.ones(number)), draws


def minimise_laws(laws, share_V, cap_S=None):
    return find_optimum(laws, share_V, cap_S).weight_S


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_a_long_scipy_run_and_is_optimal(seed, capped):
    sources = 2 + seed
    laws, share_V, draws = some_laws(seed, 5 + sources, sources)
    cap_S = np.full(sources, 1.0)
    if capped:
        cap_S = np.minimum(1, draws.uniform(0.4, 2, sources) * 1.5 / sources)
        cap_S *= max(1, 1.1 / cap_S.sum())
    found = find_optimum(laws, share_V, cap_S)
    np.testing.assert_allclose(found.weight_S, long_run(laws, share_V, cap_S), atol=1e-6)
    assert kkt_residual(laws, share_V, found.weight_S, cap_S) < 1e-8
    assert found.weight_S.sum() == pytest.approx(1, abs=1e-14)
    assert (found.weight_S >= 0).all()
    assert (found.weight_S <= cap_S).all()
    assert found.unique
    assert found.gap < 1e-12
    assert found.loss == pytest.approx(weighted_value(laws, share_V, found.weight_S), rel=1e-14)


def test_64_sources_are_fast_and_optimal():
    laws, share_V, _ = some_laws(0, 80, 64)
    cap_S = np.full(64, 0.1)
    start = time.process_time()
    weight_S = minimise_laws(laws, share_V, cap_S)
    assert time.process_time() - start < 0.3  # 15 ms on a quiet core
    assert kkt_residual(laws, share_V, weight_S, cap_S) < 1e-8
    assert (weight_S == 0.1).any()
    assert (weight_S == 0).any()


def test_two_sources_by_hand():
    """d/dr of exp(-a r) + exp(-b (1 - r)) is 0 at r = (log(a / b) + b) / (a + b)."""
    laws = [
        ExponentialLaw(1.0, 0.0, np.array([-3.0, 0.0])),
        ExponentialLaw(2.0, 0.0, np.array([0.0, -2.0])),
    ]
    best = (np.log(3 / 2) + 2) / 5
    np.testing.assert_allclose(minimise_laws(laws, [1, 1]), [best, 1 - best], atol=1e-12)
    np.testing.assert_allclose(minimise_laws(laws, [7, 7]), [best, 1 - best], atol=1e-12)
    np.testing.assert_allclose(minimise_laws(laws, [1, 1], [0.3, 1]), [0.3, 0.7], atol=1e-15)
    np.testing.assert_allclose(minimise_laws(laws, [1, 0]), [1, 0], atol=1e-15)


def test_one_law_fills_the_best_sources_to_their_caps():
    law = ExponentialLaw(1.0, 0.0, np.array([0.5, -2.0, 1.0, -1.0]))
    weight_S = minimise_laws([law], [1.0], np.array([1.0, 0.4, 1.0, 0.25]))
    np.testing.assert_allclose(weight_S, [0.35, 0.4, 0, 0.25], atol=1e-12)


def test_neither_gauge_nor_order_matters():
    laws, share_V, _ = some_laws(3, 9, 6)
    cap_S = np.array([0.3, 0.2, 0.5, 1, 0.1, 0.4])
    weight_S = minimise_laws(laws, share_V, cap_S)
    moved = [shifted(law, by) for law, by in zip(laws, np.linspace(-3, 3, 9), strict=True)]
    np.testing.assert_allclose(minimise_laws(moved, share_V, cap_S), weight_S, atol=1e-9)
    order = np.array([4, 2, 0, 5, 3, 1])
    moved = [ExponentialLaw(law.c, law.log_k, law.t_S[order]) for law in laws]
    np.testing.assert_allclose(
        minimise_laws(moved, share_V, cap_S[order]), weight_S[order], atol=1e-9
    )


def test_steep_laws_of_very_different_size():
    laws = [
        ExponentialLaw(1, 0.0, np.array([-40, 3, 2.0])),
        ExponentialLaw(1, 5.0, np.array([5, -60, 2.0])),
    ]
    weight_S = minimise_laws(laws, [1, 2])
    assert kkt_residual(laws, [1, 2], weight_S, np.ones(3)) < 1e-8
    np.testing.assert_allclose(weight_S, long_run(laws, [1, 2], np.ones(3)), atol=1e-6)


def test_what_the_laws_leave_open_is_reported():
    equal = ExponentialLaw(1.0, 0.0, np.full(4, 0.7))
    found = find_optimum([equal], [1.0])
    np.testing.assert_allclose(found.weight_S, 0.25)
    assert not found.unique
    twins = [
        ExponentialLaw(1.0, 0.0, np.array([-2.0, -2.0, 1.0])),
        ExponentialLaw(1.0, 0.0, np.array([0.5, 0.5, -1.0])),
    ]
    found = find_optimum(twins, [0.5, 0.5])
    assert found.weight_S[0] == pytest.approx(found.weight_S[1], abs=1e-6)
    assert not found.unique
    moved_S = found.weight_S + np.array([0.1, -0.1, 0])
    assert weighted_value(twins, [0.5, 0.5], moved_S) == pytest.approx(found.loss, abs=1e-12)
    assert not find_optimum(twins, [0.5, 0.5], [0.1, 1.0, 1.0]).unique
    assert find_optimum(twins, [0.5, 0.5], [0.1, 0.0, 1.0]).unique


def test_a_prior_makes_the_mixture_unique_and_one_that_is_too_weak_counts_as_none():
    laws = [ExponentialLaw(1.0, 0.0, np.array([-2.0, -2.0, 1.0]))]
    prior_S = np.array([0.1, 0.4, 0.5])
    pulled = find_optimum(laws, [1.0], kl=0.01, prior_S=prior_S)
    assert pulled.unique
    assert pulled.weight_S[1] / pulled.weight_S[0] == pytest.approx(4)  # as in the prior
    weak = find_optimum(laws, [1.0], kl=1e-10, prior_S=prior_S)
    assert not weak.unique
    np.testing.assert_array_equal(weak.weight_S, find_optimum(laws, [1.0]).weight_S)


def test_nearly_flat_directions_by_tolerance(monkeypatch):
    laws = [
        ExponentialLaw(1.0, 0.0, np.array([-2.0, -2.001, 1.0])),
        ExponentialLaw(1.0, 0.0, np.array([0.5, 0.501, -1.0])),
        ExponentialLaw(1.0, 0.0, np.array([0.5, 0.499, -1.0])),
    ]
    weight_S = np.array([0.3, 0.3, 0.4])
    assert is_unique(laws, [1, 1, 1], weight_S)
    monkeypatch.setattr(convex, "FLAT", 1e-3)
    assert not is_unique(laws, [1, 1, 1], weight_S)


def test_the_loss_is_the_mean_by_shares_whatever_they_sum_to():
    laws, _, _ = some_laws(2, 3, 4)
    found, scaled = find_optimum(laws, [0.5, 0.25, 0.25]), find_optimum(laws, [6.0, 3.0, 3.0])
    assert scaled.loss == pytest.approx(found.loss, rel=1e-12)
    assert found.loss == pytest.approx(
        weighted_value(laws, [0.5, 0.25, 0.25], found.weight_S), rel=1e-12
    )


def test_a_direction_is_flat_by_what_a_unit_of_weight_changes(monkeypatch):
    """exp(0.1 (r_1 - r_2)) at equal weights: moving d along (1, -1) / sqrt(2) adds 0.01 d^2 in
    second order; tolerances on either side of 0.01."""
    laws = [ExponentialLaw(1.0, 0.0, np.array([0.1, -0.1]))]
    half_S = np.array([0.5, 0.5])
    for tolerance, unique in ((0.0101, False), (0.0099, True)):
        monkeypatch.setattr(convex, "FLAT", tolerance)
        assert is_unique(laws, [1.0], half_S) == unique


def test_a_source_at_its_cap_cannot_move():
    twins = [
        ExponentialLaw(1.0, 0.0, np.array([-2.0, -2.0, 1.0])),
        ExponentialLaw(1.0, 0.0, np.array([0.5, 0.5, -1.0])),
    ]
    weight_S = np.array([0.2, 0.3, 0.5])
    assert not is_unique(twins, [1, 1], weight_S)
    assert is_unique(twins, [1, 1], weight_S, np.array([0.2, 1.0, 1.0]))


def test_caps():
    laws, share_V, _ = some_laws(1, 4, 3)
    with pytest.raises(AssertionError, match="leave no mixture"):  # plans refuse them before
        minimise_laws(laws, share_V, np.array([0.3, 0.3, 0.3]))
    only_S = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(minimise_laws(laws, share_V, only_S), only_S)
    np.testing.assert_allclose(minimise_laws(laws, share_V, np.array([0, 1, 0.0])), [0, 1, 0])
    narrow_S = only_S + np.array([0, 0, 1e-6])
    assert np.abs(minimise_laws(laws, share_V, narrow_S) - only_S).max() <= 1.01e-6
    none = minimise_laws(laws, share_V, np.array([np.inf, 5.0, 1.0]))
    np.testing.assert_allclose(none, minimise_laws(laws, share_V), atol=1e-12)


@pytest.mark.parametrize("share_V", [[1, -1, 1, 1], [0, 0, 0, 0], [1, 1], [1, np.nan, 1, 1]])
def test_shares_that_no_plan_has(share_V):
    with pytest.raises((AssertionError, ValueError)), np.errstate(invalid="ignore"):
        minimise_laws(some_laws(1, 4, 3)[0], np.array(share_V, dtype=float))


def test_one_source():
    assert minimise_laws([ExponentialLaw(1.0, 0.0, np.array([2.0]))], [1.0]).tolist() == [1.0]


def test_the_grid_holds_the_authors_published_mixture():
    grid_GS = grid_mixtures(REDPAJAMA_CAPS)
    assert (grid_GS == PUBLISHED).all(axis=1).sum() == 1
    np.testing.assert_allclose(grid_GS.sum(axis=1), 1, atol=1e-15)
    assert (grid_GS <= REDPAJAMA_CAPS).all()


def test_the_grid_against_a_plain_enumeration():
    cap_S = np.array([1.0, 0.3, 0.5])
    first = [1, 0.5, 0.25, 0.125, 0.0625, 0]
    second = [0.25, 0.125, 0.0625, 0]
    expected = [
        (a, b, 1 - a - b) for a, b in itertools.product(first, second) if 0 <= 1 - a - b <= 0.5
    ]
    assert [tuple(row) for row in grid_mixtures(cap_S)] == expected
    laws, share_V, _ = some_laws(1, 8, 3)
    by_hand = min(expected, key=lambda row: weighted_value(laws, share_V, np.array(row)))
    np.testing.assert_array_equal(grid_optimum(laws, share_V, cap_S), by_hand)
    exact = find_optimum(laws, share_V, cap_S)
    assert exact.loss < weighted_value(laws, share_V, np.array(by_hand)) - 1e-4


def test_laws_too_steep_to_minimize_are_refused(monkeypatch):
    laws, share_V, _ = some_laws(4, 9, 6)
    monkeypatch.setattr(convex, "ITERATIONS", 1)  # so that the search ends far from the minimum
    monkeypatch.setattr(convex, "POLISHING", 0)
    with pytest.raises(ConfigError, match=r"too steep to minimize: .* nats above the best"):
        find_optimum(laws, share_V)
