"""Configuration: round trips, overrides, and errors that name the setting."""

import contextlib
import subprocess
import sys

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dograph.config import (
    RUN_PRESETS,
    RunConfig,
    merge,
    parse_config,
    resolve_config,
    setting_names,
)
from dograph.errors import ConfigError


@pytest.mark.parametrize("name", RUN_PRESETS)
def test_presets_resolve_and_round_trip(name):
    config = resolve_config(name, [])
    assert parse_config(yaml.safe_load(config.dump()), "again") == config


def test_the_papers_recipe():
    config = resolve_config("paper-gpt2-small", [])
    assert (config.optim.lr, config.optim.lr_end, config.optim.warmup_steps) == (5e-4, 1e-4, 500)
    assert (config.optim.weight_decay, config.optim.clip_norm) == (0.01, 1.0)
    assert (config.train.steps, config.train.batch_size, config.data.seq_len) == (20_000, 48, 512)
    llama = resolve_config("paper-llama-3.2-3b", [])
    assert (llama.train.steps, llama.train.batch_size) == (25_000, 64)


def test_file_over_preset_and_override_over_file(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("preset: paper-gpt2-small\ntrain: {steps: 700}\noptim: {lr: 1e-3}\n")
    config = resolve_config(str(file), ["optim.lr=3e-4", "mixer.name=unimax", "mixer.max_epochs=2"])
    assert (config.train.steps, config.train.batch_size) == (700, 48)
    assert config.optim.lr == 3e-4
    assert config.mixer.options == {"max_epochs": 2}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.step=5", 'train.step is not a setting; did you mean "train.steps"'),
        ("steps=5", r'steps is not a setting; did you mean "train\.steps"\?'),
        ("every=5", r'did you mean "eval\.every" or "checkpoint\.every" or "log\.every"\?'),
        ("train.lr=1", r'train\.lr is not a setting; did you mean "optim\.lr"\?'),
        ("trian.steps=5", 'trian is not a setting; did you mean "train"'),
        ("train.steps=0", "train.steps=0: give a whole number of at least 1"),
        ("train.steps=many", "train.steps='many': give a whole number of at least 1"),
        ("train.dtype=float64", "train.dtype='float64'; did you mean \"bfloat16\""),
        ("optim.warmup_steps=999", "lower it, as in optim.warmup_steps=20, or train longer"),
        ("optim.betas=[0.9,1.0]", "optim.betas.1=1.0: input should be less than 1"),
        ("run=2024-13-45", "the value is not YAML"),
        ("model={preset: null, path: x, dropout: 0.1}", "model.dropout is for presets"),
        ("model.path=gpt2", "give model.preset or model.path, and not both"),
        ("train", "is not an override; write name=value"),
        ("train.steps=[1", "not YAML"),
        ("log.sinks=[tensorbord]", "log.sinks.0='tensorbord'; did you mean \"tensorboard\""),
        ("seed.x=1", "seed={'x': 1}: give a whole number of at least 0"),
        ("train.steps=true", "train.steps='true': give a whole number of at least 1"),
        ("probe.at=[true]", "probe.at.0=True: input should be a valid number"),
        ("optim.lr=.inf", "optim.lr=inf: give a finite number above 0"),
        ("seed=99999999999999999999", "found a number of more than 64 bits"),
        ("seed=1e30", r"seed=1e\+30: give a whole number"),
        ("mixer.caps=&a {b: *a}", "found unconstructable recursive node"),
        ("mixer.caps=!!binary ////", "found binary data"),
        (f"mixer.caps={3000 * '['}", "values are nested too deeply"),
        ("mixer.weights={a: 1, a: 2}", '"a" is there twice'),
        (f"run={300 * 'x'}", "give a folder of the file system, with at most 255 bytes"),
        ("run=", "run=None: give text; a number or a word like true is text if it is in quotes"),
        ('run=" "', "run=' ': give a folder of the file system"),
        ("train=3", "train=3: give its settings by name: steps, batch_size, "),
        ("sketch.exclude=wte", r"sketch.exclude='wte': give a list, as in \[a, b\]"),
        ("sketch.refresh=x", "sketch.refresh='x'; allowed: never, step"),
    ],
)
def test_errors_name_the_setting(override, message):
    with pytest.raises(ConfigError, match=message):
        resolve_config(None, [override])


def test_numbers_as_they_are_written_in_yaml_are_still_taken():
    config = resolve_config(None, ["train.steps=1e3", "optim.lr=1e-3", "seed='7'", "run='2024'"])
    assert (config.train.steps, config.optim.lr) == (1000, 1e-3)
    assert (config.seed, config.run) == (7, "2024")


def test_naming_another_mixer_drops_the_old_ones_options(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("mixer: {name: unimax, max_epochs: 2}\n")
    assert resolve_config(str(file), ["mixer.name=uniform"]).mixer.options == {}
    kept = resolve_config(str(file), ["mixer.max_epochs=3"]).mixer
    assert (kept.name, kept.options) == ("unimax", {"max_epochs": 3})
    file.write_text("preset: [demo]\n")
    with pytest.raises(ConfigError, match="a preset nor a setting"):
        resolve_config(str(file), [])


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        resolve_config(None, ["train.steps=0", "optim.lr=-1", "nonsense=1"])
    assert all(name in str(caught.value) for name in ("train.steps", "optim.lr", "nonsense"))


@pytest.mark.parametrize(
    ("content", "overrides", "told"),
    [
        ("train: {steps: 0}", [], "{file}:\n  train.steps=0: "),
        ("train: {steps: 5}", ["train.steps=0"], "on the command line:\n  train.steps=0: "),
        ("", ["optim.betas=[0.9,1.0]"], "on the command line:\n  optim.betas.1=1.0: "),
        ("", ["seed.x=1"], "on the command line:\n  seed={{'x': 1}}: "),
        ("trian: {steps: 5}", ["train.steps=5"], "{file}:\n  trian is not a setting"),
        (
            "optim: {warmup_steps: 20}",
            ["train.steps=10"],
            "on the command line, over {file}:\n  optim.warmup_steps=20 exceeds train.steps=10; ",
        ),
        (
            "optim: {warmup_steps: 999}",
            ["train.batch_size=2"],
            "{file}:\n  optim.warmup_steps=999 exceeds ",
        ),
        ("", ["model.path=x"], "on the command line, over {file}:\n  model: give model.preset"),
    ],
)
def test_errors_say_where_the_value_comes_from(tmp_path, content, overrides, told):
    file = tmp_path / "recipe.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        resolve_config(str(file), overrides)
    assert str(caught.value).startswith(told.format(file=file))


def test_problems_of_the_file_and_of_the_command_line_are_told_apart(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("train: {steps: 0}")
    with pytest.raises(ConfigError) as caught:
        resolve_config(str(file), ["seed=-1"])
    assert [line for line in str(caught.value).splitlines() if line.endswith(":")] == [
        "on the command line:",
        f"{file}:",
    ]


def test_unknown_name_lists_presets():
    with pytest.raises(ConfigError, match='did you mean "paper-gpt2-small"'):
        resolve_config("paper-gpt2-smal", [])
    with pytest.raises(ConfigError, match="neither an existing YAML file"):
        resolve_config("no-such-file.yaml", [])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(name=st.sampled_from([*setting_names(), "data", "mixer", "train.unknown", ""]), value=values)
def test_any_value_is_taken_or_refused_in_words(name, value):
    nested = value
    for part in reversed(name.split(".")):
        nested = {part: nested}
    try:
        config = parse_config(merge({}, nested), "fuzz")
    except ConfigError:
        return
    assert isinstance(config, RunConfig)


@given(text=st.text(max_size=40))
def test_any_override_text_is_taken_or_refused_in_words(text):
    with contextlib.suppress(ConfigError):
        resolve_config(None, [text])


@example(content=b"?")  # a name that is not text
@example(content=b"train: {?: 1}")
@example(content=b"mixer: {1: 1}")
@given(content=st.binary(max_size=200))
def test_any_file_is_taken_or_refused_in_words(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("fuzz") / "recipe.yaml"
    file.write_bytes(content)
    with contextlib.suppress(ConfigError):
        resolve_config(str(file), [])


def test_tokens_that_a_run_draws():
    sizes = ["train.steps=70", "train.batch_size=3", "data.seq_len=11"]
    config = resolve_config(None, sizes)
    assert config.tokens == 70 * 3 * 11


@pytest.mark.parametrize(
    ("steps", "warmup"), [(200, 22), (100, 11), (50, 6), (25, 3), (20, 2), (1, 0)]
)
def test_warmup_keeps_its_share_to_the_nearest_step(steps, warmup):
    """11 of 100: 5.5 of 50 (halves go to the even number), 2.75 of 25, 2.2 of 20."""
    config = resolve_config(None, ["train.steps=100", "optim.warmup_steps=11"])
    assert config.warmup_over(steps) == warmup


@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, 0), (10, 1), (50, 5), (199, 20), (200, 20), (5000, 20)]
)
def test_a_warmup_that_nobody_set_shrinks_with_the_steps(tmp_path, steps, warmup):
    file = tmp_path / "recipe.yaml"
    file.write_text(f"train: {{steps: {steps}}}\noptim: {{lr: 1e-3}}\n")
    for config in (resolve_config(None, [f"train.steps={steps}"]), resolve_config(str(file), [])):
        assert config.optim.warmup_steps == warmup
        assert yaml.safe_load(config.dump())["optim"]["warmup_steps"] == warmup


def test_a_warmup_that_was_set_stays_as_it_is(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("optim: {warmup_steps: 20}\n")
    assert resolve_config(str(file), ["train.steps=20"]).optim.warmup_steps == 20
    for name, settings in [
        (str(file), []),
        ("paper-gpt2-small", []),
        (None, ["optim.warmup_steps=20"]),
    ]:
        with pytest.raises(ConfigError, match=r"exceeds train\.steps=10"):
            resolve_config(name, ["train.steps=10", *settings])


def test_a_configuration_is_read_without_torch():
    code = "import sys, dograph.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
