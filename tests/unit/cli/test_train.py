"""dograph train as it is typed."""

import pytest
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.main import app
from dograph.config import resolve_config
from dograph.mixers.registry import mixer_class
from dograph.train.run_dir import RunDirectory


def line(*settings, name=None):
    mixer = resolve_config(name, settings).mixer
    return f"mixer: {mixer_class(mixer.name).describe(mixer.name, mixer.options)}"


def test_a_dry_run_names_what_the_mixer_comes_to(tmp_path):
    settings = [f"data.corpus={write_corpus(tmp_path / 'corpus')}", f"run={tmp_path / 'run'}"]
    settings += ["data.seq_len=16", "model.preset=tiny", "mixer.recipe=safe", "mixer.num_domains=4"]
    found = CliRunner().invoke(app, ["train", *settings, "--dry-run"])
    assert found.exit_code == 0
    assert found.stderr.startswith(f"forecast of {tmp_path / 'run'}: 200 steps on ")
    first, *warnings = found.stderr.splitlines()
    assert first.endswith(", mixer dograph; loading")
    assert [text.split(":")[0] for text in warnings] == ["warning"] * len(warnings)
    assert "gamma would be read through 5.2 times" in warnings[-1]
    assert found.stdout.splitlines()[0] == (
        "mixer: dograph, recipe safe with num_domains=4: 4 domains, objective precision, "
        "scope stream"
    )
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_that_ranks_share_the_state_and_refuses_what_they_cannot(tmp_path):
    settings = [f"data.corpus={write_corpus(tmp_path / 'corpus')}", "train.shard=true"]
    settings += ["data.seq_len=16", "model.preset=tiny", "--dry-run"]
    found = CliRunner().invoke(app, ["train", *settings, "sketch.mode=twopass"])
    assert "MiB, shared by all ranks" in found.output
    found = CliRunner().invoke(app, ["train", *settings])
    assert "set sketch.mode to twopass or head" in str(found.exception)
    found = CliRunner().invoke(app, ["train", *settings, "train.shard=false"])
    assert found.exit_code == 0
    assert "all ranks" not in found.output


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([], "recipe recommended: at most 11 domains, objective precision, scope batch"),
        (["mixer.recipe=paper"], "recipe paper: 11 domains, objective uncertainty, scope batch"),
        (["mixer.recipe=safe"], "recipe safe: 11 domains, objective precision, scope stream"),
        (
            ["mixer.scope=period", "mixer.objective={name: robust, graph_penalty: 0.5}"],
            "recipe recommended with scope=period, objective={'name': 'robust', "
            "'graph_penalty': 0.5}: "
            "11 domains, objective robust with graph_penalty=0.5, scope period",
        ),
    ],
)
def test_recipes_and_what_is_changed_in_them(settings, told):
    assert line(*settings) == f"mixer: dograph, {told}"


def test_presets_name_their_recipe():
    assert line(name="planted").startswith("mixer: dograph, recipe safe with num_domains=4: 4 dom")
    assert "recipe paper with sampling=uniform: 11 domains" in line(name="paper-gpt2-small")


def test_other_mixers_are_named_with_their_options():
    assert line("mixer.name=uniform") == "mixer: uniform"
    assert line("mixer.name=unimax", "mixer.max_epochs=2") == "mixer: unimax with max_epochs=2"


def test_a_run_says_what_it_is_while_it_loads(monkeypatch, tmp_path):
    """The first rank alone, and before anything that takes time."""
    settings = ["train", "run=runs/mine", "train.steps=40", "mixer.name=natural"]
    settings += [f"data.corpus={tmp_path / 'absent'}"]
    said = f"runs/mine: 40 steps on {tmp_path / 'absent'}, mixer natural; loading\n"
    assert CliRunner().invoke(app, settings).stderr == said
    monkeypatch.setenv("RANK", "1")
    assert CliRunner().invoke(app, settings).stderr == ""


def test_a_wrong_setting_of_a_resumed_run_is_not_blamed_on_the_run(tmp_path):
    RunDirectory(tmp_path / "run").create(resolve_config(None, []), {})
    found = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), "log.every=0"])
    assert str(found.exception).startswith("on the command line:\n  log.every=0: ")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("mixer.recipe=safer", 'did you mean "safe"'),
        ("mixer.name=dogrph", 'did you mean "dograph"'),
        ("mixer.max_epoch=2", 'did you mean "max_epochs"'),
        ("model.preset=tiney", 'did you mean "tiny"'),
        ("sketch.dim=7", "splits into 7 x 1 columns"),
        ("sketch.refresh=0", "give never, step, or a number of steps > 0"),
        ("sketch.projection=gaussian", "set sketch.mode to exact or reference"),
    ],
)
@pytest.mark.parametrize("how", ["--print-config", "--dry-run", "train"])
def test_wrong_settings_are_refused_before_a_corpus_is_prepared(monkeypatch, setting, told, how):
    """And printed settings are those that training takes."""
    monkeypatch.setattr("dograph.cli.train.ensured", lambda _: pytest.fail("prepared"))
    found = CliRunner().invoke(app, ["train", setting, *([] if how == "train" else [how])])
    assert told in str(found.exception)
    assert found.stdout == ""
