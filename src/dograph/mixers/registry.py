"""Mixers by name: the built-in ones, or your own by `module:Class`.

They are imported when one is built, so that a misspelled name is refused before torch is imported.
"""

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dograph.choices import mode_conflicts
from dograph.config import RunConfig
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import SIGNALS, Mixer, Planner

PLANNERS = {  # subclasses of Planner: their plans need proxies
    "doremi": "dograph.mixers.doremi:DoReMi",
    "doge": "dograph.mixers.doge:DoGE",
    "regmix": "dograph.mixers.sweep:RegMix",
    "mixing-law": "dograph.mixers.sweep:MixingLaw",
}
PROXIES = {  # what those plans train; not methods by themselves
    "doremi-proxy": "dograph.mixers.doremi:DoReMiProxy",
    "doge-proxy": "dograph.mixers.doge:DoGEProxy",
}
MIXERS = {
    "dograph": "dograph.mixers.dograph:DoGraph",
    "natural": "dograph.mixers.base:Mixer",
    "uniform": "dograph.mixers.fixed:Uniform",
    "static": "dograph.mixers.fixed:Static",
    "scheduled": "dograph.mixers.fixed:Scheduled",
    "unimax": "dograph.mixers.fixed:UniMax",
    "domain2vec": "dograph.mixers.domain2vec:Domain2Vec",
    "dsir": "dograph.mixers.dsir:DSIR",
    "toward": "dograph.mixers.toward:Toward",
    "dynamic-loss": "dograph.mixers.dynamic_loss:DynamicLoss",
    "group-dro": "dograph.mixers.group_dro:GroupDRO",
    "ado": "dograph.mixers.ado:ADO",
    "odm": "dograph.mixers.online:ODM",
    "rb": "dograph.mixers.rb:RB",
    **PROXIES,
    **PLANNERS,
}


def require_mixer(name: str) -> None:
    """Refuse an unknown name; module:Class is checked when it is built."""
    if ":" not in name and name not in MIXERS:
        raise ConfigError(
            f'mixer.name="{name}" is not known (a mixer of your own is named module:Class); '
            f"{did_you_mean(name, MIXERS)}"
        )


def require_method(name: str) -> None:
    """Refuse a mixer that plans without proxies, and an unknown name."""
    if ":" in name or name in PLANNERS:
        return
    if name in MIXERS:
        raise ConfigError(
            f"{name} makes no plan; train with mixer.name={name}. Methods that make one: "
            f"{', '.join(sorted(PLANNERS))}"
        )
    raise ConfigError(f'there is no method "{name}"; {did_you_mean(name, PLANNERS)}')


def mixer_class(name: str) -> type[Mixer]:
    """The class of a mixer."""
    require_mixer(name)
    module_name, _, class_name = MIXERS.get(name, name).partition(":")
    here = str(Path.cwd())
    if name not in MIXERS and here not in sys.path:  # console scripts do not have it there
        sys.path.insert(0, here)
    try:
        kind: Any = getattr(importlib.import_module(module_name), class_name)
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


def build_planner(name: str, options: Mapping[str, Any]) -> Planner:
    """The mixer `name`, if it plans with proxies."""
    require_method(name)
    mixer = build_mixer(name, options)
    if not isinstance(mixer, Planner):
        raise ConfigError(f"{name} makes no plan: it is no subclass of Planner")
    return mixer


def build_mixer(name: str, options: Mapping[str, Any]) -> Mixer:
    """The mixer `name` with `options` as its arguments."""
    kind = mixer_class(name)
    known = {} if kind.__init__ is object.__init__ else inspect.signature(kind).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())  # it checks them itself
    for option in () if takes_any else options:
        if option not in known:
            allowed = did_you_mean(option, known) if known else "it takes no options"
            raise ConfigError(f"mixer.{option} is not an option of {name}; {allowed}")
    try:
        return kind(**options)
    except TypeError as error:
        raise ConfigError(f"mixer {name}: {error}") from error


def require_compatible(config: RunConfig, mixer: Mixer, processes: int = 1) -> None:
    """Refuse settings that do not work with the mixer, or with the number of processes."""
    train, sketch, sizes = config.train, config.sketch, [x.size for x in config.batches.phases]
    if min(sizes) < processes:  # perhaps of the last step, which has what is left of train.steps
        raise ConfigError(
            f"train.batch_size={train.batch_size} at train.steps={train.steps} has steps of "
            f"{min(sizes)} samples, which cannot be shared by {processes} processes; raise it or "
            "start fewer"
        )
    # FSDP2 gathers on all ranks at once, so all need the same number of micro-batches; larger
    # micro-batches can be divided evenly.
    if train.shard and train.micro_batch_size == 1 and any(size % processes for size in sizes):
        raise ConfigError(
            f"train.shard=true with train.micro_batch_size=1 and train.batch_size="
            f"{train.batch_size} on {processes} processes: some would have one micro-batch more "
            "than others; make train.batch_size a multiple of the processes, or "
            "train.micro_batch_size 2 or more"
        )
    needed = f"mixer.name={config.mixer.name}" if "sketch" in mixer.needs else ""
    if not needed and train.on_spike is None:
        return
    for refusal in mode_conflicts(sketch.mode, sketch.projection, shards=train.shard, of="sketch."):
        raise ConfigError(f"{needed or 'train.on_spike'} needs sketches, and {refusal}")
    if needed and sketch.accumulation == "lagged" and (why := mixer.refuses_lagged()) is not None:
        raise ConfigError(
            f"sketch.accumulation=lagged with mixer.name={config.mixer.name}, which {why}; or use "
            "sketch.accumulation=two_sweeps, or keep (mode full)"
        )
