"""The documentation says what the code does: settings, presets, mixers, commands."""

import json
from pathlib import Path

import pytest
from benchmarks.cost_tables import PAGE, filled
from pydantic import BaseModel
from typer.testing import CliRunner

from dograph.cli.main import app
from dograph.mixers.registry import MIXERS
from dograph.models.presets import PRESETS
from dograph.training.config import RunConfig
from dograph.training.presets import RUN_PRESETS

ROOT = Path(__file__).parents[2]


def settings(part: type[BaseModel] = RunConfig, prefix: str = ""):
    for name, field in part.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from settings(kind, f"{prefix}{name}.")
        else:
            default = field.get_default(call_default_factory=True)
            default = list(default) if isinstance(default, tuple) else default
            yield f"| `{prefix}{name}` | `{json.dumps(default)}` | {field.description} |"


def test_every_setting_is_documented_with_its_default():
    text = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    assert [row for row in text if row in set(settings())] == list(settings())


def test_every_preset_and_mixer_is_documented():
    text = (ROOT / "docs" / "configuration.md").read_text()
    for name in [*PRESETS, *RUN_PRESETS, *MIXERS]:
        assert f"`{name}`" in text


@pytest.mark.parametrize(
    "command",
    [
        ["train"],
        ["plan"],
        ["compare"],
        ["export"],
        ["eval"],
        ["report"],
        ["watch"],
        ["figures"],
        ["losses"],
        ["graph"],
        ["explain"],
        ["inspect"],
        ["doctor"],
        ["bench"],
        ["data", "prepare"],
        ["data", "show"],
    ],
)
def test_every_command_has_help_that_shows_examples(command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    examples = {
        "train": "dograph train --resume",
        "prepare": "dograph data prepare demo",
        "plan": "dograph plan regmix recipe.yaml --dry-run",
        "compare": "dograph compare recipe.yaml --budget compute",
        "export": "dograph export --list",
        "eval": "dograph eval runs/mine --benchmarks",
        "report": "dograph report runs/mine --out page.html",
        "watch": "dograph watch runs/mine",
        "figures": "dograph figures runs/mine --out figures",
        "graph": "dograph graph runs/mine --out graph.dot",
        "explain": "dograph explain runs/mine --step 500",
        "inspect": "dograph inspect runs/mine --corpus",
    }
    assert examples.get(command[-1], command[-1]) in result.output


def test_links_in_the_readme_lead_somewhere():
    import re

    for name in (
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
    ):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
            assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_the_tables_of_costs_are_those_of_the_figures():
    """`python -m benchmarks.cost_tables --write` after new figures."""
    assert filled(PAGE.read_text()) == PAGE.read_text()
