"""Weights are of the world batch: ranks use their own part of it and equal one process.

Seven samples lie unevenly on two or three ranks, in one or several micro-batches, so a rank that
took another's weights, or the range of its own losses, would be seen.
"""

import pytest
import torch

from online_runs import MIXERS, make_inputs, take_online_steps
from several_ranks import on_ranks
from tiny_steps import ALONE, assert_same_gradients, relative

pytestmark = pytest.mark.slow

# Losses of 4.6 round to 3e-7; divided by a range of 0.15 and by r = 0.4 that is 2 * 5e-6 of h / r.
TOLERANCE = dict.fromkeys(MIXERS, 2e-6) | {"dynamic-loss": 2e-5}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def compare(alone, ranks):
    for name in MIXERS:
        for i, expected in enumerate(alone[name]["taken"]):
            for rank in ranks:
                got = rank[name]["taken"][i]
                assert relative(got.loss_B, expected.loss_B) < 1e-6
                assert relative(got.weight_B, expected.weight_B) < TOLERANCE[name], name
                assert_same_gradients(got.gradients, expected.gradients, TOLERANCE[name])
                assert torch.equal(got.weight_B, ranks[0][name]["taken"][i].weight_B)
        last, drawn = alone[name]["taken"][-1].weight_B, alone[name]["remixed"]
        if drawn is not None:  # it changes what is drawn
            last = torch.tensor(list(drawn.weights.values()))
        assert last.max() - last.min() > 1e-3, name  # or nothing is weighed
        for rank in ranks:
            for key, value in alone[name]["state"].items():
                if isinstance(value, torch.Tensor):
                    apart = (rank[name]["state"][key] - value).norm()
                    assert apart <= 1e-5 * value.norm(), (name, key)
                else:
                    assert rank[name]["state"][key] == value
            if drawn is not None:
                assert rank[name]["remixed"].weights == pytest.approx(drawn.weights, rel=1e-5)


def test_two_ranks_are_one_process(inputs):
    compare(take_online_steps(ALONE, *inputs), on_ranks(2, take_online_steps, *inputs))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("micro", [1, 2])
def test_ranks_with_micro_batches_are_one_process(inputs, size, micro):
    alone = take_online_steps(ALONE, *inputs)
    ranks = on_ranks(size, take_online_steps, *inputs, f"train.micro_batch_size={micro}")
    compare(alone, ranks)
