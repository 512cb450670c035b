import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dograph.domains.objectives import relative_gap, solve_qp


def problem(rng, size, *, rank=None, spread=0.0, slope=1.0):
    """A random w'Qw + b'w; `spread` decades between the domains, `slope` the size of b to Q."""
    root = rng.normal(size=(rank or size + 2, size)) * 10 ** rng.uniform(-spread, spread, size)
    quadratic = root.T @ root
    linear = rng.normal(size=size) * slope * np.abs(quadratic).max()
    return torch.tensor(quadratic), torch.tensor(linear)


def value(quadratic, linear, weight):
    return float(weight @ quadratic @ weight + linear @ weight)


def best_by_supports(quadratic, linear):
    """The minimum over the simplex by trying every support: a linear system for each."""
    size = len(linear)
    best = np.inf
    for k in range(1, size + 1):
        for support in itertools.combinations(range(size), k):
            rows = list(support)
            system = np.block(
                [[2 * quadratic[np.ix_(rows, rows)], np.ones((k, 1))], [np.ones((1, k)), 0]]
            )
            solved = np.linalg.lstsq(system, np.append(-linear[rows], 1), rcond=None)[0][:k]
            if solved.min() > -1e-12 and abs(solved.sum() - 1) < 1e-9:
                weight = np.zeros(size)
                weight[rows] = solved
                best = min(best, value(quadratic, linear, weight))
    return best


@pytest.mark.parametrize("size", [1, 2, 3, 11, 32])
def test_qp_is_no_worse_than_slsqp(size):
    rng = np.random.default_rng(size)
    for trial in range(6):
        rank = [None, 1, max(1, size // 2)][trial % 3]
        quadratic, linear = problem(rng, size, rank=rank, slope=[0.3, 0, 0.01][trial // 2])
        scale = float(quadratic.abs().max())
        weight = solve_qp(quadratic, linear, torch.ones(size, dtype=torch.bool))
        q, b = quadratic.numpy() / scale, linear.numpy() / scale
        oracle = minimize(
            lambda w, q=q, b=b: w @ q @ w + b @ w,
            np.full(size, 1 / size),
            jac=lambda w, q=q, b=b: 2 * q @ w + b,
            bounds=[(0, 1)] * size,
            constraints={
                "type": "eq",
                "fun": lambda w: w.sum() - 1,
                "jac": lambda w: np.ones_like(w),
            },
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert oracle.success
        assert value(q, b, weight.numpy()) == pytest.approx(oracle.fun, abs=3e-7)
        if rank is None:  # then the minimum is unique
            np.testing.assert_allclose(weight.numpy(), oracle.x, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_qp_finds_the_best_of_all_supports(size):
    rng = np.random.default_rng(size)
    for trial in range(10):
        quadratic, linear = problem(rng, size, spread=trial % 2, slope=0.5 * (trial % 3))
        weight = solve_qp(quadratic, linear, torch.ones(size, dtype=torch.bool))
        q, b = quadratic.numpy(), linear.numpy()
        scale = np.abs(q).max()
        assert value(q, b, weight.numpy()) == pytest.approx(
            best_by_supports(q, b), abs=3e-7 * scale
        )


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 32),
    rank=st.integers(1, 40),
    spread=st.sampled_from([0.0, 1.0, 4.0]),
    slope=st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e4, 1e12]),
    scale=st.sampled_from([1e-20, 1e-6, 1.0, 1e8]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_qp_meets_its_conditions_on_hostile_problems(seed, size, rank, spread, slope, scale, dtype):
    rng = np.random.default_rng(seed)
    quadratic, linear = problem(rng, size, rank=rank, spread=spread, slope=slope)
    quadratic, linear = quadratic * scale, linear * scale
    present = torch.tensor(rng.random(size) < 0.7)
    present[rng.integers(size)] = True
    weight = solve_qp(quadratic.to(dtype), linear.to(dtype), present)
    assert weight.dtype == dtype
    assert bool((weight >= 0).all())
    assert bool((weight[~present] == 0).all())
    assert float(weight.double().sum()) == pytest.approx(1, abs=1e-6)
    residual = relative_gap(quadratic.to(dtype), linear.to(dtype), weight, present)
    assert float(residual) < (3e-7 if dtype == torch.float64 else 1e-6)


def test_the_gap_bounds_the_distance_to_the_minimum():
    """Both in units of the largest curvature."""
    rng = np.random.default_rng(0)
    quadratic, linear = problem(rng, 8, slope=0.1)
    present = torch.ones(8, dtype=torch.bool)
    least, unit = (
        value(quadratic, linear, solve_qp(quadratic, linear, present)),
        quadratic.abs().max(),
    )
    for _ in range(20):
        weight = torch.tensor(rng.dirichlet(np.ones(8)))
        excess = value(quadratic, linear, weight) - least
        assert excess <= float(unit * relative_gap(quadratic, linear, weight, present))
        assert excess > 0
    vertex = torch.eye(8, dtype=torch.float64)[2]
    gradient = 2 * quadratic[:, 2] + linear
    by_hand = gradient[2] - gradient.min()
    torch.testing.assert_close(unit * relative_gap(quadratic, linear, vertex, present), by_hand)


def test_an_absent_domain_does_not_count():
    """Its entries may even be not finite; the gap does not look at it either."""
    quadratic, linear = problem(np.random.default_rng(0), 5)
    present = torch.tensor([True, True, False, True, True])
    kept = [0, 1, 3, 4]
    alone = solve_qp(quadratic[kept][:, kept], linear[kept], present[kept])
    quadratic[2], quadratic[:, 2], linear[2] = torch.nan, torch.nan, -torch.inf
    weight = solve_qp(quadratic, linear, present)
    torch.testing.assert_close(weight[kept], alone, rtol=1e-9, atol=1e-9)
    assert weight[2] == 0
    assert float(relative_gap(quadratic, linear, weight, present)) < 3e-7
    none = torch.zeros(5, dtype=torch.bool)
    assert torch.equal(solve_qp(quadratic, linear, none), torch.zeros(5, dtype=torch.float64))


def test_an_outlier_does_not_set_the_precision_of_the_rest():
    quadratic, linear = problem(np.random.default_rng(3), 6, slope=0.05)
    alone = solve_qp(quadratic[:5, :5], linear[:5], torch.ones(5, dtype=torch.bool))
    assert int((alone > 0).sum()) > 2
    linear[5] = 1e10 * quadratic.abs().max()
    weight = solve_qp(quadratic, linear, torch.ones(6, dtype=torch.bool))
    torch.testing.assert_close(weight[:5], alone, rtol=0, atol=1e-12)


def test_only_the_symmetric_part_of_the_quadratic_counts():
    quadratic, linear = problem(np.random.default_rng(0), 5, slope=0.05)
    upper = torch.ones_like(quadratic).triu(1) * quadratic.abs().max()
    skewed, present = quadratic + upper - upper.T, torch.ones(5, dtype=torch.bool)
    weight = solve_qp(quadratic, linear, present)
    assert int((weight > 0).sum()) > 1
    torch.testing.assert_close(solve_qp(skewed, linear, present), weight)
    assert float(relative_gap(skewed, linear, weight, present)) < 3e-7


def test_not_finite_in_not_finite_out():
    quadratic, linear = problem(np.random.default_rng(0), 3)
    quadratic[0, 1] = torch.nan
    weight = solve_qp(quadratic, linear, torch.ones(3, dtype=torch.bool))
    assert not bool(torch.isfinite(weight.sum()))


def test_among_many_minima_the_one_nearest_to_equal_weights():
    """Least norm under sum w = 1 and v'w = 0, which every minimum of (v'w)^2 meets."""
    v = np.array([1.0, -1.0, 3.0, -0.5, -1.0])
    quadratic = torch.tensor(np.outer(v, v), dtype=torch.float32)
    weight = solve_qp(quadratic, torch.zeros(5), torch.ones(5, dtype=torch.bool))
    expected = np.linalg.lstsq(np.stack((np.ones(5), v)), np.array([1.0, 0.0]), rcond=None)[0]
    assert expected.min() > 0
    np.testing.assert_allclose(weight.numpy(), expected, atol=1e-5)


def test_equal_domains_get_equal_weights():
    twin = torch.ones(4, 4, dtype=torch.float64)
    present = torch.ones(4, dtype=torch.bool)
    weight = solve_qp(twin, torch.zeros(4, dtype=torch.float64), present)
    torch.testing.assert_close(weight, torch.full((4,), 0.25, dtype=torch.float64))
    nothing = solve_qp(torch.zeros(4, 4), torch.zeros(4), present)
    torch.testing.assert_close(nothing, torch.full((4,), 0.25))


def test_a_linear_problem_takes_the_cheapest():
    linear = torch.tensor([3.0, 1.0, 2.0])
    weight = solve_qp(torch.zeros(3, 3), linear, torch.ones(3, dtype=torch.bool))
    assert torch.equal(weight, torch.tensor([0.0, 1.0, 0.0]))
