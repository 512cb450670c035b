"""The best mixture of transfer laws: against scipy, the optimality conditions, and closed forms."""

import numpy as np
import pytest

from dograph.errors import ConfigError
from dograph.mixtures import convex
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.mixing_laws import ExponentialLaw, TransferLaw
from law_oracles import flat_directions, kkt_residual, long_run, weighted_value


def some_laws(seed, number, sources):
    """Laws of any alpha, a fifth of their sources worthless; law v is helped by source v."""
    draws = np.random.default_rng(seed)
    laws = []
    for v in range(number):
        alpha, level = np.exp(draws.uniform(*np.log([0.08, 3]))), draws.uniform(0.3, 4)
        a_S = np.exp(draws.normal(0, 1.5, sources)) * (draws.random(sources) > 0.2)
        a_S[v % sources] = max(a_S[v % sources], 1)
        a_S *= level ** (-1 / alpha) / a_S.mean()
        laws.append(TransferLaw(draws.uniform(1, 3), alpha, a_S))
    return laws, draws.dirichlet(np.ones(number)), draws


def minimise_laws(laws, share_V, cap_S=None):
    return find_optimum(laws, share_V, cap_S).weight_S


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_long_scipy_run_and_is_optimal(seed, capped):
    sources = 2 + seed % 9
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


def test_two_sources_by_hand():
    """r^-a and w (1 - r)^-a are lowest together where r / (1 - r) = w^(-1 / (a + 1))."""
    laws = [
        TransferLaw(1.0, 0.5, np.array([1.0, 0.0])),
        TransferLaw(2.0, 0.5, np.array([0.0, 1.0])),
    ]
    ratio = 3 ** (-1 / 1.5)
    best = ratio / (1 + ratio)
    np.testing.assert_allclose(minimise_laws(laws, [1, 3]), [best, 1 - best], atol=1e-12)
    np.testing.assert_allclose(minimise_laws(laws, [1, 3], [0.2, 1]), [0.2, 0.8], atol=1e-15)
    np.testing.assert_allclose(minimise_laws(laws, [1, 0]), [1, 0], atol=1e-15)


def test_one_law_fills_the_best_sources_to_their_caps():
    law = TransferLaw(1.0, 0.2, np.array([0.5, 3.0, 0.0, 2.0]))
    weight_S = minimise_laws([law], [1.0], np.array([1.0, 0.4, 1.0, 0.25]))
    np.testing.assert_allclose(weight_S, [0.35, 0.4, 0, 0.25], atol=1e-12)


def test_laws_of_both_kinds_together():
    laws = [TransferLaw(1.0, 0.3, np.array([1e-9, 1e-12, 0])), *some_laws(4, 3, 3)[0]]
    laws += [ExponentialLaw(1.0, 0.0, np.array([2.0, -3.0, 0.5]))]
    share_V = np.array([0.1, 0.2, 0.2, 0.2, 0.3])
    found = find_optimum(laws, share_V)
    np.testing.assert_allclose(found.weight_S, long_run(laws, share_V, np.ones(3)), atol=1e-6)
    assert found.gap < 1e-12


def test_what_the_laws_leave_open_is_reported():
    twins = [
        TransferLaw(1.0, 0.5, np.array([2.0, 2.0, 0.1])),
        TransferLaw(1.0, 0.5, np.array([0.2, 0.2, 1.0])),
    ]
    found = find_optimum(twins, [0.5, 0.5])
    assert found.weight_S[0] == pytest.approx(found.weight_S[1], abs=1e-6)
    np.testing.assert_allclose(np.abs(found.flat_FS), [[0.5**0.5, 0.5**0.5, 0]], atol=1e-9)
    moved_S = found.weight_S + 0.1 * found.flat_FS[0]
    assert weighted_value(twins, [0.5, 0.5], moved_S) == pytest.approx(found.loss, abs=1e-12)
    assert find_optimum(twins, [0.5, 0.5], [0.1, 0.0, 1.0]).unique


def test_a_direction_is_flat_by_what_a_unit_of_weight_changes(monkeypatch):
    """(r_1 + 0.9 r_2)^-1 at equal weights: moving d along (1, -1) / sqrt(2) adds half its second
    derivative, 2 (0.1 / sqrt(2))^2 / 0.95^3 / 2; tolerances on either side."""
    laws = [TransferLaw(1.0, 1.0, np.array([1.0, 0.9]))]
    half_S, adds = np.array([0.5, 0.5]), 0.005 / 0.95**3
    for tolerance, number in ((1.01 * adds, 1), (0.99 * adds, 0)):
        monkeypatch.setattr(convex, "FLAT", tolerance)
        assert len(flat_directions(laws, [1.0], half_S)) == number


def test_a_law_that_no_allowed_source_helps():
    laws = [TransferLaw(1.0, 0.5, np.array([1.0, 1.0, 0])), TransferLaw(1.0, 0.5, np.eye(3)[2])]
    with pytest.raises(ConfigError, match=r"law 2 of 2 predicts an infinite loss.*caps of 0"):
        find_optimum(laws, [1, 1], np.array([1.0, 1.0, 0.0]))
    assert minimise_laws(laws, [1, 0], [0.3, 1.0, 0.0])[2] == 0
