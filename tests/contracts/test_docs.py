"""The documentation says what the code does: settings, presets, mixers, commands."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from benchmarks.cost_tables import PAGE, filled
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from dograph.choices import CHOICES
from dograph.cli.main import app
from dograph.config import RUN_PRESETS, SketchConfig
from dograph.domains.objectives import OBJECTIVES
from dograph.mixers.dograph import RECIPES, DoGraphOptions
from dograph.mixers.registry import MIXERS
from dograph.models.presets import PRESETS

ROOT = Path(__file__).parents[2]


def test_the_tables_of_settings_and_choices_are_those_of_the_code():
    """`python docs/configuration.py` after a change of settings."""
    filled = runpy.run_path(str(ROOT / "docs" / "configuration.py"))["filled"]
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert filled(text) == text


def test_every_value_of_a_choice_is_explained():
    fields = {name: field.annotation for name, field in SketchConfig.model_fields.items()}
    for name in ("mode", "projection", "accumulation"):
        assert tuple(CHOICES[f"sketch.{name}"]) == get_args(fields[name])
    assert tuple(CHOICES["mixer.scope"]) == get_args(
        DoGraphOptions.model_fields["scope"].annotation
    )
    assert set(CHOICES["mixer.recipe"]) == set(RECIPES)
    assert set(CHOICES["mixer.objective"]) == set(OBJECTIVES)


def test_help_shows_every_choice():
    shown = CliRunner().invoke(app, ["train", "--help"]).output
    for setting, values in CHOICES.items():
        assert f"{setting}=" in shown
        for choice in values.values():
            assert " ".join(choice.cost.split()) in " ".join(shown.split())


def test_every_preset_and_mixer_is_documented():
    text = (ROOT / "docs" / "configuration.md").read_text()
    for name in [*PRESETS, *RUN_PRESETS, *MIXERS]:
        assert f"`{name}`" in text
    lines = (ROOT / "docs" / "methods" / "index.md").read_text().splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {6}
    for name in MIXERS:
        assert sum(f"`{name}`" in row[0] for row in rows) == 1, name


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    group = get_command(app) if group is None else group
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_has_help_that_shows_examples(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    examples = [line for line in lines if line.startswith(f"dograph {' '.join(command)}")]
    assert len(examples) >= 2, "two examples at least, each a line of its own"


def test_links_in_the_readme_lead_somewhere():
    import re

    for name in (
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
        *(f"docs/methods/{p.name}" for p in (ROOT / "docs" / "methods").glob("*.md")),
    ):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
            assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_the_tables_of_costs_are_those_of_the_figures():
    """`python -m benchmarks.cost_tables --write` after new figures."""
    assert filled(PAGE.read_text()) == PAGE.read_text()


def test_the_reference_of_commands_is_that_of_the_command_line():
    """`python docs/commands.py` after a change of commands."""
    page = runpy.run_path(str(ROOT / "docs" / "commands.py"))["page"]
    assert (ROOT / "docs" / "commands.md").read_text() == page()


def pages_of_the_site(entry: Any) -> Iterator[str]:
    for part in entry.values() if isinstance(entry, dict) else entry:
        if isinstance(part, str):
            yield part
        else:
            yield from pages_of_the_site(part)


def test_every_page_opens_with_what_it_is_for():
    import yaml

    for name in pages_of_the_site(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]):
        title, _, lead, *_ = (ROOT / "docs" / name).read_text().splitlines()
        assert title.startswith("# "), name
        assert lead.startswith("This page "), name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
