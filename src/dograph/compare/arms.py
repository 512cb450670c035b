"""What is asked of a comparison, and that a folder holds one comparison alone.

Methods to compare are mixers with their options, each under a label of its own:

dograph                          a mixer by name
dograph[recipe=paper]            with options, read as YAML
paper=dograph[recipe=paper]      under a label
my_module:MyMixer[strength=2]    anybody's mixer
all                              the seven of `ALL`
methods.yaml                     a file: label: {mixer: {...}, sketch: {...}}
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dograph.config import RunConfig, merge, parse_config, parse_override, read_yaml
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, RunError
from dograph.files import write_json
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer, require_mixer

Budget = Literal["tokens", "compute"]
ASK = "ask.json"
MOST_SETTINGS = 8  # told of what only one side has
ALL = ("uniform", "dynamic-loss", "doremi", "doge", "regmix", "mixing-law", "dograph")
OWN = ("mixer", "sketch")  # settings that a method may have of its own; pairing needs the rest


@dataclass(frozen=True, slots=True)
class ComparedMethod:
    """One row of the table."""

    label: str
    mixer: Mapping[str, Any]  # name and options, as in a configuration
    sketch: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.label):
            raise ConfigError(
                f'"{self.label}" names a folder, so it may have letters, digits, dots, dashes and '
                "underscores alone"
            )

    def config(self, base: RunConfig) -> RunConfig:
        """The run's configuration with this method in it."""
        values = merge(base.model_dump(mode="json"), {"sketch": dict(self.sketch)})
        return parse_config(values | {"mixer": dict(self.mixer)}, f"method {self.label}")

    def built(self) -> Mixer:
        options = {name: value for name, value in self.mixer.items() if name != "name"}
        return build_mixer(self.mixer["name"], options)

    @property
    def is_planned(self) -> bool:
        """Whether its mixture is made by proxies, before any run."""
        return self.built().needs_proxies

    @property
    def is_sketched(self) -> bool:
        """Whether its cells sketch gradients, and so can be probed; what is planned draws alone."""
        mixer = self.built()
        return "sketch" in mixer.needs and not mixer.needs_proxies


def parse_methods(text: str, base: RunConfig, baseline: str) -> list[ComparedMethod]:
    """The methods that `text` names; the baseline comes first, added where it is not named."""
    found: list[ComparedMethod] = []
    for part in _split(text):
        if Path(part).suffix in (".yaml", ".yml"):
            for label, content in read_yaml(Path(part)).items():
                found.append(_from_file(part, str(label), content, base))
        else:
            found += [_named(name, base) for name in (ALL if part == "all" else (part,))]
    if not found:
        raise ConfigError("--mixers names no mixer; give all, or names such as uniform,dograph")
    first = next((method for method in found if method.label == baseline), None)
    first = first or _named(baseline, base)
    found = [first, *(method for method in found if method is not first)]
    times = Counter(method.label for method in found)
    if twice := sorted(label for label in times if times[label] > 1):
        raise ConfigError(
            f'--mixers names "{twice[0]}" twice; tell them apart by labels, as in '
            f"one={twice[0]},two={twice[0]}[option=value]"
        )
    for method in found:
        require_mixer(method.mixer["name"])
    for method in found:  # refuses wrong names and options now
        method.config(base)
        method.built()
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


def _named(text: str, base: RunConfig) -> ComparedMethod:
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
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", derived).strip("-.")
    return ComparedMethod(label or slug, {"name": name, **options})


def _from_file(file: str, label: str, content: Any, base: RunConfig) -> ComparedMethod:
    if isinstance(content, str):
        return _named(f"{label}={content}", base)
    mixer = content.get("mixer") if isinstance(content, Mapping) else None
    if not isinstance(mixer, Mapping) or "name" not in mixer or set(content) - set(OWN):
        raise ConfigError(
            f"{file}: {label} must be a mixer's name or hold `mixer: {{name: ...}}` and "
            f"perhaps `sketch`, got {content!r}. Other settings are the same for all methods"
        )
    return ComparedMethod(label, dict(mixer), dict(content.get("sketch") or {}))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of a comparison; the first method is the baseline."""

    config: RunConfig  # of all cells, but for mixer, seed and run; its corpus is a folder
    proxy: RunConfig | None  # what planned methods train in the lab; None: none is planned
    methods: tuple[ComparedMethod, ...]
    seeds: tuple[int, ...]
    budget: Budget
    replan: bool  # a plan for each seed, instead of one for all
    out: Path
    lab: Path
    command: str | None = None  # what the user typed

    def record(self, corpus: Corpus) -> dict[str, Any]:
        """All that decides the numbers, as it comes back from a file."""
        from dograph.plan.jobs import corpus_digest, numbers_of  # not before names are checked

        numbers = numbers_of(self.config)
        asked = {
            "settings": {name: numbers[name] for name in numbers if name not in ("mixer", "seed")},
            "corpus": corpus_digest(corpus),
            "baseline": self.methods[0].label,
            "methods": {
                method.label: {"mixer": dict(method.mixer), "sketch": dict(method.sketch)}
                for method in self.methods
            },
            "seeds": list(self.seeds),
            "budget": self.budget,
            "replan": self.replan,
            "proxy": None if self.proxy is None else numbers_of(self.proxy),
        }
        plain: dict[str, Any] = json.loads(json.dumps(asked))
        return plain

    def take_folder(self, corpus: Corpus) -> "Ask":
        """Begin in an empty folder, or go on in one that holds this comparison.

        Seeds may be added, and methods where they do not share a budget.
        """
        asked, there = self.record(corpus), self._there()
        grown = dict(asked if there is None else there)
        if set(grown["seeds"]) <= set(asked["seeds"]):
            grown["seeds"] = asked["seeds"]
        if asked["budget"] == "tokens":
            grown["methods"] = asked["methods"] | grown["methods"]
            grown["proxy"] = grown["proxy"] or asked["proxy"]
        self._write(asked, grown, asked)
        return self

    def join_folder(self, corpus: Corpus) -> "Ask":
        """As take_folder, where the folder may hold more than is asked: both together.

        Methods and seeds of the folder stay, and its baseline is theirs. What both have must be
        the same, and so must all settings.
        """
        assert self.budget == "tokens", "methods that share a budget decide each other's steps"
        asked, there = self.record(corpus), self._there()
        if there is None:
            self._write(asked, asked, asked)
            return self
        # Each with what only the other has: where they differ now, they contradict each other.
        labels = _both(list(there["methods"]), list(asked["methods"]))
        same = {"seeds": _both(there["seeds"], asked["seeds"]), "baseline": there["baseline"]}
        sides = []
        for own, other in ((there, asked), (asked, there)):
            specs, proxy = other["methods"] | own["methods"], own["proxy"] or other["proxy"]
            methods = {label: specs[label] for label in labels}
            sides.append(own | same | {"methods": methods, "proxy": proxy})
        joined, as_asked = sides
        self._write(joined, joined, as_asked)
        mine = {method.label: method for method in self.methods}
        both = [
            mine.get(label) or ComparedMethod(label, spec["mixer"], spec["sketch"])
            for label, spec in joined["methods"].items()
        ]
        both.sort(key=lambda method: method.label != joined["baseline"])
        return replace(self, methods=tuple(both), seeds=tuple(joined["seeds"]))

    def _there(self) -> dict[str, Any] | None:
        """What the folder was asked; None where it is empty or not there."""
        file = self.out / ASK
        if file.is_file():
            there: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return there
        if self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out} is not empty and holds no comparison; name another --out")
        return None

    def _write(self, record: dict[str, Any], there: Any, asked: Any) -> None:
        """Write what the folder holds from now on, unless what is there contradicts the ask."""
        if different := list(_differences(there, asked)):
            raise RunError(
                f"{self.out} holds another comparison:\n  "
                + "\n  ".join(different[:12])
                + f"\nGive what it was made with, or name another folder: --out {self.out}-2"
            )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(self.out / ASK, record)
        except OSError as error:
            raise RunError(
                f"--out={self.out} cannot be written: {error.strerror}; name another folder"
            ) from error


def _both(there: list[Any], asked: list[Any]) -> list[Any]:
    """All of them, in the order of what is asked if that has all."""
    wide, more = dict.fromkeys(asked), dict.fromkeys(there)
    return list(wide if more.keys() <= wide.keys() else more | wide)


def _differences(there: Any, asked: Any, name: str = "") -> Iterator[str]:
    if isinstance(there, Mapping) and isinstance(asked, Mapping):
        for key in sorted({*there, *asked}):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(there.get(key), asked.get(key), inner)
    elif there != asked:
        told = []
        for side in (there, asked):
            settings = list(_settings(side))
            more = len(settings) - MOST_SETTINGS
            left = f" and {more} more" if more > 0 else ""
            told.append(" ".join(settings[:MOST_SETTINGS]) + left)
        yield f"{name.removeprefix('settings.')}: {told[0]} there, {told[1]} asked"


def _settings(value: Any, name: str = "") -> Iterator[str]:
    """As a user would type it: `mixer.name=regmix`, `mixer.num_proxies=9`; `0.002`, `true`."""
    if isinstance(value, Mapping) and (value or name):
        for key, own in value.items():
            yield from _settings(own, f"{name}.{key}" if name else str(key))
    else:
        typed = "null" if name else "none"
        if value is not None:
            typed = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{name}={typed}" if name else typed
