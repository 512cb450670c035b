"""What is asked of a comparison, and that a folder holds one comparison alone."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dograph.compare.methods import Method
from dograph.corpus.corpus import Corpus
from dograph.errors import RunError
from dograph.files import write_json
from dograph.lab.keys import corpus_digest, numbers_of
from dograph.training.config import RunConfig

Budget = Literal["tokens", "compute"]
ASK = "ask.json"


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
        file, asked = self.out / ASK, json.loads(json.dumps(self.record(corpus)))
        if file.is_file():
            there = json.loads(file.read_text(encoding="utf-8"))
            if different := list(_differences(_bounded(there, asked), asked)):
                raise RunError(
                    f"{self.out} holds another comparison:\n  "
                    + "\n  ".join(different[:12])
                    + f"\nGive what it was made with, or name another folder: --out {self.out}-2"
                )
        elif self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out} is not empty and holds no comparison; name another --out")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(file, asked)
        except OSError as error:
            raise RunError(
                f"--out={self.out} cannot be written: {error.strerror}; name another folder"
            ) from error


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
        yield f"{name.removeprefix('settings.')}: {there} there, {asked} asked"
