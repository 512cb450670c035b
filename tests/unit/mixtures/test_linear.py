"""Least squares and ridge against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.linear_model import Ridge as SklearnRidge

from dograph.mixtures.surrogates import PENALTIES, fit_linear, fit_ridge


@pytest.fixture(params=[(60, 7), (8, 12)], ids=["many", "few"])
def runs(request):
    num_runs, sources = request.param
    draws = np.random.default_rng(5)
    weight_NS = draws.dirichlet(np.full(sources, 0.5), size=num_runs)
    loss_N = 3 + weight_NS @ draws.standard_normal(sources) + draws.standard_normal(num_runs)
    return weight_NS, loss_N, draws.dirichlet(np.ones(sources), size=50)


def test_linear_is_scikit_learns(runs):
    weight_NS, loss_N, other_NS = runs
    expected = LinearRegression().fit(weight_NS, loss_N).predict(other_NS)
    np.testing.assert_allclose(fit_linear(weight_NS, loss_N).predict(other_NS), expected)


def test_ridge_is_scikit_learns_with_the_same_penalty(runs):
    weight_NS, loss_N, other_NS = runs
    expected = RidgeCV(alphas=PENALTIES).fit(weight_NS, loss_N)
    fitted = fit_ridge(weight_NS, loss_N)
    assert PENALTIES[0] < fitted.penalty == expected.alpha_
    np.testing.assert_allclose(fitted.predict(other_NS), expected.predict(other_NS), rtol=1e-9)


def test_ridge_without_noise_is_hardly_penalised():
    """Penalties from 1e-8 to 1e4, four to a factor of ten: the least one is chosen here."""
    assert (len(PENALTIES), PENALTIES[0], PENALTIES[-1]) == (49, 1e-8, 1e4)
    draws = np.random.default_rng(7)
    weight_NS = draws.dirichlet(np.ones(5), size=40)
    loss_N = 3 + weight_NS @ draws.standard_normal(5)
    fitted = fit_ridge(weight_NS, loss_N)
    assert fitted.penalty == 1e-8
    np.testing.assert_allclose(fitted.predict(weight_NS), loss_N, atol=1e-8)


def test_ridges_penalty_predicts_left_out_runs_best():
    """By refitting without each run, which the closed form spares."""
    draws = np.random.default_rng(6)
    weight_NS = draws.dirichlet(np.full(9, 0.5), size=14)
    loss_N = 3 + weight_NS @ draws.standard_normal(9) + 0.5 * draws.standard_normal(14)
    errors = []
    for penalty in PENALTIES:
        error = 0.0
        for n in range(14):
            rest = np.arange(14) != n
            model = SklearnRidge(alpha=penalty).fit(weight_NS[rest], loss_N[rest])
            error += (model.predict(weight_NS[n : n + 1])[0] - loss_N[n]) ** 2
        errors.append(error)
    best = int(np.argmin(errors))
    assert 0 < best < len(PENALTIES) - 1
    assert fit_ridge(weight_NS, loss_N).penalty == PENALTIES[best]
