"""How far a sketched norm strays: the law that says how many columns a projection needs.

For P_row (R x q), P_col (C x p) Gaussian and |G|_F = 1 with singular values s:

    Var |P_row' G P_col|^2 = 2/(pq) + 2 sum s^4 (1/p + 1/q + 1/(pq))

and for parameters with shares f_l of the energy, summed into one slot:

    Var = 2/(pq) + sum_l f_l^2 2 sum s_l^4 (1/p + 1/q + 1/(pq))

Shapes: N draws, K sketch; R x C a parameter, q x p its sketch.
"""

import pytest
import torch

from dograph.rng import key64
from dograph.sketch.projection import Bank, Projection

DRAWS = 12_000
SHAPE, RANKS = (24, 20), {"rank 1": 1, "rank 4": 4, "full rank": 20}
ROWS, COLUMNS = 8, 6
SHARES = {"rank 1": 0.5, "rank 4": 0.2, "full rank": 0.3}


def unit_matrix(rank):
    draw = torch.Generator().manual_seed(key64(0, "matrix of rank", rank) >> 1)
    left_Rr = torch.randn(SHAPE[0], rank, dtype=torch.float64, generator=draw)
    right_rC = torch.randn(rank, SHAPE[1], dtype=torch.float64, generator=draw)
    matrix_RC = left_Rr @ right_rC
    return matrix_RC / matrix_RC.norm()


def excess(matrix_RC):
    """What a two-sided projection adds to the variance 2/(pq) of a dense one."""
    fourth = torch.linalg.svdvals(matrix_RC).pow(4).sum()
    return float(2 * fourth * (1 / ROWS + 1 / COLUMNS + 1 / (ROWS * COLUMNS)))


def sketches(kind, names, draws=DRAWS):
    """(N, K) sketches of unit matrices, each under its own name."""
    projection = Projection(dim=ROWS * COLUMNS, kind=kind, refresh="step")
    assert projection.sides() == (ROWS, COLUMNS)
    found = {}
    for name in names:
        bank = Bank(projection, torch.float64, torch.device("cpu"))
        bank.add_matrix(name, SHAPE, wide=False)
        rows, columns = [], []
        for step in range(draws):
            bank.draw(step)  # in place
            rows.append(bank.matrix(name).row_Rq.clone())
            columns.append(bank.matrix(name).col_Cp.clone())
        row_NRq, col_NCp = torch.stack(rows), torch.stack(columns)
        found[name] = (row_NRq.mT @ unit_matrix(RANKS[name]) @ col_NCp).flatten(1)
    return found


pytestmark = pytest.mark.slow  # a thousand projections


@pytest.fixture(scope="module")
def gaussian():
    return sketches("two-sided", RANKS)


def test_the_examples_span_the_law():
    """From an excess as large as the floor of a dense projection to one that drowns it."""
    floor = 2 / (ROWS * COLUMNS)
    assert excess(unit_matrix(1)) > 10 * floor
    assert excess(unit_matrix(20)) < 3 * floor


@pytest.mark.parametrize("name", RANKS)
def test_one_matrix(gaussian, name):
    expected = 2 / (ROWS * COLUMNS) + excess(unit_matrix(RANKS[name]))
    assert float(gaussian[name].square().sum(dim=1).var()) == pytest.approx(expected, rel=0.15)


def test_random_signs_stray_no_farther():
    """Each side strays by (2/q)(1 - sum x^4) in place of 2/q: a little less, never more."""
    square_N = sketches("rademacher", ["rank 1"], 1500)["rank 1"].square().sum(dim=1)
    matrix_RC = unit_matrix(1)
    row_R, col_C = matrix_RC.norm(dim=1), matrix_RC.norm(dim=0)
    rows = 1 + 2 / ROWS * (1 - row_R.pow(4).sum())
    columns = 1 + 2 / COLUMNS * (1 - col_C.pow(4).sum())
    expected = float(rows * columns - 1)
    assert float(square_N.var()) == pytest.approx(expected, rel=0.15)
    assert expected < 2 / (ROWS * COLUMNS) + excess(matrix_RC)


def test_parameters_summed_into_one_slot(gaussian):
    total_NK = sum(share**0.5 * gaussian[name] for name, share in SHARES.items())
    expected = 2 / (ROWS * COLUMNS) + sum(
        share**2 * excess(unit_matrix(RANKS[name])) for name, share in SHARES.items()
    )
    square_N = total_NK.square().sum(dim=1)
    assert float(square_N.var()) == pytest.approx(expected, rel=0.15)
    assert float(square_N.mean()) == pytest.approx(1, abs=4 * (expected / DRAWS) ** 0.5)
