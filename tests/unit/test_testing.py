"""check_mixer finds what is wrong with somebody's own mixer."""

import copy

import pytest
import torch

from dograph.mixers.base import Mixer, Proxy
from dograph.testing import TinyLab, check_mixer
from dograph.types import Mixture


class Counting(Mixer):
    """All is well with this one: weights, plan and remix hang on what it remembers."""

    needs = frozenset({"loss"})

    def __init__(self):
        self.count, self.steps, self.loss = 0, 0, torch.zeros(())

    def plan(self, lab):
        self.steps = lab.steps
        return Mixture({"a/0": 0.5, "b": 0.5})

    def weigh(self, signals):
        self.count += 1
        self.loss = 0.9 * self.loss + signals.loss_B.mean()
        power = self.count / max(self.steps, 1) + self.loss
        return torch.softmax(power * signals.loss_B, dim=0)

    def remix(self, signals):
        if self.count % 5:
            return None
        return Mixture({"a": self.count / 100, "c": 1 - self.count / 100})

    def schedule(self):
        return {7: Mixture({"b": 1.0})}

    def state_dict(self):
        return {"count": self.count, "steps": self.steps, "loss": self.loss}

    def load_state_dict(self, state):
        self.count, self.steps, self.loss = state["count"], state["steps"], state["loss"]


def test_a_mixer_that_remembers_passes_and_is_left_as_it_was():
    mixer = Counting()
    check_mixer(mixer)
    check_mixer(mixer, sources=["a", "b", "c", "d"], sizes=(3,))
    assert (mixer.count, mixer.steps) == (0, 0)


class NoCounter(Counting):
    def state_dict(self):
        return {"steps": self.steps, "loss": self.loss}

    def load_state_dict(self, state):
        self.steps, self.loss = state["steps"], state["loss"]


class NotLoaded(Counting):
    def load_state_dict(self, state):
        self.count, self.steps = state["count"], state["steps"]


class NoPlanFacts(Counting):
    """A resumed run is not planned again."""

    def load_state_dict(self, state):
        self.count, self.loss = state["count"], state["loss"]


class NoState(Counting):
    state_dict, load_state_dict = Mixer.state_dict, Mixer.load_state_dict


class RemixForgets(Counting):
    """Weights do not show it."""

    def weigh(self, signals):
        super().weigh(signals)
        return torch.softmax(signals.loss_B, dim=0)

    def load_state_dict(self, state):
        self.steps, self.loss = state["steps"], state["loss"]


class Sets(Counting):
    def state_dict(self):
        return super().state_dict() | {"seen": {1, 2}}


class Infinite(Counting):
    def state_dict(self):
        return super().state_dict() | {"least": float("inf")}


class PlansADict(Counting):
    def plan(self, lab):
        return {"x": 2.0}


class PlansElsewhere(Counting):
    def plan(self, lab):
        return Mixture({"x": 1.0})


class RemixesADict(Counting):
    def remix(self, signals):
        return {"a": 1.0}


class RemixesElsewhere(Counting):
    def remix(self, signals):
        return Mixture({"web": 1.0}) if signals.step == 9 else None


class SchedulesElsewhere(Counting):
    def schedule(self):
        return {7: Mixture({"a": 0.5, "books": 0.5})}


class WrongLater(Counting):
    def weigh(self, signals):
        return super().weigh(signals) * (1 if self.count < 10 else 2)


class Greedy(Counting):
    needs = frozenset({"loss", "gradient"})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NoCounter, "resumed run has other weights 0 steps later: state_dict must hold"),
        (NotLoaded, "resumed run has other weights"),
        (NoPlanFacts, "resumed run has other weights"),
        (NoState, "resumed run has other weights"),
        (RemixForgets, "resumed run has another mixture 0 steps later"),
        (Sets, "tensors and JSON values only"),
        (Infinite, "tensors and JSON values only"),
        (PlansADict, r"plan must give a dograph.Mixture, got \{'x': 2.0\}"),
        (PlansElsewhere, r"plan draws from \['x'\]; there are the sources"),
        (RemixesADict, "remix after step 0 must give a dograph.Mixture"),
        (RemixesElsewhere, r"remix after step 9 draws from \['web'\]"),
        (SchedulesElsewhere, r"the schedule from step 7 draws from \['books'\]"),
        (WrongLater, "weights must sum to 1, got 2"),
        (Greedy, "needs .*gradient.*, which no step computes"),
    ],
)
def test_what_is_wrong_is_told(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_mixer(broken())


def test_the_tiny_lab_answers_proxies():
    """Losses fall with a source's weight, with tokens and with the size of the model."""
    lab = TinyLab(["a", "b"])
    assert lab.strata == {"a/0": 500_000, "a/1": 500_000, "b": 2_000_000}
    much = Proxy("much", {"name": "static", "weights": {"a": 0.9, "b": 0.1}})
    large = Proxy("large", much.mixer, settings={"model": {"preset": "large"}})
    first, again, second = lab.train([much, copy.deepcopy(much), large])
    assert first == again
    assert first.losses["a"] < first.losses["b"]
    assert second.parameters > first.parameters
    assert second.losses["a"] < first.losses["a"]
    losses = [row["a"] for _, row in first.curve]
    assert losses == sorted(losses, reverse=True)
    assert first.curve[-1] == (lab.proxy_steps, first.losses)
    [learnt] = lab.train([Proxy("one", {"name": "group-dro", "eta": 1.0})])
    assert learnt.state["sources"] == ["a", "b"]
    assert sum(learnt.state["weights"]) == pytest.approx(1)
    assert learnt.state["weights"][0] != pytest.approx(0.5)
