"""Damped Newton steps within bounds: quadratics against scipy, and a bound that must be left."""

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from dograph.mixtures.newton import Local, damped_newton, distinct
from dograph.mixtures.transfer import Fit


def quadratics(matrix_BNP, right_BN):
    """Half the squared errors of matrix . point = right, one problem for each start."""
    gram_BPP = matrix_BNP.swapaxes(1, 2) @ matrix_BNP

    def at(point_BP, which):
        error_BN = np.einsum("bnp,bp->bn", matrix_BNP[which], point_BP) - right_BN[which]
        slope_BP = np.einsum("bnp,bn->bp", matrix_BNP[which], error_BN)
        value_B = np.square(error_BN).sum(axis=1) / 2
        return Local(value_B, slope_BP, gram_BPP[which].copy(), gram_BPP[which].copy())

    return at


@pytest.mark.parametrize("correlated", [False, True])
def test_bounded_least_squares_against_scipy(correlated):
    draws = np.random.default_rng(0)
    matrix_BNP, right_BN = draws.normal(size=(60, 12, 6)), 2 * draws.normal(size=(60, 12))
    if correlated:  # so that held parameters would drag the others
        matrix_BNP += 3 * draws.normal(size=(60, 12, 1))
    low_P, high_P = np.array([0, 0, 0, -0.2, -np.inf, 0]), np.array([1, np.inf, 0.3, 0.2, 9, 0.1])
    start_BP = np.clip(draws.normal(size=(60, 6)), low_P, high_P)
    point_BP, _, done_B = damped_newton(
        quadratics(matrix_BNP, right_BN), start_BP, iterations=100, low_P=low_P, high_P=high_P
    )
    assert done_B.all()
    assert (point_BP == low_P).any()
    assert (point_BP == high_P).any()
    for matrix_NP, right_N, point_P in zip(matrix_BNP, right_BN, point_BP, strict=True):
        expected = lsq_linear(matrix_NP, right_N, (low_P, high_P), method="bvls", tol=1e-14).x
        np.testing.assert_allclose(point_P, expected, atol=1e-7)


def test_a_start_at_the_wrong_bounds_leaves_them():
    """Solved with the second parameter, which stays, the first would seem to have to stay too."""
    matrix_BNP = np.linalg.cholesky(np.array([[[1, -0.9], [-0.9, 1]]])).swapaxes(1, 2)
    right_BN = np.linalg.solve(matrix_BNP[0].T, np.array([1.0, -5.0]))[None]
    point_BP, _, _ = damped_newton(
        quadratics(matrix_BNP, right_BN), np.zeros((1, 2)), iterations=50, low_P=0.0
    )
    np.testing.assert_allclose(point_BP, [[1, 0]], atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_descent_ends_early_at_a_bound(seed):
    """Steps cut short at several bounds at once may promise a rise: that is no end."""
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.full(5, 0.7), 40)
    loss_N = 2 + np.exp(-0.3 + weight_NS @ draws.normal(0, 1.5, 5)) + draws.normal(0, 0.02, 40)
    fit = Fit(weight_NS, loss_N, 0.05, few=False)
    point_BP, _, done_B = damped_newton(
        fit.at, fit.starts(), iterations=300, low_P=fit.low_P, high_P=fit.high_P
    )
    slope_BP = fit.at(point_BP, np.arange(len(point_BP))).slope_BP
    stays_BP = ((point_BP <= fit.low_P) & (slope_BP > 0)) | (
        (point_BP >= fit.high_P) & (slope_BP < 0)
    )
    flat_B = point_BP[:, 2:].sum(axis=1) < 1e-9  # the constant law, a point without derivatives
    assert done_B.all()
    assert flat_B.sum() <= 1
    assert np.abs(np.where(stays_BP, 0, slope_BP))[~flat_B].max() < 1e-5


def test_starts_that_met_count_once():
    point_BP = np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 2.0 + 1e-8], [0.0, 0.0]])
    assert distinct(point_BP, np.array([0.2, 0.1, 0.15, 0.3]), 3).tolist() == [1, 2, 3]
    assert distinct(point_BP, np.array([0.2, 0.1, 0.15, 0.3]), 1).tolist() == [1]
