"""Every surrogate keeps the promises of the type."""

import numpy as np
import pytest

from dograph.mixtures.surrogates import SURROGATES


def test_the_four():
    assert list(SURROGATES) == ["lightgbm", "exponential", "ridge", "linear"]


@pytest.mark.parametrize("name", SURROGATES)
def test_fitted_predictions(name):
    draws = np.random.default_rng(4)
    weight_NS = draws.dirichlet(np.ones(4), size=120)
    loss_N = 2 + np.exp(weight_NS @ np.array([-2.0, -0.5, 0.0, 0.3]))
    kept_NS = weight_NS.copy()
    fits = [SURROGATES[name](weight_NS, loss_N, seed=7) for _ in range(2)]
    guess_N = fits[0].predict(weight_NS)
    assert guess_N.shape == (120,)
    assert guess_N.dtype == np.float64
    np.testing.assert_array_equal(guess_N, fits[1].predict(weight_NS))
    np.testing.assert_allclose(guess_N[:3], fits[0].predict(weight_NS[:3]), rtol=1e-13)
    np.testing.assert_array_equal(weight_NS, kept_NS)
    assert np.abs(guess_N - loss_N).mean() < 0.3 * np.abs(loss_N - loss_N.mean()).mean()
