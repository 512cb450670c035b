"""Random words and signs: the same however they are drawn, and random enough.

Shapes: W words, N entries.
"""

import pytest
import torch

from dograph.sketch.projection import (
    Bank,
    Projection,
    mixed,
    signed,
    signs_plainly,
    start_words,
    words,
)
from drawn_alone import fold_of, matrix_of

CPU = torch.device("cpu")


def test_splitmix64_as_published():
    """The first outputs of the generator from seed 1234567, as its authors' code prints them."""
    golden = signed(0x9E3779B97F4A7C15)
    state_W = 1234567 + torch.arange(1, 6) * golden
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [value % (1 << 64) for value in mixed(state_W).tolist()] == expected


def test_streams_do_not_depend_on_their_neighbours():
    together_W = start_words([5, 7, 9], [3, 4, 2], CPU)
    assert torch.equal(together_W[3:7], start_words([7], [4], CPU))


def test_words_of_epochs_and_seeds_differ():
    start_W = start_words([5], [100], CPU)
    drawn = [words(start_W, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(word_W.tolist()) for word_W in drawn}) == 3


def test_signs_are_the_bits_of_words():
    word_W = words(start_words([3], [5], CPU), 0, 0)
    sign_N = signs_plainly(word_W, 0.5, torch.float64)
    for place, sign in enumerate(sign_N.tolist()):
        bit = word_W[place // 64].item() >> (place % 64) & 1
        assert sign == (0.5 if bit else -0.5)


def test_signs_are_independent():
    """Of 64 streams of 4000 signs no two agree, nor lean to one side, by more than 5 sigma."""
    sign_WN = signs_plainly(words(start_words([11], [4000], CPU), 0, 2), 1.0, torch.float64)
    sign_WN = sign_WN.view(-1, 64)
    limit = 5 / len(sign_WN) ** 0.5
    assert sign_WN.mean(dim=0).abs().max() < limit
    agreement = sign_WN.T @ sign_WN / len(sign_WN) - torch.eye(64, dtype=torch.float64)
    assert agreement.abs().max() < limit
    later = signs_plainly(words(start_words([11], [4000], CPU), 0, 3), 1.0, torch.float64)
    assert (sign_WN.flatten() * later).mean().abs() < 5 / later.numel() ** 0.5


@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
def test_a_bank_draws_what_is_drawn_alone(kind):
    projection = Projection(dim=80, kind=kind, seed=3, refresh="step")
    bank = Bank(projection, torch.float32, CPU)
    bank.add_matrix("a", (7, 9), wide=False)
    bank.add_matrix("table", (30, 9), wide=True)
    bank.add_fold("vectors", 200)
    bank.add_matrix("a", (7, 9), wide=False)  # a tied weight asks twice
    like = torch.empty(0)
    for step in (4, 5):
        bank.draw(step)
        for name, shape, wide in (("a", (7, 9), False), ("table", (30, 9), True)):
            alone = matrix_of(projection, name, shape, wide=wide, step=step, like=like)
            assert torch.equal(bank.matrix(name).row_Rq, alone.row_Rq)
            assert torch.equal(bank.matrix(name).col_Cp, alone.col_Cp)
        folds = bank.folds["vectors"], fold_of(projection, "vectors", 200, step=step, like=like)
        assert torch.equal(folds[0].index_N, folds[1].index_N)
        assert torch.equal(folds[0].sign_N, folds[1].sign_N)


@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
def test_a_matrix_does_not_depend_on_those_drawn_before_it(kind):
    """Sides of odd sizes end within a word; the next one begins with a word of its own."""
    projection = Projection(dim=81, kind=kind, seed=3)
    bank = Bank(projection, torch.float32, CPU)
    names = ("a", "b", "c")
    for name in names:
        bank.add_matrix(name, (7, 5), wide=False)
        bank.add_fold(f"{name} vectors", 100)
    bank.draw(0)
    like = torch.empty(0)
    for name in names:
        alone = matrix_of(projection, name, (7, 5), wide=False, step=0, like=like)
        assert torch.equal(bank.matrix(name).row_Rq, alone.row_Rq)
        fold = fold_of(projection, f"{name} vectors", 100, step=0, like=like)
        assert torch.equal(bank.folds[f"{name} vectors"].sign_N, fold.sign_N)
        assert torch.equal(bank.folds[f"{name} vectors"].index_N, fold.index_N)
