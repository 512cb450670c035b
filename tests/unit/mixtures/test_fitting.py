"""Huber's loss at its lowest within bounds: against scipy's linear solver, and tables of runs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from dograph.mixtures.mixing_laws import ExponentialFit, fit_exponential, huber, lowest_huber
from dograph.mixtures.tables import read_table
from dograph.rng import stream
from law_oracles import hubers_loss

PROXIES = Path(__file__).parents[3] / "benchmarks" / "results" / "plans"


@pytest.fixture
def linear():
    def fit(matrix_NP, right_N, start_BP, low_P, delta=1e6, num_runs=99):
        problem = SimpleNamespace(
            residual=lambda point_BP: point_BP @ matrix_NP.T - right_N,
            jacobian=lambda point_BP: np.broadcast_to(
                matrix_NP, (*point_BP.shape[:-1], *matrix_NP.shape)
            ),
            low_P=low_P,
            loss_N=np.zeros(num_runs),
            delta=delta,
        )
        return lowest_huber(problem, start_BP)

    return fit


@pytest.mark.parametrize("correlated", [False, True])
def test_bounded_least_squares_against_scipys_linear_solver(linear, correlated):
    draws = np.random.default_rng(0)
    low_P = np.array([0, 0, 0.3, -0.2, -np.inf, 0])
    points = []
    for _ in range(20):
        matrix_NP, right_N = draws.normal(size=(12, 6)), 2 * draws.normal(size=12)
        if correlated:  # so that held parameters would drag the others
            matrix_NP += 3 * draws.normal(size=(12, 1))
        start_BP = np.maximum(draws.normal(size=(3, 6)), low_P)
        point_P, converged = linear(matrix_NP, right_N, start_BP, low_P)
        expected = lsq_linear(matrix_NP, right_N, (low_P, np.inf), method="bvls", tol=1e-14).x
        assert converged
        np.testing.assert_allclose(point_P, expected, atol=1e-7)
        points.append(point_P)
    assert (np.array(points) == low_P).any()
    assert (np.array(points) != low_P).any()


def test_a_start_at_the_wrong_bounds_leaves_them(linear):
    """Solved with the second parameter, which stays, the first would seem to have to stay too."""
    matrix_NP = np.linalg.cholesky(np.array([[1, -0.9], [-0.9, 1]])).T
    right_N = np.linalg.solve(matrix_NP.T, np.array([1.0, -5.0]))
    point_P, _ = linear(matrix_NP, right_N, np.zeros((1, 2)), np.zeros(2))
    np.testing.assert_allclose(point_P, [1, 0], atol=1e-9)


def test_errors_count_by_huber_and_penalties_by_their_squares(linear):
    """Medians of -1, 0, 1, 7 within delta = 3: (m + 1) + m + (m - 1) = 3; a penalty pulls by m."""
    matrix_NP, right_N = np.ones((5, 1)), np.array([-1.0, 0.0, 1.0, 7.0, 0.0])
    for num_runs, best in ((4, 3 / 4), (3, 7 / 5)):
        start_BP, low_P = np.zeros((1, 1)), np.full(1, -np.inf)
        point_P, _ = linear(matrix_NP, right_N, start_BP, low_P, delta=3.0, num_runs=num_runs)
        np.testing.assert_allclose(point_P, best, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_descent_ends_early_at_a_bound(seed):
    """Losses that bend the other way, for which c is best at its bound of 0."""
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.full(5, 0.7), 40)
    bent_N = np.exp(0.3 * weight_NS @ draws.normal(0, 1.5, 5) - 0.5)
    fit = ExponentialFit(weight_NS, 4 - bent_N + draws.normal(0, 0.005, 40))
    point_P, converged = lowest_huber(fit, fit.starts(stream(0, "test")))
    slope_P = huber(fit.residual(point_P)[None], 0.05)[1][0] @ fit.jacobian(point_P)
    stays_P = (point_P <= fit.low_P) & (slope_P > 0)
    assert converged
    assert stays_P.any()
    assert np.abs(np.where(stays_P, 0, slope_P)).max() < 1e-5


def test_the_lowest_minima_of_real_proxies():
    """Of several minima: fewer starts, or starts without steps, end higher (docs/log.md)."""
    read = read_table(PROXIES / "proxies.mixtures.csv", PROXIES / "proxies.losses.csv")
    data = [(read.weight_NS, loss_N) for loss_N in read.loss_NV.T]
    found = [hubers_loss(fit_exponential(*runs), *runs) for runs in data]
    assert sum(found) <= 0.383748643 * (1 + 1e-8)
