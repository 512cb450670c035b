"""Settings on the command line and in files."""

import random
from pathlib import Path

import yaml

from dograph.config import RUN_PRESETS, parse_config, setting_names
from dograph.mixers.dograph import DoGraphOptions
from dograph.mixers.registry import MIXERS
from fuzz.harness import command, damaged, register, value

OPTIONS = [f"mixer.{name}" for name in DoGraphOptions.model_fields]
OTHERS = ["mixer.objective.name", "mixer.weights", "mixer.file", "mixer.stages", "mixer.max_epochs"]
ODD = ["", ".", "a", "train", "train.", ".steps", "train.steps.x", "mixer", "preset", "steps", "--"]


def name(rng: random.Random) -> str:
    names = (setting_names(), OPTIONS, OTHERS, ODD)
    return rng.choice(rng.choices(names, weights=(6, 3, 1, 1))[0])


def setting(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return f"mixer.name={rng.choice(list(MIXERS))}"
    return f"{name(rng)}={value(rng)}"


def overrides(rng: random.Random) -> list[str]:
    first = [rng.choice(list(RUN_PRESETS))] if rng.random() < 0.2 else []
    return first + [setting(rng) for _ in range(rng.randrange(1, 4))]


def print_config(arguments: list[str], folder: Path) -> None:
    """Printed settings give the same configuration back, and print the same again."""
    found = command("train", *arguments, "--print-config")
    if found.code == 0:
        assert parse_config(yaml.safe_load(found.out), "printed").dump() == found.out


def file(rng: random.Random) -> bytes:
    """A YAML file: settings with odd values, or a good file that is damaged."""
    if rng.random() < 0.5:
        preset = rng.choice(list(RUN_PRESETS))
        return damaged(rng, yaml.safe_dump({**RUN_PRESETS[preset], "preset": preset}).encode())
    lines = []
    for _ in range(rng.randrange(1, 6)):
        section, _, own = name(rng).partition(".")
        lines.append(f"{section}: {{{own}: {value(rng)}}}" if own else f"{section}: {value(rng)}")
    return "\n".join(lines).encode(errors="surrogatepass")


def read_file(content: bytes, folder: Path) -> None:
    (folder / "recipe.yaml").write_bytes(content)
    print_config(["recipe.yaml"], folder)


register("overrides", overrides, print_config, share=2)
register("configuration files", file, read_file, share=2)
