"""What ranks tell one another, on three of them; seven samples, so that they do not share alike."""

import pytest
import torch

from several_ranks import on_ranks
from world_calls import talk


@pytest.fixture(scope="module")
def told():
    return on_ranks(3, talk, 7)


def test_every_rank_sees_the_whole_batch_in_its_order(told):
    expected = torch.arange(7.0)
    for one in told:
        assert torch.equal(one["gathered"], torch.stack((expected, -expected), dim=1))


def test_weights_go_back_to_their_samples_times_the_ranks(told):
    """Wrappers average over ranks, and the loss is a sum over all."""
    assert [one["local"].tolist() for one in told] == [[0, 3, 6], [9, 12], [15, 18]]


def test_one_rank_that_asks_is_enough_and_the_first_one_speaks(told):
    assert [one["agreed"] for one in told] == [15, 15, 15]
    assert [one["shared"] for one in told] == ["rank 0: ä"] * 3
    assert [one["total"].tolist() for one in told] == [[6, 6]] * 3


def test_gradients_are_averaged_where_a_rank_has_none(told):
    for one in told:
        a, b = one["averaged"]
        assert a.tolist() == [1, 1]
        torch.testing.assert_close(b, torch.full((3,), 2 / 3))
