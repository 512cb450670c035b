"""Projections: a function of (seed, name, step), unbiased, of one scale whatever the shape.

Shapes: N draws, K sketch, F numbers to hash; R x C a parameter, q x p its sketch.
"""

import math

import pytest
import torch

from dograph.errors import ConfigError
from dograph.rng import key64
from dograph.sketch.projection import KINDS, Bank, Projection
from dograph.sketch.rules import hashed
from dograph.sketch.sketcher import Sketcher
from drawn_alone import fold_of, matrix_of

DRAWS = 2000
DOUBLE = torch.empty(0, dtype=torch.float64)


def normal(*shape, name="values"):
    draw = torch.Generator().manual_seed(key64(0, name, *shape) >> 1)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def standard_errors_off(value_N, expected):
    """How far the mean is from what it should be, in its own standard errors."""
    error = value_N.std() / math.sqrt(len(value_N))
    return float((value_N.mean() - expected).abs() / error)


def of_matrix(kind, shape, *, wide=False):
    """Inner products of two gradients of a weight, true and sketched N times."""
    projection = Projection(dim=16, kind=kind, refresh="step")
    # Of rank 2, as gradients of few tokens are, and alike, so that their product is not near 0.
    left, right = normal(shape[0], 2, name="left"), normal(2, shape[1], name="right")
    scale = torch.tensor([[1.0, 0.3], [0.8, -0.5]], dtype=torch.float64)
    gradient_2RC = torch.stack([(left * row) @ right for row in scale])
    drawn = [
        matrix_of(projection, "w", shape, wide=wide, step=step, like=DOUBLE)
        for step in range(DRAWS)
    ]
    row_NRq = torch.stack([p.row_Rq for p in drawn])
    col_NCp = torch.stack([p.col_Cp for p in drawn])
    sketch_N2qp = torch.einsum("nrq,brc,ncp->nbqp", row_NRq, gradient_2RC, col_NCp)
    if wide:
        sketch_N2K = torch.stack(
            [p.fold(s.flatten(1)) for p, s in zip(drawn, sketch_N2qp, strict=True)]
        )
    else:
        sketch_N2K = sketch_N2qp.flatten(2)
    assert sketch_N2K.shape == (DRAWS, 2, 16)
    whole_2F = gradient_2RC.flatten(1)
    return whole_2F @ whole_2F.T, sketch_N2K @ sketch_N2K.mT


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
@pytest.mark.parametrize("shape", [(32, 32), (64, 256), (256, 64)])
def test_matrices_are_unbiased_and_of_one_scale(kind, shape):
    true_22, sketched_N22 = of_matrix(kind, shape)
    assert standard_errors_off(sketched_N22[:, 0, 1], true_22[0, 1]) < 4
    for sample in (0, 1):
        ratio_N = sketched_N22[:, sample, sample] / true_22[sample, sample]
        assert standard_errors_off(ratio_N, 1) < 4
        assert ratio_N.std() / math.sqrt(DRAWS) < 0.025, "too few draws to see a wrong scale"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
def test_wide_matrices_are_unbiased(kind):
    true_22, sketched_N22 = of_matrix(kind, (64, 32), wide=True)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert standard_errors_off(sketched_N22[:, i, j], true_22[i, j]) < 4


@pytest.mark.slow
def test_a_hash_of_the_vocabulary_errs_as_little_as_signs():
    spreads = {
        kind: of_matrix(kind, (96, 32), wide=True)[1].std(dim=0)
        for kind in ("rademacher", "hashed")
    }
    torch.testing.assert_close(spreads["hashed"], spreads["rademacher"], rtol=0.15, atol=0.0)


@pytest.mark.parametrize("size", [8, 30, 64])
def test_a_hash_is_the_product_with_its_matrix(size):
    """Row r of the matrix has one entry, of size 1, in column r mod q."""
    projection = Projection(dim=16, kind="hashed", refresh=2)
    value_23R = normal(2, 3 * size).view(2, 3, size)
    for step in (0, 2):
        drawn = matrix_of(projection, "w", (size, 12), wide=True, step=step, like=DOUBLE)
        found_23q = hashed(value_23R, drawn.sign_R, drawn.row_Rq.shape[1])
        torch.testing.assert_close(found_23q, value_23R @ drawn.row_Rq)
        assert set(drawn.sign_R.tolist()) == {-1, 1}
        assert drawn.row_Rq.abs().sum(dim=1).unique().tolist() == [1.0]


def test_a_hash_is_drawn_anew_in_place():
    bank = Bank(Projection(dim=16, kind="hashed", refresh="step"), DOUBLE.dtype, DOUBLE.device)
    bank.add_matrix("w", (64, 12), wide=True)
    bank.draw(0)
    first, held = bank.matrix("w"), bank.matrix("w").row_Rq.clone()
    bank.draw(1)
    assert bank.matrix("w").row_Rq.data_ptr() == first.row_Rq.data_ptr()
    assert not torch.equal(first.row_Rq, held)
    assert torch.equal(first.row_Rq.abs(), held.abs())


def test_a_fold_is_drawn_anew_in_place():
    fresh, held = (
        Bank(Projection(dim=16, refresh="step"), DOUBLE.dtype, DOUBLE.device) for _ in range(2)
    )
    for bank in (fresh, held):
        bank.add_fold("norm", 40)
    held.draw(0)
    fold, before_N = held.folds["norm"], held.folds["norm"].index_N.clone()
    held.draw(1)
    fresh.draw(1)
    assert not torch.equal(fold.index_N, before_N)
    assert torch.equal(fold.index_N, fresh.folds["norm"].index_N)
    assert torch.equal(fold.sign_N, fresh.folds["norm"].sign_N)


@pytest.mark.parametrize("size", [5, 16])
def test_a_fold_of_no_more_numbers_than_places_keeps_them(size):
    value_2F = normal(2, size)
    fold = fold_of(Projection(dim=16), "norm", size, step=0, like=value_2F)
    torch.testing.assert_close(fold(value_2F) @ fold(value_2F).T, value_2F @ value_2F.T)


@pytest.mark.slow
@pytest.mark.parametrize("size", [40, 128])
def test_a_fold_is_unbiased_and_as_good_as_a_dense_projection(size):
    value_2F = normal(2, size) + 0.5
    projection = Projection(dim=16, refresh="step")
    sketch_N2K = torch.stack(
        [fold_of(projection, "norm", size, step=n, like=DOUBLE)(value_2F) for n in range(DRAWS)]
    )
    true_22, sketched_N22 = value_2F @ value_2F.T, sketch_N2K @ sketch_N2K.mT
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert standard_errors_off(sketched_N22[:, i, j], true_22[i, j]) < 4
    square_F = value_2F[0].square()
    # Numbers of one stretch never share a place, those of two do with odds of 1 in 16.
    alone = sum(stretch.sum() ** 2 for stretch in square_F.split(16))
    expected = 2 * (square_F.sum() ** 2 - alone) / 16
    assert sketched_N22[:, 0, 0].var() == pytest.approx(float(expected), rel=0.15)
    assert expected < 2 * square_F.sum() ** 2 / 16


@pytest.mark.parametrize("size", [5, 16, 40, 128])
def test_a_fold_places_every_number_once_and_evenly(size, tiny):
    fold = fold_of(Projection(dim=16), "norm", size, step=0, like=DOUBLE)
    index_N = fold.index_N
    assert sorted(index_N[index_N < size].tolist()) == list(range(size))
    held_K = (index_N < size).view(-1, 16).sum(dim=0)
    assert held_K.max() <= math.ceil(size / 16)
    assert set(fold.sign_N.tolist()) == {-1.0, 1.0}
    value_2F = normal(2, size)
    torch.testing.assert_close(fold(value_2F), tiny.folded(fold, value_2F))


def test_a_dense_projection_is_unbiased():
    value_2F = normal(2, 48) + 0.5
    projection = Projection(dim=16, kind="gaussian", refresh="step")
    sketch_N2K = torch.stack([projection.dense("w", value_2F, step=n) for n in range(DRAWS)])
    true_22, sketched_N22 = value_2F @ value_2F.T, sketch_N2K @ sketch_N2K.mT
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert standard_errors_off(sketched_N22[:, i, j], true_22[i, j]) < 4
    expected = 2 * float(true_22[0, 0]) ** 2 / 16
    assert sketched_N22[:, 0, 0].var() == pytest.approx(expected, rel=0.15)


def test_blocks_of_a_dense_projection_differ():
    """Made in blocks of 65536 rows; were they the same, opposite halves would cancel."""
    half_1F = normal(1, 1 << 16)
    value_1F = torch.cat([half_1F, -half_1F], dim=1)
    sketch_1K = Projection(dim=8, kind="gaussian").dense("w", value_1F, step=0)
    # A chi-squared of 8 degrees lies between 0.8 and 26 with odds of 998 in 1000.
    assert 0.8 < 8 * float(sketch_1K.square().sum() / value_1F.square().sum()) < 26


def matrix_tensors(name="w", *, step=0, shape=(12, 12), **options):
    projection = Projection(**{"dim": 36, **options})
    matrix = matrix_of(projection, name, shape, wide=False, step=step, like=DOUBLE)
    return matrix.row_Rq, matrix.col_Cp


def fold_tensors(name="w", *, step=0, **options):
    projection = Projection(**{"dim": 36, **options})
    fold = fold_of(projection, name, 100, step=step, like=DOUBLE)
    return fold.index_N, fold.sign_N


@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
@pytest.mark.parametrize("tensors", [matrix_tensors, fold_tensors])
def test_a_function_of_seed_name_and_step(tensors, kind):
    first = tensors(kind=kind, refresh="step")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)  # draws elsewhere do not matter
        again = tensors(kind=kind, refresh="step")
    assert all(map(torch.equal, first, again))
    changes = [{"seed": 1}, {"name": "v"}, {"step": 1}]
    for change in changes:
        other = tensors(**{"kind": kind, "refresh": "step", **change})
        assert not any(map(torch.equal, first, other)), change


def test_the_two_sides_differ():
    row_Rq, col_Cp = matrix_tensors()
    assert row_Rq.shape == col_Cp.shape == (12, 6)
    assert not torch.equal(row_Rq, col_Cp)


def test_rademacher_entries_are_signs_of_one_size():
    for side, columns in zip(matrix_tensors(dim=48), (8, 6), strict=True):
        torch.testing.assert_close(side.abs(), torch.full_like(side, columns**-0.5))
        assert 0 < (side > 0).double().mean() < 1


@pytest.mark.parametrize(
    ("refresh", "epochs"),
    [("never", [0] * 7), ("step", list(range(7))), (3, [0, 0, 0, 3, 3, 3, 6]), (1, list(range(7)))],
)
def test_refresh(refresh, epochs):
    projection = Projection(dim=36, refresh=refresh)
    assert [projection.epoch(step) for step in range(7)] == epochs
    sides = [matrix_tensors(refresh=refresh, step=step)[0] for step in range(7)]
    for step, epoch in enumerate(epochs):
        assert torch.equal(sides[step], sides[epoch])
        assert step == 0 or torch.equal(sides[step], sides[step - 1]) == (epoch != step)


def test_columns():
    assert Projection().dim == 5120
    assert Projection().sides() == (80, 64)
    assert Projection(dim=1024).sides() == (32, 32)
    assert Projection().sides(wide=True) == (128, 128)  # more: folded into K numbers afterwards


def test_tied_weights_have_one_projection(tiny, token_BT):
    sketcher = Sketcher(tiny.gpt2(), mode="full", dim=80)
    with sketcher.record(token_BT):
        table, head = (
            next(r for r in sketcher.rules if r.path == path)
            for path in ("transformer.wte", "lm_head")
        )
        assert table.names["weight"] == head.names["weight"] == "transformer.wte.weight"
        assert len(table.projection) == 3
        assert all(map(torch.equal, table.projection, head.projection))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, r"at least 1 dimension, got dim=0"),
        ({"dim": -4}, r"at least 1 dimension, got dim=-4"),
        ({"dim": 5119}, r"dim=5119 splits into 5119 x 1 columns, .* take \d+, or"),
        ({"dim": 206}, r"dim=206 splits into 103 x 2 columns, too narrow on one side"),
        ({"kind": "hadamard"}, r"projection='hadamard' is not known; give one of"),
        ({"kind": "two-sided"}, r"give one of \('hashed', 'rademacher', 'gaussian', 'none'\)"),
        ({"refresh": 0}, r"refresh=0: give never, step, or a number of steps"),
        ({"refresh": -3}, r"refresh=-3"),
        pytest.param({"refresh": "often"}, r"refresh='?often"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Projection(**options)


def test_the_advised_dimension_is_accepted():
    with pytest.raises(ConfigError) as refused:
        Projection(dim=5119)
    advised = int(str(refused.value).split("take ")[1].split(",")[0])
    rows, columns = Projection(dim=advised).sides()
    assert rows <= 2 * columns
    assert 5119 < advised < 2 * 5119


def test_a_prime_dimension_is_fine_where_there_are_no_sides():
    assert Projection(dim=5119, kind="gaussian").dim == 5119
    assert set(KINDS) == {"hashed", "rademacher", "gaussian", "none"}
