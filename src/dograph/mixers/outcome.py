"""What a proxy learnt of its sources' weights, read from the state in which its mixer ended.

Shapes: S sources, N points of the path.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dograph.errors import ConfigError
from dograph.mixers.source_weights import point_before
from dograph.types import Mixture

Weights = dict[str, float]

STILL_MOVING = 0.05  # L1 of the average's last tenth of the steps above which we say so
FEW_SOURCES = 1.5  # effective number of sources below which weights are called nearly one-hot


@dataclass(frozen=True, slots=True)
class Outcome:
    """The weights a proxy came to, and how it came to them."""

    average: Weights
    last: Weights
    drift: float | None  # L1 distance the average moved in the last tenth; None: too short a run
    trajectory: list[dict[str, Any]]  # at most 50 points: steps made, weights, their average

    @classmethod
    def of(cls, state: Mapping[str, Any], sources: Sequence[str] | None = None) -> "Outcome":
        """From a mixer's state with tensors as lists; of `sources` alone, where given."""
        names, every, count = state["sources"], state["every"], state["count"]
        kept = names if sources is None else sources
        before = int(state["counts_first"])

        def named(weight_S: Sequence[float]) -> Weights:
            return {name: w for name, w in zip(names, weight_S, strict=True) if name in kept}

        averages = [named(average_S) for average_S in state["path_averages"] if average_S]
        path = zip(state["path_weights"], averages, strict=False)
        average, index = named(state["average"]), point_before(count, every)
        return cls(
            average=average,
            last=named(state["weights"]),
            drift=None if index is None else distance(average, averages[index]),
            trajectory=[
                {"steps": (n + 1) * every - before, "weights": named(weight_S), "average": mean}
                for n, (weight_S, mean) in enumerate(path)
            ],
        )

    @property
    def mixture(self) -> Mixture:
        return Mixture.normalised(self.average)

    @property
    def entropy(self) -> float:
        return -math.fsum(w * math.log(w) for w in self.average.values() if w > 0)

    @property
    def effective_sources(self) -> float:
        """How many equal weights would have this entropy."""
        return math.exp(self.entropy)

    def findings(self) -> dict[str, Any]:
        """JSON diagnostics."""
        return {
            "weights": self.average,
            "last": self.last,
            "drift": self.drift,
            "entropy_nats": self.entropy,
            "effective_sources": self.effective_sources,
            "trajectory": self.trajectory,
        }

    def advice(self, remedy: str) -> list[str]:
        """What to mend, if anything: `remedy` says how weights are made to move less."""
        advice = []
        if self.drift is not None and self.drift > STILL_MOVING:
            advice.append(
                f"the averaged weights still moved by {self.drift:.3f} (L1) in the last tenth of "
                "the proxy's steps: train the proxy longer"
            )
        if len(self.average) > 1 and self.effective_sources < FEW_SOURCES:
            top = max(self.average, key=lambda name: self.average[name])
            advice.append(
                f"nearly all weight is on {top} ({self.average[top]:.2f}; "
                f"{self.effective_sources:.2f} effective sources): {remedy}"
            )
        return advice


def distance(one: Weights, other: Weights) -> float:
    """L1: the sum of absolute differences."""
    return math.fsum(abs(one[name] - other[name]) for name in one)


def sensitivity(values: Sequence[float], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How far the result is from that of the first value, for each value of an option."""
    return [
        {"value": value, "weights": outcome.average, "l1": distance(outcome.average, first.average)}
        for first in outcomes[:1]
        for value, outcome in zip(values, outcomes, strict=True)
    ]


def as_values(option: str, given: Any) -> list[float]:
    """One value of an option, or several to see how much hangs on it."""
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"mixer.{option} must be a number or a list of different ones: {given!r}")
    return values
