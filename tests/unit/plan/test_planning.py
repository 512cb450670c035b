import json
import math
import shutil

import pytest

from corpora import write_corpus
from dograph.config import MixerConfig, resolve_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.registry import require_method
from dograph.plan.jobs import Stopped
from dograph.plan.lab import default_proxy, forecast_plan, make_plan
from dograph.train.forecast import run_flops
from lab_runs import Here, config_of, imports_frozen


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


def target_of(corpus, **options):
    config = config_of(corpus, steps=40).model_dump()
    config["mixer"] = {"name": "lab_runs:Ladder", **options}
    return type(config_of(corpus)).model_validate(config)


@pytest.mark.parametrize(
    ("target", "proxy"),
    [
        ("demo", "tiny"),
        ("tiny", "tiny"),
        ("llama-tiny", "tiny"),
        ("gpt2-mini", "gpt2-proxy"),
        ("gpt2-medium", "gpt2-proxy"),
        ("llama-1.1b", "gpt2-proxy"),
    ],
)
def test_a_proxys_model_is_smaller(target, proxy):
    config = resolve_config(None, [f"model.preset={target}"])
    assert default_proxy(config).model.preset == proxy


def test_a_proxy_is_a_quarter_of_the_run():
    target = resolve_config("paper-gpt2-small", ["log.sinks=[wandb]"])
    proxy = default_proxy(target)
    assert proxy.train.steps == 5000
    assert proxy.optim == target.optim.model_copy(update={"warmup_steps": 125})
    assert proxy.data == target.data
    assert (proxy.eval.every, proxy.eval.max_samples_per_source) == (500, 2857)
    assert (proxy.checkpoint.every, proxy.checkpoint.keep) == (1000, 2)
    assert (proxy.probe.rows, proxy.log.sinks, proxy.model.dropout) == (0, [], 0.1)
    large = resolve_config("paper-llama-1.1b", [])
    assert large.train.activation_checkpointing
    assert not default_proxy(large).train.activation_checkpointing


@pytest.mark.parametrize(("steps", "proxy"), [(200, 50), (60, 20), (10, 10), (1, 1)])
def test_short_runs_have_proxies_of_twenty_steps_at_least(steps, proxy):
    target = resolve_config(None, [f"train.steps={steps}", "optim.warmup_steps=1"])
    config = default_proxy(target)
    assert config.train.steps == proxy
    assert config.checkpoint.every == min(50, math.ceil(proxy / 2))
    assert config.eval.every == min(25, math.ceil(proxy / 2))


def test_what_hangs_on_the_steps_follows_them():
    proxy = default_proxy(resolve_config(None, []), {"train": {"steps": 100}})
    assert (proxy.train.steps, proxy.optim.warmup_steps) == (100, 10)
    assert (proxy.eval.every, proxy.checkpoint.every) == (25, 50)
    own = {"train": {"steps": 100}, "optim": {"warmup_steps": 3}, "eval": {"every": 0}}
    proxy = default_proxy(resolve_config(None, []), own)
    assert (proxy.optim.warmup_steps, proxy.eval.every) == (3, 0)


@pytest.mark.parametrize(("every", "proxy"), [(0, 500), (1, 100), (300, 150), (4000, 500)])
def test_a_proxy_validates_two_to_ten_times(every, proxy):
    target = resolve_config(None, ["train.steps=4000", f"eval.every={every}"])
    assert default_proxy(target).eval.every == proxy


def test_for_a_model_by_path_the_proxy_must_be_named():
    target = resolve_config(None, ["model.preset=null", "model.path=some/model"])
    with pytest.raises(ConfigError, match=r"--proxy model\.preset"):
        default_proxy(target)
    assert default_proxy(target, {"model": {"preset": "tiny"}}).model.path is None
    assert default_proxy(target, {"model": {"path": "small"}}).model.preset is None
    by_path = default_proxy(resolve_config(None, []), {"model": {"path": "small"}})
    assert (by_path.model.preset, by_path.model.path) == (None, "small")


@pytest.mark.parametrize("name", ["mixer", "seed", "run"])
def test_what_is_not_the_users_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is not a setting of proxies"):
        default_proxy(resolve_config(None, []), {name: 1})


@pytest.mark.parametrize(
    "changes", [{"train": {"steps": 0}}, {"train": {"steps": "many"}}, {"steps": 20}]
)
def test_wrong_settings_are_told_by_name(changes):
    with pytest.raises(ConfigError, match=r"train\.steps"):
        default_proxy(resolve_config(None, []), changes)


def test_methods_are_told_apart():
    require_method("doremi")
    require_method("anybodys:Own")
    with pytest.raises(ConfigError, match=r"uniform makes no plan; train with mixer\.name=uniform"):
        require_method("uniform")
    with pytest.raises(ConfigError, match='did you mean "doremi"'):
        require_method("doremy")


def test_a_mixer_that_is_no_planner_is_refused(corpus, tmp_path):
    target = config_of(corpus).model_dump() | {"mixer": {"name": "dograph.mixers.fixed:Uniform"}}
    target = type(config_of(corpus)).model_validate(target)
    with pytest.raises(ConfigError, match="no subclass of Planner"):
        make_plan(target, default_proxy(target), lab=tmp_path, pool=Here())


@pytest.mark.slow
def test_a_plan_tells_how_it_was_made(corpus, tmp_path):
    target, pool = target_of(corpus, number=2, steps=3), Here()
    proxy = default_proxy(target)
    plan = make_plan(target, proxy, lab=tmp_path / "lab", pool=pool, command="dograph plan it")
    losses = plan.findings["losses"]
    total = sum(losses.values())
    assert dict(plan.mixture.weights) == {name: loss / total for name, loss in losses.items()}
    told = plan.provenance
    assert (told.method, told.command) == ("lab_runs:Ladder", "dograph plan it")
    assert (told.seq_len, told.vocab_size) == (32, 100)
    assert (told.corpus, told.target_tokens) == (Corpus(corpus).digest, 40 * 8 * 32)
    assert (told.seeds, told.settings) == ([0, 1], {"number": 2, "steps": 3})
    assert told.proxy == {
        "model": "tiny",
        "parameters": 100_096,
        "steps": 3,
        "batch_size": 8,
        "tokens": 3 * 8 * 32,
        "number": 2,
    }
    short = config_of(corpus, steps=3)
    assert plan.cost.flops == pytest.approx(2 * run_flops(short, Corpus(corpus)))
    assert (plan.cost.proxies, plan.cost.cached) == (2, 0)

    again = make_plan(target, proxy, lab=tmp_path / "lab", pool=pool)
    assert len(pool.asked) == 2
    assert again.mixture == plan.mixture
    assert (again.cost.proxies, again.cost.cached) == (2, 2)
    assert again.cost.seconds == plan.cost.seconds > 0


@pytest.mark.slow
def test_rounds_go_on_where_they_were_stopped(corpus, tmp_path):
    """Stopped in the second round; the same request trains what is left and plans the same."""
    options = {"rounds": [4, 2], "surrogate": "linear", "max_epochs": None, "draws": 500, "top": 5}
    mixer = MixerConfig(name="regmix", **options)
    target = target_of(corpus).model_copy(update={"mixer": mixer})
    proxy = default_proxy(target, {"train": {"steps": 2}, "eval": {"every": 0}})
    with imports_frozen():
        whole = make_plan(target, proxy, lab=tmp_path / "whole", pool=Here())
        with pytest.raises(Stopped):
            make_plan(target, proxy, lab=tmp_path / "lab", pool=Here(most=5))
        pool = Here()
        resumed = make_plan(target, proxy, lab=tmp_path / "lab", pool=pool)
    assert pool.made == ["mixture 6"]
    assert (resumed.mixture, resumed.findings) == (whole.mixture, whole.findings)
    assert resumed.provenance == whole.provenance
    assert resumed.provenance.proxy["number"] == 6


def test_a_forecast_makes_nothing(corpus, tmp_path):
    target = target_of(corpus, number=4)
    text = forecast_plan(target, default_proxy(target), lab=tmp_path / "lab")
    assert text.startswith("4 proxies to train (tiny; 20 steps): 20,480 tokens")
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize("method", ["regmix", "mixing-law"])
def test_losses_that_cannot_be_are_told_before_the_first_proxy(corpus, tmp_path, method):
    silent = tmp_path / "silent"
    shutil.copytree(corpus, silent)
    manifest = json.loads((silent / "manifest.json").read_text())
    (silent / "manifest.json").write_text(json.dumps(manifest | {"validation": []}))
    target = target_of(silent).model_copy(update={"mixer": MixerConfig(name=method)})
    with pytest.raises(ConfigError, match=f"has no validation text, and {method} learns from"):
        make_plan(target, default_proxy(target), lab=tmp_path / "lab", pool=Here())
    assert not (tmp_path / "lab").exists()
