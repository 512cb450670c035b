"""Mixture files, and what is asked of published mixtures."""

import json
import math
import random
from pathlib import Path

from dograph.mixtures.export import FORMATS
from dograph.mixtures.file import PRESETS
from fuzz.harness import command, damaged, register, value

GOOD = b"""weights:
  C4: 0.7
  Book: 0.3
provenance:
  method: regmix
  made_by: dograph 0.1
  tokenizer_name: gpt2
  vocab_size: 50257
  seq_len: 512
  target_tokens: 1000000
  seeds: [1, 2]
  proxy: {model: tiny, steps: 30}
findings: {predicted: {C4: 2.5, Book: 3.0}, runs: 12}
"""
NAMES = ("C4", "Book", "a/b", "", "yes", "~", "x y", "'quoted'", "[a]", "{b}", "é", "../up", "a=b")
Case = tuple[bytes, str, str]


def mixture(rng: random.Random) -> Case:
    """A file, what it is exported to, and an option."""
    content = GOOD if rng.random() < 0.1 else damaged(rng, GOOD)
    if rng.random() < 0.4:
        pairs = [f"  {rng.choice(NAMES)}: {value(rng)}" for _ in range(rng.randrange(4))]
        content = "\n".join(["weights:", *pairs, ""]).encode(errors="surrogatepass")
    option = rng.choice(("", "--place", "--size"))
    given = f"{rng.choice(NAMES)}={value(rng)}".replace("\0", "") if option else ""
    return content, rng.choice([*FORMATS, "json", "nowhere"]), f"{option} {given}".strip()


def export(case: Case, folder: Path) -> None:
    content, to, option = case
    (folder / "mixture.yaml").write_bytes(content)
    options = option.split(" ", 1) if option else []
    command("export", "mixture.yaml", "--to", to, *options)
    found = command("export", "mixture.yaml", "--to", "json")
    if found.code == 0:
        numbers = list(json.loads(found.out).values())
        weights = numbers[0] if isinstance(numbers[0], dict) else json.loads(found.out)
        assert all(0 <= weight <= 1 for weight in weights.values()), weights
        assert math.isclose(sum(weights.values()), 1, rel_tol=1e-6), weights


def published(rng: random.Random) -> list[str]:
    name = rng.choice([*PRESETS, value(rng)]).replace("\0", "")
    words = [name, "--to", rng.choice([*FORMATS, value(rng)]).replace("\0", "")]
    for option in ("--place", "--size", "--corpus"):
        if rng.random() < 0.3:
            words += [option, f"{rng.choice(NAMES)}={value(rng)}".replace("\0", "")]
    return words


def export_published(words: list[str], folder: Path) -> None:
    command("export", *words)


register("mixture files", mixture, export, share=3)
register("published mixtures", published, export_published, share=1)
