"""dograph bench as it is typed: every option arrives where it is resolved."""

import inspect
from dataclasses import fields

import pytest

from dograph.bench.options import BenchOptions
from dograph.cli import bench as command

OWN = {"modes": "full", "device": "cpu"}


@pytest.fixture
def resolved(monkeypatch, tmp_path):
    """What `_measure` gets, in place of measuring."""
    seen = {}
    monkeypatch.setattr(
        command,
        "_measure",
        lambda given, modes, device, out: seen.update(given, modes=modes, device=device, out=out),
    )
    return seen


def test_every_option_arrives_under_its_name(resolved, tmp_path):
    options = inspect.signature(command.bench).parameters
    given = {name: object() for name in options}
    command.bench(**given)
    assert resolved == given


def test_options_are_those_of_a_measurement(resolved):
    command.bench()
    known = {field.name for field in fields(BenchOptions)}
    assert set(resolved) - {"device", "out"} <= known
