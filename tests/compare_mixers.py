"""Mixers for tests of comparing, named by module:Class; workers find them as well."""

from dograph.mixers.base import Mixer, Planner, Proxy
from dograph.types import Mixture


class Breaks(Mixer):
    """Fails at its first step."""

    def weigh(self, signals):
        raise ArithmeticError("this mixer breaks")


class Scout(Planner):
    """One proxy, whose worst source gets half of the weight."""

    def __init__(self, seed=0, steps=4):
        super().__init__()
        self.seed, self.steps = seed, steps

    def plan(self, lab):
        settings = {"train": {"steps": self.steps}}
        (found,) = lab.train([Proxy("scout", {"name": "uniform"}, self.seed, settings)])
        worst = max(found.losses, key=lambda name: found.losses[name])
        rest = 0.5 / (len(lab.tokens) - 1)
        self.findings = {"worst": worst, "notes": ["one proxy alone"], "advice": ["ask more"]}
        self.findings["surrogate"] = {"name": "linear"}
        return Mixture({name: 0.5 if name == worst else rest for name in lab.tokens})


class Hopeless(Planner):
    """Asks for a proxy that fails."""

    def plan(self, lab):
        lab.train([Proxy("hopeless", {"name": "compare_mixers:Breaks"})])
        raise AssertionError("the proxy cannot have ended")
