"""How far a sketched norm strays: the law that says how many columns a projection needs.

For P_row (R x q), P_col (C x p) of normally distributed numbers, and |G|_F = 1 with singular
values s:

    Var |P_row' G P_col|^2 = 2/(pq) + 2 sum s^4 (1/p + 1/q + 1/(pq))

and for parameters with shares f_l of the energy, summed into one slot:

    Var = 2/(pq) + sum_l f_l^2 2 sum s_l^4 (1/p + 1/q + 1/(pq))

Random signs stray a little less, because their squares do not vary: with H = G'G and rows g_i,

    Var = 2/p (|H|^2 - sum H_jj^2) + 2/q [1/p (1 + 2 |H|^2 - 2 sum H_jj^2) + (1 - 1/p) |H|^2
          - sum_i (1/p (3 |g_i|^4 - 2 sum_j G_ij^4) + (1 - 1/p) |g_i|^4)]

Shapes: N draws, K sketch; R x C a parameter, q x p its sketch.
"""

import pytest
import torch

from dograph.rng import key64
from dograph.sketch.projection import Bank, Projection

DRAWS = 12_000
SHAPE, RANKS = (24, 20), {"rank 1": 1, "rank 4": 4, "full rank": 20}
ROWS, COLUMNS = 8, 6
FLOOR = 2 / (ROWS * COLUMNS)  # of a dense projection
SHARES = {"rank 1": 0.5, "rank 4": 0.2, "full rank": 0.3}


def unit_matrix(rank):
    draw = torch.Generator().manual_seed(key64(0, "matrix of rank", rank) >> 1)
    left_Rr = torch.randn(SHAPE[0], rank, dtype=torch.float64, generator=draw)
    right_rC = torch.randn(rank, SHAPE[1], dtype=torch.float64, generator=draw)
    matrix_RC = left_Rr @ right_rC
    return matrix_RC / matrix_RC.norm()


def excess_of_normals(matrix_RC):
    """What a projection from both sides adds to the variance 2/(pq) of a dense one."""
    fourth = torch.linalg.svdvals(matrix_RC).pow(4).sum()
    return float(2 * fourth * (1 / ROWS + 1 / COLUMNS + 1 / (ROWS * COLUMNS)))


def excess(matrix_RC):
    """The same of random signs."""
    p, product_CC = COLUMNS, matrix_RC.T @ matrix_RC
    whole = product_CC.square().sum()
    apart = whole - product_CC.diagonal().square().sum()
    fourth_R = matrix_RC.square().sum(dim=1).square()
    own_R = (3 * fourth_R - 2 * matrix_RC.pow(4).sum(dim=1)) / p + (1 - 1 / p) * fourth_R
    rows = (1 + 2 * apart) / p + (1 - 1 / p) * whole - own_R.sum()
    return float(2 / p * apart + 2 / ROWS * rows) - FLOOR


@pytest.fixture(scope="module")
def sketches():
    """(N, K) sketches of unit matrices, each under its own name."""
    projection = Projection(dim=ROWS * COLUMNS, kind="rademacher", refresh="step")
    assert projection.sides() == (ROWS, COLUMNS)
    found = {}
    for name, rank in RANKS.items():
        bank = Bank(projection, torch.float64, torch.device("cpu"))
        bank.add_matrix(name, SHAPE, wide=False)
        rows, columns = [], []
        for step in range(DRAWS):
            bank.draw(step)  # in place
            rows.append(bank.matrix(name).row_Rq.clone())
            columns.append(bank.matrix(name).col_Cp.clone())
        row_NRq, col_NCp = torch.stack(rows), torch.stack(columns)
        found[name] = (row_NRq.mT @ unit_matrix(rank) @ col_NCp).flatten(1)
    return found


pytestmark = pytest.mark.slow  # thousands of projections


def test_the_examples_span_the_law():
    """From an excess as large as the floor of a dense projection to one that drowns it."""
    assert excess(unit_matrix(1)) > 10 * FLOOR
    assert excess(unit_matrix(20)) < 3 * FLOOR


@pytest.mark.parametrize("name", RANKS)
def test_one_matrix(sketches, name):
    expected = FLOOR + excess(unit_matrix(RANKS[name]))
    assert float(sketches[name].square().sum(dim=1).var()) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("rank", RANKS.values())
def test_random_signs_stray_no_farther_than_normal_numbers(rank):
    signs, normals = excess(unit_matrix(rank)), excess_of_normals(unit_matrix(rank))
    assert 0.5 * normals < signs < normals


def test_of_one_rank_each_side_strays_by_what_it_has():
    """By (2/q)(1 - sum x^4) in place of 2/q: a second derivation of the law for signs."""
    matrix_RC = unit_matrix(1)
    row_R, col_C = matrix_RC.norm(dim=1), matrix_RC.norm(dim=0)
    rows = 1 + 2 / ROWS * (1 - row_R.pow(4).sum())
    columns = 1 + 2 / COLUMNS * (1 - col_C.pow(4).sum())
    assert FLOOR + excess(matrix_RC) == pytest.approx(float(rows * columns - 1))


def test_parameters_summed_into_one_slot(sketches):
    total_NK = sum(share**0.5 * sketches[name] for name, share in SHARES.items())
    expected = FLOOR + sum(
        share**2 * excess(unit_matrix(RANKS[name])) for name, share in SHARES.items()
    )
    square_N = total_NK.square().sum(dim=1)
    assert float(square_N.var()) == pytest.approx(expected, rel=0.15)
    assert float(square_N.mean()) == pytest.approx(1, abs=4 * (expected / DRAWS) ** 0.5)
