"""dograph bench as it is typed: settings and options arrive where they are resolved."""

import pytest
from typer.testing import CliRunner

from dograph.cli.main import app


@pytest.fixture
def resolved(monkeypatch):
    """What the options are made of, in place of measuring."""
    seen = {}

    def resolve(place, modes, settings, **given):
        seen.update(given, place=place.type, modes=modes, settings=settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("dograph.bench.arms.resolve_options", resolve)
    return seen


def test_options_and_settings_arrive(resolved):
    own = ["model.preset=tiny", "train.device=cpu"]
    more = ["--modes", "full, head", "--steps", "12", "--vocab-size", "99"]
    CliRunner().invoke(app, ["bench", "planted", *own, *more])
    expected = {"config": "planted", "settings": own, "place": "cpu", "modes": ("full", "head")}
    expected |= {"steps": 12, "vocab_size": 99}
    assert resolved == expected


def test_no_mode_is_asked_for_by_name(resolved):
    CliRunner().invoke(app, ["bench", "train.device=cpu", "--modes", "none"])
    assert (resolved["config"], resolved["modes"]) == (None, ())
