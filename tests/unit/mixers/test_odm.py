"""ODM against vectors of the authors' rules, and its limits."""

import pytest
import torch

from dograph.errors import ConfigError
from dograph.mixers.online import ODM
from dograph.mixers.registry import build_mixer
from dograph.types import Signals

NAMES = ["a", "b", "c"]
SMOOTHED = {
    1: [1 / 3, 1 / 3, 1 / 3],
    4: [0.325157, 0.310882, 0.363961],
    10: [0.295596, 0.229709, 0.474695],
    100: [0.260814, 0.134201, 0.604985],
    1000: [0.249815, 0.103998, 0.646186],
}
EXP3 = {
    1: [1 / 3, 1 / 3, 1 / 3],
    4: [0.331756, 0.322135, 0.346109],
    10: [0.327532, 0.271756, 0.400712],
    50: [0.334299, 0.234792, 0.430910],
}


def seen(step, losses=(3.0, 2.0, 4.0), sources=(0, 1, 2)):
    loss_B, source_B = torch.tensor(losses, dtype=torch.float64), torch.tensor(sources)
    return Signals(step=step, num_samples=len(losses), loss_B=loss_B, source_B=source_B)


@pytest.mark.parametrize(("update", "vector"), [("smoothed", SMOOTHED), ("exp3", EXP3)])
def test_vectors(update, vector):
    mixer = ODM(sources=NAMES, update=update, smoothing=0.5, warmup_steps=0)
    for step in range(max(vector)):
        mixer.remix(seen(step))
        if step + 1 in vector:
            assert mixer.weight_S.tolist() == pytest.approx(vector[step + 1], abs=1e-6)


def test_absent_sources_keep_their_reward():
    mixer = ODM(sources=NAMES, smoothing=0.5)
    mixer.remix(seen(0))
    mixer.remix(seen(1, losses=(1.0, 1.0), sources=(0, 1)))
    e = torch.e
    expected = [e**3 / 4 + e / 2, e**2 / 4 + e / 2, e**4 / 2]
    assert mixer.reward_S.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("update", ["smoothed", "exp3"])
def test_equal_losses_stay_equal_and_every_source_is_explored(update):
    mixer = ODM(sources=NAMES, update=update)
    for step in range(300):
        mixer.remix(seen(step, losses=(2.5, 2.5, 2.5)))
    assert mixer.weight_S.tolist() == pytest.approx([1 / 3] * 3)
    mixer = ODM(sources=NAMES, update=update)
    for step in range(300):
        mixer.remix(seen(step, losses=(9.0, 0.0, 0.0)))
    least = (torch.tensor(3.0).log() / (3 * 300)).sqrt().item()
    assert min(mixer.weight_S) >= least - 1e-9
    assert mixer.weight_S[0] > 0.5


def test_it_chases_what_cannot_be_learned():
    """The pitfall on its page: noise of constant loss takes nearly all, however little it has."""
    mixer = build_mixer("odm", {"sources": {"text": 9_000_000, "noise": 1000}})
    for step in range(400):
        falling = 3.0 + 5.0 / (1 + step)
        mixer.remix(seen(step, losses=(falling, 9.0), sources=(0, 1)))
    assert mixer.weight_S[1] > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "exp4"}, "mixer.update='exp4'"),
        ({"smoothing": 1.5}, "mixer.smoothing"),
        ({"smoothing": 1.0}, "mixer.smoothing"),  # rewards would never change
        ({"remix_every": 0}, "mixer.remix_every"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        build_mixer("odm", options)
