"""Weights by where a sample's loss lies in its batch."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dograph.errors import ConfigError
from dograph.mixers.dynamic_loss import DynamicLoss, loss_weights
from dograph.mixers.registry import build_mixer
from dograph.testing import check_mixer
from dograph.types import Signals

LOSSES = [2.0, 2.5, 3.0, 3.5, 4.0]
VECTORS = {
    "linupper": [0.024368, 0.085052, 0.296860, 0.296860, 0.296860],
    "quadratic": [0.036732, 0.239523, 0.447489, 0.239523, 0.036732],
    "extremes": [0.376634, 0.107908, 0.030916, 0.107908, 0.376634],
    "upper": [0.039901, 0.074545, 0.139269, 0.260189, 0.486096],
}

STRATEGIES = ("linupper", "quadratic", "extremes", "upper")


@dataclass
class Facts:
    tokens: dict[str, int]
    steps: int = 100
    budget: int = 1000


def signals(losses, step=0):
    loss_B = torch.tensor(losses)
    return Signals(step=step, num_samples=len(loss_B), loss_B=loss_B)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_contract(strategy):
    check_mixer(DynamicLoss(strategy), sizes=(1, 2, 3, 16, 64))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_vectors(strategy):
    weight_B = build_mixer("dynamic-loss", {"strategy": strategy}).weigh(signals(LOSSES))
    assert weight_B.tolist() == pytest.approx(VECTORS[strategy], abs=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equal_losses_weigh_alike(strategy):
    assert DynamicLoss(strategy).weigh(signals([3.1] * 7)).tolist() == pytest.approx([1 / 7] * 7)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    losses=st.lists(st.floats(0, 12), min_size=2, max_size=20),
    shift=st.floats(-5, 5),
    scale=st.floats(0.1, 10),
)
def test_only_the_place_in_the_range_counts(strategy, losses, shift, scale):
    loss_B = torch.tensor(losses, dtype=torch.float64)
    if loss_B.max() - loss_B.min() < 1e-3:  # below 1e-6 a range no longer counts as one
        return
    weight_B = loss_weights(loss_B, strategy, 0.4)
    moved_B = loss_weights(scale * loss_B + shift, strategy, 0.4)
    assert torch.allclose(moved_B, weight_B, atol=1e-9)
    assert float(weight_B.sum()) == pytest.approx(1, abs=1e-12)
    assert float(weight_B.max() / weight_B.min()) <= np.exp(1 / 0.4) * (1 + 1e-9)


def test_a_narrow_range_is_a_range():
    """Only below 1e-6 do differences stop to count: there h is l less the middle, over 1e-6."""
    loss_B = 3 + 1e-5 * (torch.tensor(LOSSES, dtype=torch.float64) - 3)
    assert loss_weights(loss_B, "upper", 0.4).tolist() == pytest.approx(VECTORS["upper"], abs=1e-6)
    tiny_B = torch.tensor([3.0, 3.0 + 5e-7], dtype=torch.float64)
    expected = np.exp([(1 - 0.5) / 2 / 0.4, (1 + 0.5) / 2 / 0.4])
    assert loss_weights(tiny_B, "upper", 0.4).tolist() == pytest.approx(
        (expected / expected.sum()).tolist(), abs=1e-6
    )


def test_warm_up_is_a_twentieth_of_the_run_unless_said():
    lab = Facts({"a": 3, "b": 1}, steps=20_000)
    mixer = DynamicLoss()
    assert mixer.plan(lab).weights == {"a": 0.5, "b": 0.5}
    assert mixer.warmup_steps == 1000
    assert mixer.weigh(signals(LOSSES, step=999)).tolist() == pytest.approx([0.2] * 5)
    assert mixer.weigh(signals(LOSSES, step=1000)).tolist() == pytest.approx(
        VECTORS["linupper"], abs=1e-6
    )
    again = DynamicLoss()
    again.load_state_dict(mixer.state_dict())
    assert again.weigh(signals(LOSSES, step=999)).tolist() == pytest.approx([0.2] * 5)
    said = DynamicLoss(warmup_steps=7, sampling="natural")
    assert said.plan(lab).weights == {"a": 0.75, "b": 0.25}
    assert said.warmup_steps == 7


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_losses_that_are_no_numbers_count_alike(bad):
    for strategy in STRATEGIES:
        weight_B = DynamicLoss(strategy).weigh(signals([1.0, 2.0, bad, 4.0]))
        assert weight_B.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "linuper"}, 'did you mean "linupper"'),
        ({"temperature": 0}, "mixer.temperature=0: give a finite number above 0"),
        ({"temperature": "hot"}, "mixer.temperature='hot': give a finite number above 0"),
        ({"clip_quantile": 0.7}, "mixer.clip_quantile=0.7: this option was removed; leave it out"),
        ({"sampling": "even"}, "mixer.sampling='even'"),
        ({"warmup_steps": -1}, "warmup_steps=-1: give a whole number of at least 0"),
        ({"warmup_steps": 2.5}, "warmup_steps=2.5: give a whole number of at least 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        build_mixer("dynamic-loss", options)
    with pytest.raises(ConfigError, match="loss_B"):
        DynamicLoss().weigh(Signals(step=0, num_samples=3))
