"""dograph bench as it is typed: every option arrives where it is resolved."""

import inspect
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from dograph.bench.options import BenchOptions
from dograph.cli import bench as command
from dograph.cli.main import app

OWN = {"modes": "full", "device": "cpu"}


@pytest.fixture
def resolved(monkeypatch):
    """What the options are made of, in place of measuring."""
    seen = {}

    def resolve(place, modes, **given):
        seen.update(given, modes=modes)
        raise KeyboardInterrupt

    monkeypatch.setattr("dograph.bench.options.resolve_options", resolve)
    return seen


def test_every_option_arrives_under_its_name(resolved):
    options = inspect.signature(command.bench).parameters
    given = {name: object() for name in options} | OWN | {"corpus": None}
    with pytest.raises(KeyboardInterrupt):
        command.bench(**given)
    assert resolved == {k: v for k, v in given.items() if k not in ("device", "out")} | {
        "modes": ["full"]
    }


def test_options_are_those_of_a_measurement(resolved):
    CliRunner().invoke(app, ["bench", "--device", "cpu"])
    assert len(resolved) > 10
    assert set(resolved) <= {field.name for field in fields(BenchOptions)}
