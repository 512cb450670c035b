"""Mixtures known before training: uniform, static, scheduled, UniMax. All count samples alike."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Mixer
from dograph.types import Mixture, Signals


class Uniform(Mixer):
    """Equal weight for every source, however large."""

    def plan(self, lab: Lab) -> Mixture:
        return Mixture.normalised(dict.fromkeys(lab.tokens, 1.0))


class Static(Mixer):
    """Weights given by hand, or by a mixture file. Sources left out are not drawn."""

    def __init__(self, file: str | None = None, weights: Mapping[str, float] | None = None) -> None:
        if (file is None) == (weights is None):
            raise ConfigError(
                "the static mixer needs mixer.file (a mixture file) or mixer.weights (source: "
                f"weight), and not both; got file={file!r}, weights={weights!r}"
            )
        self.mixture = read_mixture(Path(file)) if file else as_mixture(weights, "mixer.weights")

    def plan(self, lab: Lab) -> Mixture:
        return self.mixture


class Scheduled(Mixer):
    """A mixture by step: each stage holds from its step until the next."""

    def __init__(self, stages: Mapping[int | str, Mapping[str, float] | str]) -> None:
        if not isinstance(stages, Mapping):
            raise ConfigError(f"mixer.stages must be a mapping of step: mixture, got {stages!r}")
        self.stages: dict[int, Mixture] = {}
        for key, stage in stages.items():
            name = f"mixer.stages.{key}"
            if not str(key).isdecimal():
                raise ConfigError(f"{name}: a stage is keyed by its first step, got {key!r}")
            self.stages[int(key)] = (
                read_mixture(Path(stage)) if isinstance(stage, str) else as_mixture(stage, name)
            )
        if 0 not in self.stages:
            raise ConfigError(
                f"mixer.stages must say what to draw from step 0; it has steps {sorted(stages)}"
            )

    def plan(self, lab: Lab) -> Mixture:
        return self.stages[0]

    def remix(self, signals: Signals) -> Mixture | None:
        return self.stages.get(signals.step + 1)

    def schedule(self) -> Mapping[int, Mixture]:
        return self.stages


class UniMax(Mixer):
    """As uniform as `max_epochs` repeats allow (Chung et al. 2023, Algorithm 1).

    From the smallest source up, each takes an equal share of the budget that is left, but no more
    than `max_epochs` times its own tokens.
    """

    def __init__(self, max_epochs: float = 4.0) -> None:
        if not (math.isfinite(max_epochs) and max_epochs > 0):
            raise ConfigError(f"mixer.max_epochs must be > 0, got {max_epochs}")
        self.max_epochs = max_epochs

    def plan(self, lab: Lab) -> Mixture:
        left = float(lab.budget)
        share: dict[str, float] = {}
        ascending = sorted(lab.tokens, key=lambda name: (lab.tokens[name], name))
        for done, name in enumerate(ascending):
            share[name] = min(left / (len(ascending) - done), self.max_epochs * lab.tokens[name])
            left -= share[name]
        return Mixture.normalised({name: share[name] for name in lab.tokens})


def inlined(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a static or scheduled mixer with the mixture files they name read in."""
    settled = dict(options)
    if isinstance(file := options.get("file"), str):
        settled = {"weights": dict(read_mixture(Path(file)).weights)}
    if isinstance(stages := options.get("stages"), Mapping):
        settled["stages"] = {
            step: dict(read_mixture(Path(stage)).weights) if isinstance(stage, str) else stage
            for step, stage in stages.items()
        }
    return settled


def as_mixture(weights: Any, where: str) -> Mixture:
    """A mixture from YAML; weights are divided by their sum."""
    if not isinstance(weights, Mapping) or not weights:
        raise ConfigError(f"{where} must be a mapping of source: weight, got {weights!r}")
    try:
        return Mixture.normalised({str(name): float(value) for name, value in weights.items()})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} must hold numbers >= 0: {error}") from error


def read_mixture(path: Path) -> Mixture:
    """A mixture file: YAML with `weights: {source: weight}`; other keys tell where it is from."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the mixture file {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, Mapping) or "weights" not in content:
        raise ConfigError(
            f"{path} has no `weights`; a mixture file looks like:\nweights:\n  C4: 0.7\n  Book: 0.3"
        )
    return as_mixture(content["weights"], f"{path}: weights")
