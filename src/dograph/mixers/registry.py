"""Mixers by name: ours, or anybody's by `module:Class`."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import SIGNALS, Mixer
from dograph.mixers.doge import DoGE
from dograph.mixers.doge_proxy import DoGEProxy
from dograph.mixers.dograph import DoGraph
from dograph.mixers.doremi import DoReMi
from dograph.mixers.doremi_proxy import DoReMiProxy
from dograph.mixers.dynamic_loss import DynamicLoss
from dograph.mixers.fixed import Scheduled, Static, Uniform, UniMax
from dograph.mixers.group_dro import GroupDRO
from dograph.mixers.mixing_law import MixingLaw
from dograph.mixers.regmix import RegMix

MIXERS: dict[str, type[Mixer]] = {
    "dograph": DoGraph,
    "natural": Mixer,
    "uniform": Uniform,
    "static": Static,
    "scheduled": Scheduled,
    "unimax": UniMax,
    "dynamic-loss": DynamicLoss,
    "group-dro": GroupDRO,
    "doremi": DoReMi,
    "doremi-proxy": DoReMiProxy,
    "doge": DoGE,
    "doge-proxy": DoGEProxy,
    "regmix": RegMix,
    "mixing-law": MixingLaw,
}


def build_mixer(name: str, options: Mapping[str, Any]) -> Mixer:
    """The mixer `name` with `options` as its arguments."""
    kind = _load(name) if ":" in name else MIXERS.get(name)
    if kind is None:
        raise ConfigError(
            f'mixer.name="{name}" is not known; {did_you_mean(name, MIXERS)} '
            "Your own mixer is named module:Class."
        )
    parameters = {} if kind.__init__ is object.__init__ else inspect.signature(kind).parameters
    known = set(parameters)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())  # it checks them itself
    for option in options:
        if option not in known and not open_ended:
            allowed = did_you_mean(option, known) if known else "it takes no options"
            raise ConfigError(f"mixer.{option} is not an option of {name}; {allowed}")
    try:
        return kind(**options)
    except TypeError as error:
        raise ConfigError(f"mixer {name}: {error}") from error


def _load(name: str) -> type[Mixer]:
    module_name, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not look in the current directory
        sys.path.insert(0, here)
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'mixer.name="{name}": no module "{error.name}" in {here} or the environment'
        ) from error
    except AttributeError:
        raise ConfigError(
            f'mixer.name="{name}": module {module_name} has no class "{class_name}"'
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, Mixer)):
        raise ConfigError(f'mixer.name="{name}" must name a subclass of dograph.Mixer, got {kind}')
    if unknown := kind.needs - SIGNALS:
        raise ConfigError(
            f"{name} needs {sorted(unknown)}, which no step computes; allowed: {sorted(SIGNALS)}"
        )
    return kind
