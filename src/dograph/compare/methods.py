"""Which methods are compared: mixers with their options, each under a label of its own.

dograph                          a mixer by name
dograph[recipe=paper]            with options, read as YAML
paper=dograph[recipe=paper]      under a label
my_module:MyMixer[strength=2]    anybody's mixer
all                              the seven of `ALL`
methods.yaml                     a file: label: {mixer: {...}, sketch: {...}}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dograph.config import RunConfig, parse_config, read_yaml
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer, Planner
from dograph.mixers.registry import build_mixer, require_mixer
from dograph.presets import merge, parse_override

ALL = ("uniform", "dynamic-loss", "doremi", "doge", "regmix", "mixing-law", "dograph")
OWN = ("mixer", "sketch")  # settings that a method may have of its own; pairing needs the rest
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the table."""

    label: str
    mixer: Mapping[str, Any]  # name and options, as in a configuration
    sketch: Mapping[str, Any] = field(default_factory=dict)

    def config(self, base: RunConfig) -> RunConfig:
        """The run's configuration with this method in it."""
        values = merge(base.model_dump(mode="json"), {"sketch": dict(self.sketch)})
        return parse_config(values | {"mixer": dict(self.mixer)}, f"method {self.label}")

    @property
    def is_planned(self) -> bool:
        """Whether its mixture is made by proxies, before any run."""
        return isinstance(self._built(), Planner)

    @property
    def is_sketched(self) -> bool:
        """Whether its cells sketch gradients, and so can be probed; what is planned draws alone."""
        mixer = self._built()
        return "sketch" in mixer.needs and not isinstance(mixer, Planner)

    def _built(self) -> Mixer:
        options = {name: value for name, value in self.mixer.items() if name != "name"}
        return build_mixer(self.mixer["name"], options)


def parse_methods(text: str, base: RunConfig, baseline: str) -> list[Method]:
    """The methods that `text` names; the baseline comes first, added where it is not named."""
    found: list[Method] = []
    for part in _split(text):
        if part == "all":
            found += [_named(name, base) for name in ALL]
        elif Path(part).suffix in (".yaml", ".yml"):
            found += _from_file(Path(part), base)
        else:
            found.append(_named(part, base))
    if not found:
        raise ConfigError("--mixers names no mixer; give all, or names such as uniform,dograph")
    first = next((method for method in found if method.label == baseline), None)
    first = first or _named(baseline, base)
    found = [first, *(method for method in found if method is not first)]
    labels = [method.label for method in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f'--mixers names "{twice[0]}" twice; tell them apart by labels, as in '
            f"one={twice[0]},two={twice[0]}[option=value]"
        )
    for method in found:
        require_mixer(method.mixer["name"])
    for method in found:
        method.config(base)
        method.is_planned  # noqa: B018  refuses wrong names and options now
    return found


def parse_seeds(text: str, first: int) -> list[int]:
    """`5` is five seeds from the configuration's own on; `10,11,12` is these three, `7,` is one."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f'--seeds="{text}": give a number, or seeds such as 10,11,12')
    numbers = [int(part) for part in parts]
    if "," not in text:
        numbers = [first + offset for offset in range(numbers[0])]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f'--seeds="{text}": give at least one seed, and none of them twice')
    return numbers


def _named(text: str, base: RunConfig) -> Method:
    """`LABEL=NAME[OPTIONS]`; a bare name that is the configuration's own mixer has its options."""
    match = re.fullmatch(r"(?:([^=\[\]]+)=)?([^=\[\]]+)(?:\[(.*)\])?", text, re.DOTALL)
    if match is None:
        raise ConfigError(
            f'--mixers: "{text}" is not a mixer; write NAME, NAME[OPTION=VALUE,...] or '
            "LABEL=NAME[...]"
        )
    label, name, inside = match.groups()
    options = merge({}, *(parse_override(option) for option in _split(inside or "")))
    if inside is None and name == base.mixer.name:
        options = base.mixer.options
    derived = name if inside is None else f"{name}-{inside}"
    return Method(_checked(label or _slug(derived)), {"name": name, **options})


def _from_file(path: Path, base: RunConfig) -> list[Method]:
    found = []
    for label, content in read_yaml(path).items():
        if isinstance(content, str):
            found.append(_named(f"{label}={content}", base))
            continue
        mixer = content.get("mixer") if isinstance(content, Mapping) else None
        if not isinstance(mixer, Mapping) or "name" not in mixer or set(content) - set(OWN):
            raise ConfigError(
                f"{path}: {label} must be a mixer's name or hold `mixer: {{name: ...}}` and "
                f"perhaps `sketch`, got {content!r}. Other settings are the same for all methods"
            )
        found.append(Method(_checked(str(label)), dict(mixer), dict(content.get("sketch") or {})))
    return found


def _split(text: str) -> list[str]:
    """At the commas outside of all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise ConfigError(f'"{text}" has a bracket that is not closed')
    return [part.strip() for part in parts if part.strip()]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")


def _checked(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f'"{label}" names a folder, so it may have letters, digits, dots, dashes and '
            "underscores alone"
        )
    return label
