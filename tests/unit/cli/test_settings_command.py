"""Options that are settings, and spellings of earlier versions, are answered with what to type."""

import pytest
from typer.testing import CliRunner

from dograph.cli.main import app
from dograph.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("train demo --steps 3", "give it as train.steps=3, without dashes"),
        ("train demo --steps=3", "give it as train.steps=3, without dashes"),
        ("train --train.steps 3", "give it as train.steps=3, without dashes"),
        ("train --batch-size 8", "give it as train.batch_size=8, without dashes"),
        ("train --steps", "give it as train.steps=VALUE, without dashes"),
        ("train --compile --dry-run", "give it as train.compile=VALUE, without dashes"),
        (
            "train --max-samples-per-source 5",
            "give it as eval.max_samples_per_source=5, without dashes",
        ),
        ("train --every 5", "eval.every=5 or checkpoint.every=5 or log.every=5, without dashes"),
        ("train --dryrun", "--dryrun is not an option of dograph train; did you mean --dry-run?"),
        ("train --xyz 5", "settings are given as train.steps=200, without dashes; options: "),
        ("plan regmix --steps 3", "--steps is not an option of dograph plan; give it as train."),
        ("compare demo --lr 1e-3", "--lr is not an option of dograph compare; give it as optim."),
        ("reproduce table1 --steps 3", "not an option of dograph reproduce; give it as train."),
        ("bench --dtype float32", "give it as train.dtype=float32, without dashes"),
        ("inspect gpt2 --corpus data/a", "give it as data.corpus=data/a, without dashes"),
        ("eval gpt2 --device cpu", "give it as train.device=cpu, without dashes"),
    ],
)
def test_an_unknown_option_teaches_how_settings_are_given(arguments, told):
    found = CliRunner().invoke(app, arguments.split(), prog_name="dograph")
    assert isinstance(found.exception, ConfigError)
    assert told in str(found.exception)


def test_other_mistakes_and_commands_are_answered_as_before():
    found = CliRunner().invoke(app, ["plan"])
    assert (found.exit_code, "Missing argument" in found.output) == (2, True)
    found = CliRunner().invoke(app, ["doctor", "--steps", "3"])
    assert (found.exit_code, "No such option" in found.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("show losses a --step 3", "--step is not for `show losses`, which takes no options"),
        ("show spikes a --json", "--json is not for `show spikes`, which takes no options"),
        ("show weights a", "`show weights` shows one step: add --step, as in --step 100"),
        ("show samples a b --step 3", "`show samples` takes one run, got 2"),
        ("report a --watch --figures b", "--watch and --figures are two different outputs"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, told):
    found = CliRunner().invoke(app, arguments.split(), prog_name="dograph")
    assert isinstance(found.exception, ConfigError)
    assert told in str(found.exception)
