"""RegMix's trees against LightGBM called as its authors call it, less their leak."""

import lightgbm
import numpy as np
import pytest

from dograph.errors import MissingExtraError
from dograph.mixtures.surrogates import fit_trees


def planted(num_runs, sources=5, seed=1):
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.ones(sources), size=num_runs)
    return weight_NS, 2 + np.exp(-2 * weight_NS[:, 0] - weight_NS[:, 1])


def test_it_is_lightgbms_regressor_with_the_authors_settings():
    weight_NS, loss_N = planted(150)
    expected = lightgbm.LGBMRegressor(
        boosting_type="gbdt",
        objective="regression",
        n_estimators=1000,
        learning_rate=0.01,
        seed=42,
        num_leaves=31,
        min_child_samples=20,
        n_jobs=1,
        deterministic=True,
        force_row_wise=True,
        verbose=-1,
    ).fit(weight_NS, loss_N)
    other_NS, _ = planted(50, seed=2)
    mine_N = fit_trees(weight_NS, loss_N, seed=42).predict(other_NS)
    np.testing.assert_array_equal(mine_N, expected.predict(other_NS))
    assert np.ptp(mine_N) > 0.1


def test_it_repeats_itself_and_says_nothing(capfd):
    weight_NS, loss_N = planted(80)
    first_N, second_N = (fit_trees(weight_NS, loss_N).predict(weight_NS) for _ in range(2))
    np.testing.assert_array_equal(first_N, second_N)
    assert capfd.readouterr() == ("", "")


def test_32_runs_are_too_few_for_it(capfd):
    weight_NS, loss_N = planted(32)
    guess_N = fit_trees(weight_NS, loss_N).predict(weight_NS)
    np.testing.assert_allclose(guess_N, loss_N.mean(), rtol=1e-6)
    assert np.ptp(guess_N) == 0
    assert capfd.readouterr() == ("", "")


def test_it_says_how_to_get_lightgbm(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(MissingExtraError, match=r"dograph\[plan\]"):
        fit_trees(*planted(10))
