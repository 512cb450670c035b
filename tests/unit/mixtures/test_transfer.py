"""The transfer law's fit: planted laws found, long searches not beaten, limits named."""

import time

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize

from dograph.errors import ConfigError
from dograph.mixtures import mixing_laws
from dograph.mixtures.mixing_laws import ALPHA_RANGE, TransferFit, TransferLaw, fit_transfer
from law_minima import SIZES, stored_minimum
from law_oracles import check_derivatives, gradient, hubers_loss

KINDS = ["noise", "worthless", "linear", "concave", "exponential", "beyond delta", "steep"]


def mixtures(draws, runs, sources, strength=0.7):
    return draws.dirichlet(np.full(sources, strength), runs)


def planted(draws, weight_NS, alpha=0.4, c=1.7, level=1.5, spread=1.2):
    """A law whose loss at the mean mixture is c + level."""
    worth_S = np.exp(draws.normal(0, spread, weight_NS.shape[1]))
    worth_S /= worth_S @ weight_NS.mean(axis=0)
    return TransferLaw(c, alpha, worth_S * level ** (-1 / alpha))


def table(kind, runs, sources, seed):
    draws = np.random.default_rng(seed)
    weight_NS = mixtures(draws, runs, sources)
    a_S, t_S = np.exp(draws.normal(0, 1.2, sources)), draws.normal(0, 1.5, sources)
    noise_N = draws.normal(0, 0.02, runs)
    if kind == "worthless":
        a_S[1::2] = 0
    alpha = {"steep": 2.0, "worthless": 0.3}.get(kind, 0.4)
    if kind in ("noise", "worthless", "steep"):
        return weight_NS, 1.5 + (weight_NS @ a_S) ** -alpha + noise_N
    if kind == "beyond delta":
        return weight_NS, 2 + (weight_NS @ a_S) ** -0.4 + 5 * noise_N
    if kind == "linear":
        return weight_NS, 3 + weight_NS @ (0.2 * t_S) + noise_N / 2
    if kind == "concave":
        return weight_NS, 4 - np.exp(0.3 * weight_NS @ t_S - 0.5) + noise_N / 4
    assert kind == "exponential"
    return weight_NS, 2 + np.exp(-0.3 + weight_NS @ t_S) + noise_N


def long_search(weight_NS, loss_N, delta, starts):
    """The lowest Huber loss of scipy's L-BFGS-B from random c, alpha and log a."""

    def objective(point):
        c, alpha, a_S = point[0], np.exp(point[1]), np.exp(point[2:])
        x_N = weight_NS @ a_S
        grown_N = np.exp(np.minimum(-alpha * np.log(x_N), 50))
        error_N = c + grown_N - loss_N
        slope_N = np.clip(error_N, -delta, delta)
        pull_N = slope_N * grown_N * alpha
        slope_S = -a_S * ((pull_N / x_N) @ weight_NS)
        slope = np.concatenate([[slope_N.sum(), -pull_N @ np.log(x_N)], slope_S])
        return slope_N @ (error_N - slope_N / 2), slope

    draws, sources = np.random.default_rng(1), weight_NS.shape[1]
    best = np.inf
    for _ in range(starts):
        c, log_alpha = draws.uniform(0, loss_N.min()), draws.uniform(*np.log([0.06, 3.5]))
        level = -np.log(max(loss_N.mean() - c, 0.05)) / np.exp(log_alpha)
        found = minimize(
            objective,
            np.concatenate([[c, log_alpha], level + draws.normal(0, 1, sources)]),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None), tuple(np.log(ALPHA_RANGE))] + [(-200, 200)] * sources,
            options={"maxiter": 3000, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-11},
        )
        best = min(best, found.fun)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_long_search_ends_lower(kind):
    weight_NS, loss_N = table(kind, 40, 5, 3)
    law = fit_transfer(weight_NS, loss_N)
    assert law.converged
    best = long_search(weight_NS, loss_N, 0.05, starts=4)
    assert hubers_loss(law, weight_NS, loss_N) <= best * (1 + 1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("runs", "sources", "seed"), SIZES)
def test_none_of_200_starts_ends_lower(kind, runs, sources, seed):
    best = stored_minimum("transfer", kind, runs, sources, seed)
    data = table(kind, runs, sources, seed)
    assert hubers_loss(fit_transfer(*data), *data) <= best * (1 + 1e-8)


@pytest.mark.parametrize("alpha", [0.08, 0.4, 2.5])
@pytest.mark.parametrize("sources", [2, 5, 17])
def test_finds_a_planted_law(sources, alpha):
    draws = np.random.default_rng(sources)
    weight_NS = mixtures(draws, 4 * sources + 8, sources)
    truth = planted(draws, weight_NS, alpha)
    law = fit_transfer(weight_NS, truth.predict(weight_NS))
    fresh_NS = mixtures(draws, 50, sources)
    np.testing.assert_allclose(law.predict(weight_NS), truth.predict(weight_NS), atol=1e-6)
    np.testing.assert_allclose(law.predict(fresh_NS), truth.predict(fresh_NS), atol=1e-6)
    assert law.notes == ()


def test_finds_a_planted_laws_parameters():
    draws = np.random.default_rng(0)
    weight_NS = mixtures(draws, 60, 6)
    truth = planted(draws, weight_NS)
    truth.a_S[[1, 4]] = 0
    law = fit_transfer(weight_NS, truth.predict(weight_NS))
    assert (law.c, law.alpha) == pytest.approx((truth.c, truth.alpha), abs=1e-4)
    np.testing.assert_allclose(law.form_S, truth.form_S, atol=1e-4)


def test_a_source_that_harms_is_worth_nothing():
    draws = np.random.default_rng(0)
    weight_NS = mixtures(draws, 60, 6)
    truth = planted(draws, weight_NS)
    truth.a_S[4] = 0
    law = fit_transfer(weight_NS, truth.predict(weight_NS) + 0.1 * weight_NS[:, 4])
    assert np.flatnonzero(law.a_S == 0).tolist() == [4]
    assert any("1 of 6 sources is worth nothing" in note for note in law.notes)
    assert np.isinf(law.predict(np.eye(6))).tolist() == [False] * 4 + [True, False]


def test_gradient_against_finite_differences():
    law = TransferLaw(1.0, 0.3, np.array([2.0, 0.1, 0.0]))
    at_S = np.array([0.2, 0.5, 0.3])
    by_steps = approx_fprime(at_S, lambda r: float(law.predict(r[None])[0]), 1e-7)
    np.testing.assert_allclose(gradient(law, at_S), by_steps, rtol=1e-5)
    form_S, at = law.form_S, law.at
    np.testing.assert_allclose(at(float(form_S @ at_S))[1] * form_S, by_steps, rtol=1e-5)
    x, step = float(form_S @ at_S), 1e-5
    below, here, above = (at(x + by) for by in (-step, 0, step))
    assert here[0] + law.c == pytest.approx(law.predict(at_S[None])[0], rel=1e-14)
    assert here[1] == pytest.approx((above[0] - below[0]) / (2 * step), rel=1e-6)
    assert here[2] == pytest.approx((above[1] - below[1]) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("few", [False, True])
def test_the_fits_own_derivatives_against_finite_differences(few):
    weight_NS, loss_N = table("beyond delta", 20, 4, 4)
    fit = TransferFit(weight_NS, loss_N, few)
    fit.ridge *= 1e3  # so that its part is seen
    point_P = fit.starts()[5] * np.array([1.1, 0.8, 0.7, 1.4, 1.2, 0.9])
    check_derivatives(fit, point_P)
    assert len(fit.residual(point_P)) == (24 if few else 20)


def test_permuting_sources_permutes_the_law():
    weight_NS, loss_N = table("noise", 40, 5, 1)
    order = np.array([3, 0, 4, 1, 2])
    law, moved = fit_transfer(weight_NS, loss_N), fit_transfer(weight_NS[:, order], loss_N)
    np.testing.assert_allclose(moved.form_S, law.form_S[order], atol=1e-6)
    assert (moved.c, moved.alpha) == pytest.approx((law.c, law.alpha), abs=1e-5)


def test_no_seed_matters_and_rows_are_divided_by_their_sums():
    weight_NS, loss_N = table("noise", 40, 5, 2)
    one, two = (fit_transfer(weight_NS, loss_N, seed=seed) for seed in (1, 7))
    np.testing.assert_equal(vars(one), vars(two))
    scale_N1 = np.random.default_rng(0).uniform(0.996, 1.003, (40, 1))
    rounded = fit_transfer(weight_NS * scale_N1, loss_N)
    np.testing.assert_allclose(rounded.form_S, one.form_S, atol=1e-6)


def test_a_small_alpha_is_no_matter_of_overflow():
    """a is then 1e40 or 1e-40 for losses that are quite usual."""
    for level in (0.01, 100.0):
        law = TransferLaw(1.0, 0.05, np.array([1.0, 0.5]) * level**-20.0)
        expected = 1 + level * np.array([1.0, 0.75]) ** -0.05
        np.testing.assert_allclose(law.predict([[1, 0], [0.5, 0.5]]), expected, rtol=1e-12)
        form_S, at = law.form_S, law.at
        assert np.isfinite(at(float(form_S @ [0.5, 0.5]))).all()


def test_huber_ignores_a_run_that_went_wrong(monkeypatch):
    weight_NS, loss_N = table("noise", 60, 4, 6)
    spoiled_N = loss_N.copy()
    spoiled_N[0] += 3
    clean, law = fit_transfer(weight_NS, loss_N), fit_transfer(weight_NS, spoiled_N)
    monkeypatch.setattr(mixing_laws, "DELTA", 100.0)
    squares = fit_transfer(weight_NS, spoiled_N)
    drift = np.abs(law.predict(weight_NS) - clean.predict(weight_NS)).max()
    assert drift < 0.03
    assert np.abs(squares.predict(weight_NS) - clean.predict(weight_NS)).max() > 5 * drift


def test_equal_losses_give_a_flat_law():
    weight_NS = mixtures(np.random.default_rng(0), 10, 3)
    law = fit_transfer(weight_NS, np.full(10, 2.5))
    np.testing.assert_allclose(law.predict(weight_NS), 2.5)
    assert "equal" in law.notes[0]


def test_a_law_that_is_all_but_flat_is_finite(monkeypatch):
    flat_P = np.array([2.5, 20.0, 1e-17, 2e-17, 0.0])  # c, 1 / alpha, p
    monkeypatch.setattr(mixing_laws, "lowest_huber", lambda *args, **kwargs: (flat_P, True))
    law = fit_transfer(*table("noise", 20, 3, 0))
    assert np.isfinite(law.a_S).all()
    np.testing.assert_allclose(law.predict(np.eye(3)[:2]), 2.5)


def test_a_source_never_used_counts_like_the_mean_mixture():
    weight_NS, loss_N = table("noise", 40, 4, 7)
    without = fit_transfer(weight_NS, loss_N)
    law = fit_transfer(np.insert(weight_NS, 2, 0.0, axis=1), loss_N)
    np.testing.assert_allclose(np.delete(law.a_S, 2), without.a_S, rtol=1e-4)
    at_mean = weight_NS.mean(axis=0) @ np.delete(law.a_S, 2)
    assert law.a_S[2] == pytest.approx(at_mean, rel=1e-12)
    assert "3 of 4 directions" in law.notes[0]


def test_sources_in_a_fixed_proportion_share_their_effect():
    draws = np.random.default_rng(8)
    two_NS = mixtures(draws, 30, 3)
    weight_NS = np.stack([two_NS[:, 0], two_NS[:, 1] / 2, two_NS[:, 1] / 2, two_NS[:, 2]], axis=1)
    loss_N = 2 + (two_NS @ np.array([0.2, 0.5, 1.0])) ** -0.5
    law = fit_transfer(weight_NS, loss_N)
    np.testing.assert_allclose(law.predict(weight_NS), loss_N, atol=1e-8)
    assert law.form_S[1] == pytest.approx(law.form_S[2], abs=1e-9)


@pytest.mark.parametrize("runs", [2, 3, 5, 6, 7])
def test_too_few_runs_still_give_a_tame_law_and_say_so(runs):
    draws = np.random.default_rng(runs)
    weight_NS = mixtures(draws, runs, 5)
    truth = planted(draws, weight_NS, c=1.5, spread=0.7)
    law = fit_transfer(weight_NS, truth.predict(weight_NS))
    assert any("smallest differences" in note for note in law.notes)
    np.testing.assert_allclose(law.predict(weight_NS), truth.predict(weight_NS), atol=0.02)
    fresh_NS = mixtures(draws, 200, 5)
    assert np.abs(law.predict(fresh_NS) - truth.predict(fresh_NS)).max() < 1.5


@pytest.mark.parametrize(
    ("kind", "told"),
    [("concave", "c is at its lower bound"), ("exponential", "alpha is at its upper bound of 4")],
)
def test_what_is_at_a_bound_is_told(kind, told):
    law = fit_transfer(*table(kind, 40, 5, 3))
    assert any(told in note for note in law.notes)


def test_a_law_below_the_range_of_alpha_is_fitted_at_its_bound():
    draws = np.random.default_rng(0)
    weight_NS = mixtures(draws, 40, 3)
    law = fit_transfer(weight_NS, planted(draws, weight_NS, 0.01, c=0, spread=9).predict(weight_NS))
    assert law.alpha == pytest.approx(0.05)
    assert any("lower bound of 0.05" in note for note in law.notes)


def test_losses_that_are_not_positive_are_refused():
    weight_NS, loss_N = table("noise", 20, 3, 0)
    with pytest.raises(ConfigError, match="positive losses"):
        fit_transfer(weight_NS, loss_N - 3)


def test_512_runs_of_17_sources_fit_fast():
    weight_NS, loss_N = table("noise", 512, 17, 0)
    start = time.process_time()
    law = fit_transfer(weight_NS, loss_N)
    assert law.converged
    assert time.process_time() - start < 1.5  # 0.15 s on one quiet core
