"""The mixing law's fit: planted laws found, the optimum of long searches reached, limits named."""

import time

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize

from dograph.errors import ConfigError
from dograph.mixtures.convex import Total
from dograph.mixtures.mixing_laws import ExponentialFit, ExponentialLaw, fit_exponential
from dograph.rng import stream
from law_minima import SIZES, stored_minimum
from law_oracles import check_derivatives, gradient, hubers_loss, shifted, two_source_law

KINDS = ["noise", "linear", "concave", "rising", "beyond delta"]


def mixtures(draws, runs, sources, strength=0.7):
    return draws.dirichlet(np.full(sources, strength), runs)


def table(kind, runs, sources, seed):
    draws = np.random.default_rng(seed)
    weight_NS = mixtures(draws, runs, sources)
    t_S = draws.normal(0, 1.5, sources)
    noise_N = draws.normal(0, 0.02, runs)
    if kind == "noise":
        return weight_NS, 2 + np.exp(-0.3 + weight_NS @ t_S) + noise_N
    if kind == "linear":  # no c is better than another, down to the bound of 0
        return weight_NS, 3 + weight_NS @ (0.2 * t_S) + noise_N / 2
    if kind == "concave":
        return weight_NS, 4 - np.exp(0.3 * weight_NS @ t_S - 0.5) + noise_N / 4
    if kind == "rising":
        return weight_NS, 1.5 + np.exp(-1 + weight_NS @ np.linspace(-1, 3, sources)) + noise_N
    assert kind == "beyond delta"
    return weight_NS, 2 + np.exp(-0.3 + weight_NS @ t_S) + 5 * noise_N


def long_search(weight_NS, loss_N, delta, starts=200):
    """The lowest Huber loss of scipy's L-BFGS-B from random starts in the authors' ranges."""

    def objective(point):
        c, grown_N = np.exp(point[0]), np.exp(np.minimum(weight_NS @ point[1:], 50))
        error_N = c + grown_N - loss_N
        slope_N = np.clip(error_N, -delta, delta)
        slope = np.concatenate([[slope_N.sum() * c], weight_NS.T @ (slope_N * grown_N)])
        return slope_N @ (error_N - slope_N / 2), slope

    draws = np.random.default_rng(1)
    sources = weight_NS.shape[1]
    best = np.inf
    for _ in range(starts):
        t_S = draws.uniform(-1, 0.1, sources)
        start = np.concatenate([[draws.uniform(-2, 1.5)], draws.uniform(-10, 1) + t_S])
        found = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(-25, 5)] + [(-60, 60)] * sources,
            options={"maxiter": 3000, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-11},
        )
        best = min(best, found.fun)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_reaches_the_optimum_of_a_long_search(kind):
    weight_NS, loss_N = table(kind, 40, 5, 3)
    best = long_search(weight_NS, loss_N, 0.05, starts=6)
    law = fit_exponential(weight_NS, loss_N)
    assert law.converged
    assert hubers_loss(law, weight_NS, loss_N) <= best * (1 + 1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("runs", "sources", "seed"), SIZES)
def test_reaches_the_optimum_of_200_starts(kind, runs, sources, seed):
    best = stored_minimum(kind, runs, sources, seed)
    data = table(kind, runs, sources, seed)
    assert hubers_loss(fit_exponential(*data), *data) <= best * (1 + 1e-8)


@pytest.mark.parametrize("sources", [2, 5, 17])
def test_finds_a_planted_law(sources):
    draws = np.random.default_rng(sources)
    truth = ExponentialLaw(1.7, -0.8, draws.normal(0, 1.5, sources))
    weight_NS = mixtures(draws, 4 * sources + 8, sources)
    law = fit_exponential(weight_NS, truth.predict(weight_NS))
    assert law.c == pytest.approx(truth.c, abs=1e-4)
    np.testing.assert_allclose(law.at_sources, truth.at_sources, atol=1e-4)
    assert law.notes == ()


def test_the_fit_is_in_the_gauge_of_mean_zero_and_gauges_predict_alike():
    weight_NS, loss_N = table("noise", 40, 5, 0)
    law = fit_exponential(weight_NS, loss_N)
    assert law.t_S.mean() == pytest.approx(0, abs=1e-12)
    other = shifted(law, 2.5)
    np.testing.assert_allclose(other.predict(weight_NS), law.predict(weight_NS), rtol=1e-12)
    np.testing.assert_allclose(other.at_sources, law.at_sources, rtol=1e-12)
    assert np.abs(other.t_S - law.t_S).min() > 2


def test_permuting_sources_permutes_the_law():
    weight_NS, loss_N = table("noise", 40, 5, 1)
    order = np.array([3, 0, 4, 1, 2])
    law, moved = (
        fit_exponential(weight_NS, loss_N),
        fit_exponential(weight_NS[:, order], loss_N),
    )
    np.testing.assert_allclose(moved.at_sources, law.at_sources[order], atol=1e-6)
    assert moved.c == pytest.approx(law.c, abs=1e-6)


def test_the_same_seed_gives_the_same_bits():
    weight_NS, loss_N = table("noise", 40, 5, 2)
    one, two = (fit_exponential(weight_NS, loss_N, seed=7) for _ in range(2))
    np.testing.assert_equal(vars(one), vars(two))


def test_gradient_against_finite_differences():
    law = ExponentialLaw(1.0, -0.5, np.array([1.0, -2.0, 0.3]))
    at_S = np.array([0.2, 0.5, 0.3])
    by_steps = approx_fprime(at_S, lambda r: float(law.predict(r[None])[0]), 1e-7)
    np.testing.assert_allclose(gradient(law, at_S), by_steps, rtol=1e-5)
    total = Total([law], np.ones(1))  # with mean(t) = 0, so that slopes differ by one number
    np.testing.assert_allclose(np.diff(total.slope(at_S)), np.diff(by_steps), rtol=1e-5)
    assert total.loss(at_S) == pytest.approx(law.predict(at_S[None])[0], rel=1e-14)
    # and of the slopes, along directions in which weights still sum to 1
    for move_S in np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]):
        step = (total.slope(at_S + 1e-5 * move_S) - total.slope(at_S - 1e-5 * move_S)) / 2e-5
        bend_VS = total.bend(at_S, np.arange(3))
        np.testing.assert_allclose(np.diff(bend_VS.T @ bend_VS @ move_S), np.diff(step), rtol=1e-6)


@pytest.mark.parametrize("runs", [30, 6])  # 6 runs of 5 sources: with the ridge
def test_the_fits_own_derivatives_against_finite_differences(runs):
    weight_NS, loss_N = table("beyond delta", runs, 5, 4)
    fit = ExponentialFit(weight_NS, loss_N)
    fit.ridge_K[:] *= 1e3  # so that its part is seen
    check_derivatives(fit, fit.starts(stream(0, "test"))[5])
    assert (fit.ridge_K > 0).all() == (runs == 6)


def test_rows_are_divided_by_their_sums():
    weight_NS, loss_N = table("noise", 40, 5, 5)
    scale_N1 = np.random.default_rng(0).uniform(0.996, 1.003, (40, 1))
    law, rounded = (
        fit_exponential(weight_NS, loss_N),
        fit_exponential(weight_NS * scale_N1, loss_N),
    )
    np.testing.assert_allclose(rounded.at_sources, law.at_sources, atol=1e-6)


def test_huber_ignores_a_run_that_went_wrong():
    weight_NS, loss_N = table("noise", 60, 4, 6)
    spoiled_N = loss_N.copy()
    spoiled_N[0] += 3
    clean, law = fit_exponential(weight_NS, loss_N), fit_exponential(weight_NS, spoiled_N)
    squares = fit_exponential(weight_NS, spoiled_N, delta=100.0)
    drift = np.abs(law.predict(weight_NS) - clean.predict(weight_NS)).max()
    assert drift < 0.02
    assert np.abs(squares.predict(weight_NS) - clean.predict(weight_NS)).max() > 5 * drift


def test_equal_losses_give_a_flat_law():
    weight_NS = mixtures(np.random.default_rng(0), 10, 3)
    law = fit_exponential(weight_NS, np.full(10, 2.5))
    np.testing.assert_allclose(law.predict(weight_NS), 2.5)
    assert "equal" in law.notes[0]


def test_a_source_never_used_counts_like_the_mean_of_the_others():
    weight_NS, loss_N = table("noise", 40, 4, 7)
    without = fit_exponential(weight_NS, loss_N)
    law = fit_exponential(np.insert(weight_NS, 2, 0.0, axis=1), loss_N)
    np.testing.assert_allclose(np.delete(law.at_sources, 2), without.at_sources, atol=1e-6)
    assert law.t_S[2] == pytest.approx(np.delete(law.t_S, 2).mean(), abs=1e-9)
    assert "3 of 4 directions" in law.notes[0]


def test_sources_in_a_fixed_proportion_share_their_effect():
    draws = np.random.default_rng(8)
    two_NS = mixtures(draws, 30, 3)
    weight_NS = np.stack([two_NS[:, 0], two_NS[:, 1] / 2, two_NS[:, 1] / 2, two_NS[:, 2]], axis=1)
    loss_N = 2 + np.exp(two_NS @ np.array([-1.0, 0.5, 1.0]))
    law = fit_exponential(weight_NS, loss_N)
    np.testing.assert_allclose(law.predict(weight_NS), loss_N, atol=1e-8)
    assert law.t_S[1] == pytest.approx(law.t_S[2], abs=1e-9)


@pytest.mark.parametrize("runs", [2, 3, 5, 6])
def test_too_few_runs_still_give_a_tame_law_and_say_so(runs):
    draws = np.random.default_rng(runs)
    truth = ExponentialLaw(1.5, 0.0, draws.normal(0, 1, 5))
    weight_NS = mixtures(draws, runs, 5)
    law = fit_exponential(weight_NS, truth.predict(weight_NS))
    assert any("smallest slopes" in note for note in law.notes)
    np.testing.assert_allclose(law.predict(weight_NS), truth.predict(weight_NS), atol=0.02)
    # Ever smaller errors are not worth ever larger slopes.
    assert np.abs(law.t_S).max() < 2 * np.abs(truth.t_S).max()


def test_a_c_at_its_bound_is_told():
    law = fit_exponential(*table("concave", 20, 3, 0))
    assert any("lower bound" in note for note in law.notes)


def test_losses_that_are_not_positive_are_refused():
    weight_NS, loss_N = table("noise", 20, 3, 0)
    with pytest.raises(ConfigError, match="positive losses"):
        fit_exponential(weight_NS, loss_N - 3)


def test_512_runs_of_17_sources_fit_fast():
    weight_NS, loss_N = table("noise", 512, 17, 0)
    start = time.process_time()
    law = fit_exponential(weight_NS, loss_N)
    assert law.converged
    assert time.process_time() - start < 1.0  # 0.1 s on one quiet core


def two_sources(c, log_k, t, runs=9):
    share_N = np.linspace(0.05, 0.95, runs)
    weight_NS = np.stack([share_N, 1 - share_N], axis=1)
    return weight_NS, ExponentialLaw(c, log_k, np.array([t, 0.0])).predict(weight_NS)


@pytest.mark.parametrize("t", [-2.0, 1.5])
def test_the_two_source_recipe_agrees_with_the_fit_up_to_its_grid(t):
    weight_NS, loss_N = two_sources(1.3, -0.2, t)
    law, exact = two_source_law(weight_NS, loss_N), fit_exponential(weight_NS, loss_N)
    assert exact.c == pytest.approx(1.3, abs=1e-6)
    assert law.c == pytest.approx(1.3, abs=loss_N.min() / 999)
    np.testing.assert_allclose(law.at_sources, exact.at_sources, atol=0.02)
    np.testing.assert_allclose(law.predict(weight_NS), loss_N, atol=1e-3)


def test_the_two_source_recipe_scans_as_the_authors_do():
    weight_NS, loss_N = two_sources(1.3, -0.2, -2.0)
    loss_N = loss_N + np.random.default_rng(0).normal(0, 0.005, len(loss_N))
    best, best_c = 0.0, None
    for c in np.linspace(0, loss_N.min(), 1000)[:-1]:
        fit = abs(np.corrcoef(weight_NS[:, 0], np.log(loss_N - c))[0, 1])
        if fit > best:
            best, best_c = fit, c
    slope, intercept = np.polyfit(weight_NS[:, 0], np.log(loss_N - best_c), 1)
    law = two_source_law(weight_NS, loss_N)
    assert law.c == pytest.approx(best_c, abs=1e-12)
    np.testing.assert_allclose(law.at_sources, [slope + intercept, intercept], rtol=1e-9)
