"""What is asked of a comparison, and that a folder holds one comparison alone."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from dograph.compare.methods import Method
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import RunError
from dograph.files import write_json
from dograph.plan.keys import corpus_digest, numbers_of

Budget = Literal["tokens", "compute"]
Name = TypeVar("Name")
ASK = "ask.json"
MOST_SETTINGS = 8  # told of what only one side has


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The first method is the baseline."""

    config: RunConfig  # of all cells, but for mixer, seed and run; its corpus is a folder
    proxy: RunConfig | None  # what planned methods train in the lab; None: none is planned
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    budget: Budget
    replan: bool  # a plan for each seed, instead of one for all
    out: Path
    lab: Path
    command: str | None = None  # what the user typed

    def record(self, corpus: Corpus) -> dict[str, Any]:
        """All that decides the numbers."""
        numbers = numbers_of(self.config)
        proxy = None if self.proxy is None else numbers_of(self.proxy)
        return {
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
            "proxy": proxy,
        }

    def take_folder(self, corpus: Corpus) -> None:
        """Begin in an empty folder, or go on in one that holds this comparison."""
        asked, there = self._plain(corpus), self._there()
        if there is not None:
            self._refuse_unlike(_bounded(there, asked), asked)
        self._write(asked)

    def join_folder(self, corpus: Corpus) -> "Ask":
        """As take_folder, where the folder may hold more than is asked: both together.

        Methods and seeds of the folder stay, and its baseline is theirs. What both have must be
        the same, and so must all settings.
        """
        assert self.budget == "tokens", "methods that share a budget decide each other's steps"
        asked, there = self._plain(corpus), self._there()
        if there is None:
            self._write(asked)
            return self
        joined, as_asked = _joined(there, asked)
        self._refuse_unlike(joined, as_asked)
        self._write(joined)
        mine = {method.label: method for method in self.methods}
        methods = [
            mine.get(label) or Method(label, spec["mixer"], spec["sketch"])
            for label, spec in joined["methods"].items()
        ]
        methods.sort(key=lambda method: method.label != joined["baseline"])
        return replace(self, methods=tuple(methods), seeds=tuple(joined["seeds"]))

    def _plain(self, corpus: Corpus) -> dict[str, Any]:
        """The record as it comes back from a file."""
        plain: dict[str, Any] = json.loads(json.dumps(self.record(corpus)))
        return plain

    def _there(self) -> dict[str, Any] | None:
        """What the folder was asked; None where it is empty or not there."""
        file = self.out / ASK
        if file.is_file():
            there: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return there
        if self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out} is not empty and holds no comparison; name another --out")
        return None

    def _refuse_unlike(self, there: dict[str, Any], asked: dict[str, Any]) -> None:
        if different := list(_differences(there, asked)):
            raise RunError(
                f"{self.out} holds another comparison:\n  "
                + "\n  ".join(different[:12])
                + f"\nGive what it was made with, or name another folder: --out {self.out}-2"
            )

    def _write(self, asked: dict[str, Any]) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(self.out / ASK, asked)
        except OSError as error:
            raise RunError(
                f"--out={self.out} cannot be written: {error.strerror}; name another folder"
            ) from error


def _joined(there: dict[str, Any], asked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each with what only the other has: where they differ now, they contradict each other."""
    labels = _both(there["methods"], asked["methods"])
    same = {"seeds": _both(there["seeds"], asked["seeds"]), "baseline": there["baseline"]}
    sides = []
    for own, other in ((there, asked), (asked, there)):
        specs = other["methods"] | own["methods"]
        methods = {label: specs[label] for label in labels}
        proxy = own["proxy"] or other["proxy"]
        sides.append(own | same | {"methods": methods, "proxy": proxy})
    return sides[0], sides[1]


def _both(there: Iterable[Name], asked: Iterable[Name]) -> list[Name]:
    """All of them, in the order of what is asked if that has all."""
    wide, more = dict.fromkeys(asked), dict.fromkeys(there)
    return list(wide if more.keys() <= wide.keys() else more | wide)


def _bounded(there: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What may grow taken as grown: seeds, and methods where they do not share a budget."""
    grown = dict(there)
    if set(there["seeds"]) <= set(asked["seeds"]):
        grown["seeds"] = asked["seeds"]
    if asked["budget"] == "tokens":
        new = {k: v for k, v in asked["methods"].items() if k not in there["methods"]}
        grown["methods"] = there["methods"] | new
        if there["proxy"] is None:
            grown["proxy"] = asked["proxy"]
    return grown


def _differences(there: Any, asked: Any, name: str = "") -> Iterator[str]:
    if isinstance(there, Mapping) and isinstance(asked, Mapping):
        for key in sorted({*there, *asked}):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(there.get(key), asked.get(key), inner)
    elif there != asked:
        yield f"{name.removeprefix('settings.')}: {_typed(there)} there, {_typed(asked)} asked"


def _typed(value: Any) -> str:
    """As a user would type it: `mixer.name=regmix mixer.num_proxies=9`, `0.002`, `true`."""
    if value is None:
        return "none"
    if isinstance(value, Mapping) and (settings := list(_settings(value))):
        more = len(settings) - MOST_SETTINGS
        return " ".join(settings[:MOST_SETTINGS]) + (f" and {more} more" if more > 0 else "")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _settings(values: Mapping[str, Any], under: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{under}{key}.")
        else:
            typed = "null" if value is None else _typed(value)
            yield f"{under}{key}={typed}"
