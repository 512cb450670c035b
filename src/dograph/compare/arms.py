"""The methods and seeds of a comparison, and the check that a folder holds only one comparison.

A method is a mixer with its options, under a label:

dograph                          a mixer by name
dograph[recipe=paper]            with options, parsed as YAML
paper=dograph[recipe=paper]      under a label
my_module:MyMixer[strength=2]    a mixer of your own
head=dograph[sketch.mode=head]   with its own settings of the sketch or the optimizer
all                              every method that can run with the settings
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dograph.config import RunConfig, merge, parse_config, parse_override
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, RunError
from dograph.files import write_json
from dograph.mixers.base import Mixer
from dograph.mixers.registry import MIXERS, build_mixer, mixer_class, require_mixer
from dograph.records import Skipped, read_record
from dograph.renamed import with_new_settings

Budget = Literal["tokens", "compute", "time"]
OWN = ("sketch", "optim")  # sections of the configuration that a method may set for itself
ASK = "ask.json"
LEAST_STEPS = 20  # of which 5 % is one
MAX_SETTINGS = 8  # shown of a method or proxy that only one side has


@dataclass(frozen=True, slots=True)
class ComparedMethod:
    """One row of the table. All settings but these are the same for all methods."""

    label: str
    mixer: Mapping[str, Any]  # name and options, as in a configuration
    own: Mapping[str, Any] = field(default_factory=dict)  # settings, of the sections in OWN
    of_all: bool = False  # left out if it cannot run: `without_unable`
    length: float = 1.0  # of its runs, over train.steps

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.label):
            raise ConfigError(
                f'the label "{self.label}" names a folder: use only letters, digits, dots, dashes '
                "and underscores, as in label=NAME"
            )

    def config(self, base: RunConfig) -> RunConfig:
        """The configuration `base` with this method's mixer and settings."""
        values = merge(base.model_dump(mode="json"), dict(self.own))
        config = parse_config(values | {"mixer": dict(self.mixer)}, f"method {self.label}")
        return stretched(config, round(self.length * config.train.steps))

    def at_rate(self, rate: float, base: RunConfig) -> "ComparedMethod":
        """With another highest learning rate; the first and the last keep their ratio to it."""
        optim = self.config(base).optim
        rates = {key: getattr(optim, key) * rate / optim.lr for key in ("lr_start", "lr_end")}
        return replace(self, own=merge(dict(self.own), {"optim": {"lr": rate, **rates}}))

    def built(self) -> Mixer:
        options = {name: value for name, value in self.mixer.items() if name != "name"}
        return build_mixer(self.mixer["name"], options)

    @property
    def is_planned(self) -> bool:
        """Whether proxies decide its mixture before training."""
        return mixer_class(self.mixer["name"]).needs_proxies

    @property
    def is_sketched(self) -> bool:
        """Whether its runs sketch gradients and can be probed; a planned mixture is only drawn."""
        return "sketch" in mixer_class(self.mixer["name"]).needs and not self.is_planned


def stretched(config: RunConfig, steps: int) -> RunConfig:
    """The same run with another number of steps; warm-up keeps its share of them."""
    if steps == config.train.steps:
        return config
    train = config.train.model_copy(update={"steps": steps})
    optim = config.optim.model_copy(update={"warmup_steps": config.warmup_over(steps)})
    return config.model_copy(update={"train": train, "optim": optim})


def parse_methods(
    text: str, base: RunConfig, baseline: str, short: Mapping[str, str] | None = None
) -> list[ComparedMethod]:
    """The methods named in `text`; the baseline comes first and is added if missing.

    A method with a label of its own replaces the one of `all` with that label. `short` has names
    for whole specifications.
    """
    short, methods = short or {}, list[ComparedMethod]()
    for part in (short.get(part, part) for part in _split(text)):
        if part == "all":
            methods += [replace(_named(name, base), of_all=True) for name in MIXERS]
        else:
            methods.append(_named(part, base))
    if not methods:
        raise ConfigError("--mixers names no mixer; give all, or names such as uniform,dograph")
    first = next((method for method in methods if method.label == baseline), None)
    first = first or _named(short.get(baseline, baseline), base)
    methods = [replace(first, of_all=False), *(own for own in methods if own is not first)]
    named = {method.label for method in methods if not method.of_all}
    methods = [own for own in methods if not own.of_all or own.label not in named]
    labels = [method.label for method in methods]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f'--mixers names "{twice[0]}" twice; give each a label of its own, as in '
            f"one={twice[0]},two={twice[0]}[option=value]"
        )
    for method in methods:  # rejects unknown names and options before anything is trained
        require_mixer(method.mixer["name"])
        if not method.of_all:
            method.config(base)
            method.built()
    return methods


def parse_seeds(text: str, first: int) -> list[int]:
    """`5`: five seeds from the configuration's seed on; `10,11,12`: these three; `7,`: one."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f'--seeds="{text}": give a number, or seeds such as 10,11,12')
    seeds = [int(part) for part in parts]
    if "," not in text:
        seeds = [first + offset for offset in range(seeds[0])]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f'--seeds="{text}": give at least one seed, each of them once')
    return seeds


def parse_rates(
    text: str, tune: Sequence[str], seeds: Sequence[int]
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Learning rates, and the settings of the runs that choose among them, on another seed."""
    settings = merge({}, *map(parse_override, tune))
    try:
        rates = tuple(sorted({float(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        rates = (-1.0,)
    if not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(f'--rates="{text}": give learning rates above 0, such as 5e-4,1e-3')
    if bool(rates) != bool(settings):
        raise ConfigError("--rates and --tune go together: --rates 5e-4,1e-3 --tune seed=100")
    if rates and (settings.get("seed") is None or settings["seed"] in seeds):
        shown = ", ".join(map(str, seeds))
        raise ConfigError(
            f"--tune needs a seed that is not compared ({shown} are), as in --tune seed=100: on "
            "the seed it was chosen on, a rate looks too good"
        )
    return rates, settings


def _named(text: str, base: RunConfig) -> ComparedMethod:
    """`LABEL=NAME[OPTIONS]`; the bare name of the configuration's mixer keeps its options."""
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
    own = {section: options[section] for section in OWN if section in options}
    mixer = {"name": name, **{key: options[key] for key in options if key not in own}}
    return ComparedMethod(label or slug, mixer, own)


def _split(text: str) -> list[str]:
    """At commas outside all brackets."""
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
    """A requested comparison; the first method is the baseline."""

    config: RunConfig  # of all cells, except mixer, seed and run; its corpus is a folder
    proxy: RunConfig | None  # what planned methods train in the lab; None: none is planned
    methods: tuple[ComparedMethod, ...]
    seeds: tuple[int, ...]
    budget: Budget
    replan: bool  # one plan per seed, instead of one for all seeds
    out: Path
    lab: Path
    rates: tuple[float, ...] = ()  # learning rates: each method gets its own best one
    tune: Mapping[str, Any] = field(default_factory=dict)  # settings of the runs that choose it
    command: str | None = None  # as the user typed it

    def __post_init__(self) -> None:
        if self.budget == "time" and (steps := self.config.train.steps) < LEAST_STEPS:
            raise ConfigError(
                f"train.steps={steps}: --match time also trains the baseline for 5 % more steps; "
                f"give at least {LEAST_STEPS}"
            )

    def record(self, corpus: Corpus) -> dict[str, Any]:
        """Everything that decides the numbers, as JSON values."""
        from dograph.plan.jobs import corpus_digest, numbers_of  # imports torch

        numbers = numbers_of(self.config)
        record = {
            "settings": {name: numbers[name] for name in numbers if name not in ("mixer", "seed")},
            "corpus": corpus_digest(corpus),
            "baseline": self.methods[0].label,
            "methods": {
                method.label: {"mixer": dict(method.mixer), "sketch": {}, **method.own}
                for method in self.methods
            },
            "seeds": list(self.seeds),
            "budget": self.budget,
            "replan": self.replan,
            "proxy": None if self.proxy is None else numbers_of(self.proxy),
            "rates": {"of": self.rates, "tune": self.tune} if self.rates else None,
        }
        return with_present_names(json.loads(json.dumps(record)))

    def take_folder(self, corpus: Corpus, *, shared: bool = False) -> None:
        """Start in an empty folder, or continue in one that holds this comparison.

        Seeds may be added, and methods unless they share a compute budget. A shared folder may hold
        more methods and seeds than requested: its record keeps them, and its baseline.
        """
        assert not (shared and self.budget == "compute"), "new methods would change others' steps"
        asked, file, stored = self.record(corpus), self.out / ASK, None
        if file.is_file():
            skipped = Skipped()
            if (stored := read_record(file, with_present_names, skipped)) is None:
                why = skipped.warnings()[0]
                raise RunError(f"{why}; restore it, or use another folder: --out {self.out}-2")
        elif self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out} is not empty and holds no comparison; use another --out")
        stored = stored or asked
        seeds = _union(stored["seeds"], asked["seeds"])
        labels = _union(list(stored["methods"]), list(asked["methods"]))

        def widened(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
            both = other["methods"] | own["methods"]  # a label that both have is compared below
            methods = {label: both[label] for label in labels}
            proxy = own["proxy"] or other["proxy"]
            return own | {"seeds": seeds, "methods": methods, "proxy": proxy}

        joined = stored if self.budget == "compute" else widened(stored, asked)
        if shared:
            own = widened(asked, stored) | {"baseline": stored["baseline"]}
        else:
            only_adds_seeds = set(stored["seeds"]) <= set(asked["seeds"])
            joined, own = joined | {"seeds": (asked if only_adds_seeds else stored)["seeds"]}, asked
        if lines := list(differences(joined, own)):
            raise RunError(
                f"{self.out} holds another comparison:\n  "
                + "\n  ".join(lines[:12])
                + f"\nUse the settings it was made with, or another folder: --out {self.out}-2"
            )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(file, joined if shared else asked)
        except OSError as error:
            raise RunError(
                f"--out={self.out} cannot be written: {error.strerror}; use another folder"
            ) from error


def with_present_names(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a comparison with settings under the names they have now."""
    methods = {label: with_new_settings(own) for label, own in record["methods"].items()}
    settings = {key: with_new_settings(record[key] or {}) or None for key in ("settings", "proxy")}
    return record | settings | {"methods": methods}


def _union(stored: list[Any], asked: list[Any]) -> list[Any]:
    """In the order requested if the request has all of them, else new ones come last."""
    wide, more = dict.fromkeys(asked), dict.fromkeys(stored)
    return list(wide if more.keys() <= wide.keys() else more | wide)


def differences(stored: Any, asked: Any, name: str = "") -> Iterator[str]:
    """One line per setting that differs: `train.steps: 60 stored, 90 requested`."""
    if isinstance(stored, Mapping) and isinstance(asked, Mapping):
        for key in sorted({*stored, *asked}):
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(stored.get(key), asked.get(key), inner)
    elif stored != asked:
        shown = []
        for side in (stored, asked):
            settings = [f"{key}={value}" if key else value for key, value in typed(side)]
            more = len(settings) - MAX_SETTINGS
            shown.append(" ".join(settings[:MAX_SETTINGS]) + (f" and {more} more" * (more > 0)))
        yield f"{name.removeprefix('settings.')}: {shown[0]} stored, {shown[1]} requested"


def typed(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names of settings with values as typed: `mixer.name`, `regmix`; `mixer.top`, `9`."""
    if isinstance(value, Mapping) and (value or name):
        for key, inner in value.items():
            yield from typed(inner, f"{name}.{key}" if name else str(key))
    elif value is None:
        yield name, "null" if name else "none"
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
