"""Settings under their old names: files, overrides, run directories and keyword arguments."""

import pytest
import yaml
from benchmarks.same_files import compare_folders

from dograph import renamed
from dograph.config import RunConfig, parse_config, parse_override, resolve_config
from dograph.errors import ConfigError
from dograph.mixers.doge import DoGE
from dograph.mixers.dograph import DoGraph, DoGraphOptions
from dograph.mixers.doremi import DoReMiProxy
from dograph.mixers.dynamic_loss import DynamicLoss
from dograph.mixers.sweep import MixingLawOptions
from dograph.records import read_metrics
from dograph.renamed import RENAMED, with_new_settings, with_old_settings
from dograph.report.series import Columns
from dograph.train.run_dir import RunDirectory

# What a run directory of before the renaming holds.
OLD_RUN = """\
seed: 3
run: runs/old
data: {corpus: demo, seq_len: 64, warn_epochs: 4.0}
model: {preset: tiny, path: null, pretrained: true, dropout: 0.0}
mixer:
  name: dograph
  recipe: safe
  scope: epoch
  every: 7
  objective: {name: uncertainty, sigma: printed, gamma: 0.5}
  normalise: false
  restarts: 4
  min_size: 1
  cap: null
  effective_floor: null
  keep_shares: false
  within: unit
  norm_from: all
  realise: sampling
  remix_floor: 0.1
  warmup: 0.2
eval: {every: 10, max_blocks: 5}
"""
NEW_MIXER = {
    "name": "dograph",
    "recipe": "safe",
    "scope": "period",
    "period_steps": 7,
    "objective": {"name": "uncertainty", "sigma": "paper", "graph_penalty": 0.5},
    "spherical_kmeans": False,
    "kmeans_restarts": 4,
    "min_effective_fraction": None,
    "keep_source_shares": False,
    "normalize_gradients": True,
    "gradient_norm_from": "all",
    "apply_weights_to": "sampling",
    "remix_min_fraction": 0.1,
    "warmup_ratio": 0.2,
}


@pytest.fixture(autouse=True)
def nothing_announced(monkeypatch):
    monkeypatch.setattr(renamed, "_announced", set())


def test_an_old_run_directory_is_read_under_the_new_names(tmp_path):
    (tmp_path / "config.yaml").write_text(OLD_RUN)
    config = RunDirectory(tmp_path).config()
    assert {"name": config.mixer.name, **config.mixer.options} == NEW_MIXER
    assert list(config.mixer.options) == list(NEW_MIXER)[1:]  # in the order that they had
    assert config.eval.max_samples_per_source == 5
    assert DoGraphOptions(**config.mixer.options).period_steps == 7
    assert parse_config(yaml.safe_load(config.dump()), "again") == config


def test_a_recipe_file_and_overrides_with_old_names(tmp_path):
    (tmp_path / "recipe.yaml").write_text("mixer: {name: dograph, within: unit}\n")
    recipe = str(tmp_path / "recipe.yaml")
    assert resolve_config(recipe, []).mixer.options == {"normalize_gradients": True}
    later = ["mixer.within=mean", "mixer.normalize_gradients=false"]
    for override in later:  # the later one wins, under whichever name
        assert resolve_config(recipe, [override]).mixer.options == {"normalize_gradients": False}
    found = resolve_config(None, ["eval.max_blocks=9", "mixer.objective.gamma=2"])
    assert found.eval.max_samples_per_source == 9
    assert found.mixer.options == {"objective": {"graph_penalty": 2}}
    other = resolve_config(recipe, ["mixer.name=dynamic-loss", "mixer.r=0.5"])
    assert other.mixer.options == {"temperature": 0.5}
    assert parse_override("eval.max_blocks=4") == {"eval": {"max_samples_per_source": 4}}


def test_options_of_other_mixers_keep_their_names():
    own = resolve_config(None, ["mixer.name=module:Mine", "mixer.within=unit", "mixer.cap=3"])
    assert own.mixer.options == {"within": "unit", "cap": 3}
    assert resolve_config(None, ["eval.every=5"]).eval.every == 5
    assert parse_override("objective={gamma: 1}") == {"objective": {"gamma": 1}}


def test_keyword_arguments():
    mixer = DoGraph(
        "paper", within="unit", effective_floor=0.5, objective={"name": "robust", "gamma": 0.1}
    )
    assert mixer.options.normalize_gradients is True
    assert mixer.options.min_effective_fraction == 0.5
    assert mixer.objective.graph_penalty == 0.1
    assert DynamicLoss(r=0.3).options.temperature == 0.3
    assert DoGE(clip=1.0).options.clip_norm == 1.0
    proxy = DoReMiProxy(normaliser="per_domain", excess="domain").options
    assert (proxy.loss_normalization, proxy.clip_excess_per) == ("per_source", "source")


@pytest.mark.parametrize(
    "make",
    [
        lambda: DoGraph(within="unit", normalize_gradients=True),
        lambda: resolve_config(None, ["mixer.within=unit", "mixer.normalize_gradients=true"]),
        lambda: parse_config(
            {"mixer": {"name": "dograph", "within": "unit", "normalize_gradients": True}}, "file"
        ),
    ],
)
def test_both_names_are_refused(make):
    message = (
        r"mixer\.within is the old name of mixer\.normalize_gradients, and both are given; leave"
    )
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_new_name_is_said_once(capsys):
    for _ in range(3):
        DoGraph("safe", within="unit", scope="epoch", effective_floor=0.5)
    assert capsys.readouterr().err.splitlines() == [
        "note: mixer.within is now mixer.normalize_gradients (mean is false, unit is true)",
        "note: mixer.scope=epoch is now mixer.scope=period",
        "note: mixer.effective_floor is now mixer.min_effective_fraction",
    ]
    DoGraph("safe", normalize_gradients=True)
    assert not capsys.readouterr().err


def test_a_wrong_value_is_refused_under_the_new_name():
    with pytest.raises(
        ConfigError, match=r"mixer\.normalize_gradients='units': give true or false"
    ):
        DoGraph(within="units")


def test_removed_options_are_read_at_their_default_only():
    assert DoGraphOptions(min_size=1, weight_floor=0.0) == DoGraphOptions()
    assert MixingLawOptions(law="exponential") == MixingLawOptions()
    with pytest.raises(
        ConfigError, match=r"mixer\.min_size=2: this option was removed; leave it out"
    ):
        DoGraph(min_size=2)


def test_a_run_with_a_removed_option_is_still_read():
    old = {"mixer": {"name": "group-dro", "mode": "cvar", "alpha": 0.3, "gamma": 0.1}}
    assert parse_config(old, "old").mixer.options == {"mode": "cvar", "alpha": 0.3}
    old = {"mixer": {"name": "dograph", "recipe": "safe", "cap": 3.0}}
    assert parse_config(old, "old").mixer.options == {"recipe": "safe", "cap": 3.0}
    old = {"mixer": {"name": "mixing-law", "law": "exponential", "num_proxies": 8}}
    assert parse_config(old, "old").mixer.options == {"num_proxies": 8}


def test_old_names_are_the_inverse():
    """So that what is kept under a digest of its settings is found again."""
    values = yaml.safe_load(OLD_RUN)
    for removed in ("min_size", "cap"):
        del values["mixer"][removed]
    assert with_old_settings(with_new_settings(values)) == values
    assert with_old_settings(RunConfig().model_dump(mode="json"))["eval"]["max_blocks"] == 32


def test_files_of_two_versions_are_compared_under_the_new_names(tmp_path):
    config = parse_config(yaml.safe_load(OLD_RUN), "old")
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, text in (
        (old, yaml.safe_dump(with_old_settings(config.model_dump(mode="json")))),
        (new, config.dump()),
    ):
        folder.mkdir()
        (folder / "config.yaml").write_text(text)
    (old / "printed-1.txt").write_text("recipe safe with restarts=4\n")
    (new / "printed-1.txt").write_text("recipe safe with kmeans_restarts=4\n")
    assert compare_folders(old, new, "case", [old, new]) == (2, "")
    (new / "config.yaml").write_text(config.dump().replace("period_steps: 7", "period_steps: 8"))
    assert "mixer.period_steps: 7 old, 8 new" in compare_folders(old, new, "case", [old, new])[1]


def test_every_new_name_is_an_option():
    fields = DoGraphOptions.model_fields
    assert {new for new, _ in RENAMED["dograph"].values()} <= set(fields)
    assert not {old for old, (new, _) in RENAMED["dograph"].items() if old != new} & set(fields)


def test_metrics_of_old_runs_are_read_under_their_present_names(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "weights/max_times_equal": 1.5}\n{"step": 2, "loss": 1.0}\n')
    assert next(read_metrics(file)) == {"step": 1, "weights/max_relative_weight": 1.5}
    columns = Columns(file)
    columns.read()
    assert columns.last("weights/max_relative_weight") == 1.5
    assert columns.names == ["weights/max_relative_weight", "loss"]
