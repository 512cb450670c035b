"""Several ranks: their sketches are gathered, their weights agree bit for bit, and the gradient is
that of one process, in our trainer and in anybody's, under DDP, FSDP2 or no wrapper at all.

Seven samples lie unevenly on two or three ranks.

Shapes: B samples of all ranks, K sketch.
"""

import itertools

import pytest
import torch
from portable_ranks import KINDS, everything, train_all

from corpora import write_corpus
from several_ranks import on_ranks
from tiny_steps import ALONE, PAPER, STREAM, assert_same_gradients, relative, take_steps

pytestmark = pytest.mark.slow

MODES = ("full", "twopass", "exact", "topdown", "head")
SCOPES = {"paper": PAPER, "stream": STREAM}
RUNS = {
    (mode, scope): (f"sketch.mode={mode}", *options)
    for mode in MODES
    for scope, options in SCOPES.items()
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def alone(corpus):
    """The same work by one process."""
    return {"steps": take_steps(ALONE, corpus, RUNS), "portable": train_all()}


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, corpus):
    return on_ranks(request.param, everything, corpus, RUNS)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mode", MODES)
def test_steps_of_our_trainer(ranks, alone, mode, scope):
    for i, expected in enumerate(alone["steps"][mode, scope]):
        assert expected.weight_B.max() - expected.weight_B.min() > 1e-5  # or nothing is weighed
        for rank in ranks:
            got = rank["steps"][mode, scope][i]
            assert relative(got.loss_B, expected.loss_B) < 1e-6
            assert relative(got.sketch_BK, expected.sketch_BK) < 1e-6
            assert relative(got.weight_B, expected.weight_B) < 1e-6
            assert_same_gradients(got.gradients, expected.gradients)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mode", MODES)
def test_ranks_agree_bit_for_bit(ranks, mode, scope):
    for i in range(2):
        first, *others = (rank["steps"][mode, scope][i] for rank in ranks)
        for other in others:
            assert torch.equal(first.sketch_BK, other.sketch_BK)
            assert torch.equal(first.weight_B, other.weight_B)
            assert all(torch.equal(g, other.gradients[n]) for n, g in first.gradients.items())
            for name, value in first.report.items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(other.report[name]))


def test_modes_agree_on_every_rank(ranks):
    """Those that sketch all layers."""
    for rank, scope in itertools.product(ranks, SCOPES):
        expected = rank["steps"]["exact", scope][1]
        for mode in ("full", "twopass"):
            got = rank["steps"][mode, scope][1]
            assert relative(got.sketch_BK, expected.sketch_BK) < 1e-6
            assert_same_gradients(got.gradients, expected.gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_somebody_elses_trainer(ranks, alone, kind):
    """Two steps with an update between them."""
    expected = alone["portable"][kind]
    for i in range(2):
        assert expected.weight_B[i].max() - expected.weight_B[i].min() > 1e-3
        for rank in ranks:
            got = rank["portable"][kind]
            assert relative(got.sketch_BK[i], expected.sketch_BK[i]) < 1e-6
            assert torch.equal(got.weight_B[i], ranks[0]["portable"][kind].weight_B[i])
            assert relative(got.weight_B[i], expected.weight_B[i]) < 1e-6
            assert_same_gradients(got.gradients[i], expected.gradients[i])


def test_modes_that_fill_gradients_refuse_sharded_parameters(ranks):
    for rank in ranks:
        said = rank["refusals"]
        assert said.pop("twopass") is None
        assert said.pop("head") is None
        for mode, message in said.items():
            assert f"mode={mode} cannot fill the gradients of sharded parameters" in message
            assert "set mode to twopass or head" in message


def test_ranks_without_rows_or_gradients(ranks):
    """The first rank has no row; the second did not use a parameter."""
    size = len(ranks)
    rows = [[10.0, 11, 12], [20, 21, 22], [23, 24, 25]][: 1 if size == 2 else 3]
    for rank, found in enumerate(ranks):
        gathered, mine, (used, other) = found["rows"]
        assert gathered.tolist() == rows
        assert mine.tolist() == [[], [0.0], [1.0 * size, 2.0 * size]][rank]
        assert used.tolist() == [sum(range(size)) / size] * 2
        assert other.tolist() == pytest.approx([1 / size] * 2)


def test_ranks_are_asked_once_for_all_rows_of_a_batch(ranks):
    """Rank r has r rows; two tensors are three exchanges, one of them for the counts."""
    size = len(ranks)
    whole = [float(i) for rank in range(size) for i in range(rank)]
    for rank, found in enumerate(ranks):
        sizes, first, second, mine, asked = found["rows at once"]
        assert sizes == list(range(size))
        assert first.tolist() == [[r, r] for r in range(size) for _ in range(r)]
        assert second.tolist() == whole
        assert mine.tolist() == [size * float(i) for i in range(rank)]
        assert asked == 3
