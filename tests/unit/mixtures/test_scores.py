"""Correlations and errors against scipy's."""

import numpy as np
import pytest
from scipy import stats

from dograph.mixtures.surrogates import is_constant, score


@pytest.mark.parametrize("ties", [False, True])
def test_against_scipy(ties):
    draws = np.random.default_rng(3)
    loss_N = draws.standard_normal(40)
    guess_N = loss_N + draws.standard_normal(40) + 0.3
    if ties:
        loss_N, guess_N = loss_N.round(0), guess_N.round(0)
        assert len(set(loss_N)) < 10
    result = score(guess_N, loss_N)
    assert result.spearman == pytest.approx(stats.spearmanr(guess_N, loss_N).statistic, abs=1e-12)
    assert result.pearson == pytest.approx(stats.pearsonr(guess_N, loss_N).statistic, abs=1e-12)
    assert result.mean_error == pytest.approx(np.mean(np.abs(guess_N - loss_N)))
    assert result.bias == pytest.approx(np.mean(guess_N) - np.mean(loss_N))
    assert (result.runs, result.note) == (40, None)


def test_undefined_correlations_are_said():
    loss_N = np.array([1.0, 2.0, 3.0])
    result = score(np.full(3, 2.5), loss_N)
    assert (result.spearman, result.pearson, result.note) == (None, None, "constant")
    assert result.mean_error == pytest.approx(2.5 / 3)
    assert result.bias == pytest.approx(0.5)
    assert score(loss_N, np.full(3, 2.5)).note == "constant losses"
    assert score(np.full(3, 0.1) + 1e-16 * loss_N, loss_N).spearman is None


def test_missing_losses_are_left_out():
    loss_N = np.array([1.0, np.nan, 3.0, 2.0])
    result = score(np.array([1.0, 50.0, 2.0, 3.0]), loss_N)
    assert result.runs == 3
    assert result.spearman == pytest.approx(0.5)
    nothing = score(np.ones(2), np.full(2, np.nan))
    assert (nothing.runs, nothing.mean_error, nothing.note) == (0, None, "no loss is known")


def test_infinite_predictions_have_ranks_but_no_error():
    loss_N = np.array([1.0, 2.0, 3.0, 4.0])
    result = score(np.array([1.0, 3.0, 2.0, np.inf]), loss_N)
    assert result.spearman == pytest.approx(0.8)
    assert (result.pearson, result.mean_error, result.bias) == (None, None, None)
    assert result.note == "an infinite loss is predicted of 1 of 4 runs"
    assert not is_constant(np.array([1.0, np.inf]))
    assert is_constant(np.full(3, np.inf))
