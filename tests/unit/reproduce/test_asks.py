"""Every name at every scale is a valid comparison; what is changed, refused, told."""

from pathlib import Path

import pytest
import torch
from typer.main import get_command

from dograph.cli.main import app
from dograph.config import parse_config, resolve_config
from dograph.data.inputs import PrepareOptions
from dograph.errors import ConfigError, CorpusError
from dograph.mixers.registry import build_mixer, build_planner
from dograph.models.presets import PRESETS
from dograph.reproduce import artefacts as scales
from dograph.reproduce.artefacts import (
    ALL,
    ARTEFACTS,
    Wanted,
    build_asks,
    find_artefact,
    require_corpus,
)
from dograph.types import Signals


def asked(name, scale="mini", **more):
    return by_size(name, scale, **more)[""]


def by_size(name, scale="mini", **more):
    return build_asks(Wanted(artefact=find_artefact(name), scale=scale, **more))


@pytest.mark.parametrize("scale", ["mini", "paper"])
@pytest.mark.parametrize("name", ARTEFACTS)
def test_every_name_at_every_scale_is_a_valid_comparison(name, scale):
    artefact = ARTEFACTS[name]
    for ask in by_size(name, scale).values():
        labels = [method.label for method in ask.methods]
        assert labels[0] == artefact.baseline
        assert sorted(labels) == sorted(artefact.methods)
        assert ask.seeds == scales.SEEDS[scale]
        assert (ask.budget, ask.replan) == ("tokens", False)  # one plan serves all seeds
        for method in ask.methods:
            config = method.config(ask.config)
            if method.is_planned:
                build_planner(config.mixer.name, config.mixer.options)
        assert (ask.proxy is None) == (not any(m.is_planned for m in ask.methods))


def test_the_protocol_draws_every_source_alike():
    """Whatever weighs samples, but not natural and not what plans."""
    for method in asked("validation-loss").methods:
        options = dict(method.mixer)
        name = options.pop("name")
        if name in ("dograph", "dynamic-loss"):
            assert options["sampling"] == "uniform"
    by_label = {method.label: method.mixer for method in asked("validation-loss").methods}
    assert list(by_label) == ["uniform", *(label for label in ALL if label != "uniform")]
    assert by_label["inverse-norm"] == {
        "name": "dograph",
        "recipe": "inverse-norm",
        "sampling": "uniform",
    }
    assert by_label["dograph-paper"] == {
        "name": "dograph",
        "recipe": "paper",
        "sampling": "uniform",
    }


def weights(label):
    """What a method makes of a batch once it knows its domains, and the samples' norms."""
    ask = asked("clusters", methods=label)
    mixer = next(dict(m.mixer) for m in ask.methods if m.label == label)
    weigher = build_mixer(mixer.pop("name"), mixer)
    for step in range(14):
        draws = torch.Generator().manual_seed(step)
        sketch_BK = torch.randn(12, 80, generator=draws) * (1 + torch.arange(12)[:, None] % 3)
        norm_B = sketch_BK.norm(dim=1)
        weight_B = weigher.weigh(
            Signals(
                step=step,
                num_samples=12,
                device=torch.device("cpu"),
                source_B=torch.arange(12) % 3,
                sketch_BK=sketch_BK,
                block_norm_B=norm_B,
                projection=0,
            )
        )
    return weight_B, norm_B


def test_the_rows_that_need_no_domains():
    """The probed contrast counts all alike, as uniform does; inverse-norm counts directions."""
    weight_B, _ = weights("equal")
    assert torch.allclose(weight_B, torch.full_like(weight_B, 1 / 12))
    weight_B, norm_B = weights("inverse-norm")
    assert torch.allclose(weight_B, (1 / norm_B) / (1 / norm_B).sum(), rtol=1e-5)
    weight_B, _ = weights("dograph-paper")
    assert not torch.allclose(weight_B, torch.full_like(weight_B, 1 / 12), atol=0.01)


def test_the_paper_scale_is_its_presets():
    for name in ("gpt2-small", "gpt2-medium", "llama-1.1b", "llama-3.2-3b"):
        config = asked(name, "paper").config
        preset = resolve_config(f"paper-{name}", [])
        for part in ("data", "model", "sketch", "optim", "train", "eval", "probe"):
            assert getattr(config, part) == getattr(preset, part)
    sizes = by_size("model-scale", "paper")
    assert [ask.config.model.preset for ask in sizes.values()] == list(sizes)
    assert {ask.config.train.steps for ask in sizes.values()} == {20_000}


def test_the_mini_scale():
    config = asked("validation-loss").config
    assert (config.train.steps, config.train.batch_size, config.data.seq_len) == (700, 48, 512)
    assert (config.optim.lr, config.optim.lr_end, config.optim.warmup_steps) == (5e-4, 1e-4, 100)
    assert (config.optim.betas, config.eval.max_samples_per_source) == ((0.9, 0.95), 128)
    assert (config.model.preset, config.probe.rows) == ("gpt2-mini", 0)
    assert asked("llama-1.1b").config.model.preset == "llama-mini"
    for name in ("objectives", "num-domains", "gradient-pca", "clusters"):
        assert asked(name).config.train.steps == 400
    assert asked("clusters").config.probe.rows == 512
    assert list(by_size("model-scale")) == ["gpt2-proxy", "gpt2-mini", "gpt2-small"]
    shape = PRESETS["llama-mini"]
    assert (shape.layers, shape.width, shape.kv_heads, shape.feed_forward) == (12, 768, 4, 2048)


def test_mini_runs_are_for_everybody_to_import():
    values = scales.mini({"train": {"steps": 90}, "optim": {"warmup_steps": 9}}, cuda=True)
    config = parse_config(values, "test")
    assert (config.train.steps, config.train.dtype, config.train.compile) == (90, "bfloat16", True)
    assert scales.MINI["train"] == {"steps": 700, "batch_size": 48}


def test_tables_of_the_same_runs_share_them():
    folders = {name: artefact.folder("mini") for name, artefact in ARTEFACTS.items()}
    same = ["gpt2-small", "gpt2-medium", "validation-loss", "cost"]
    assert len({folders[name] for name in same}) == 1
    asks = [asked(name) for name in same]
    for ask in asks[1:]:
        assert (ask.config, ask.methods, ask.seeds) == (
            asks[0].config,
            asks[0].methods,
            asks[0].seeds,
        )
    assert len({artefact.folder("paper") for artefact in ARTEFACTS.values()}) == 9


def test_settings_change_every_run_and_warm_up_keeps_its_share():
    ask = asked("validation-loss", settings=("train.steps=70", "model.preset=tiny"))
    assert (ask.config.train.steps, ask.config.optim.warmup_steps) == (70, 10)
    ask = asked("validation-loss", settings=("train.steps=70", "optim.warmup_steps=3"))
    assert ask.config.optim.warmup_steps == 3
    assert asked("validation-loss", proxy=("train.steps=7",)).proxy.train.steps == 7
    assert asked("validation-loss", seeds="3").seeds == (10, 11, 12)
    assert asked("validation-loss", seeds="7,").seeds == (7,)


def test_methods_by_label_or_in_the_language_of_compare():
    ask = asked(
        "validation-loss",
        methods="natural,dograph-paper,mine=dograph[recipe=paper,half_life=3]",
    )
    labels = [method.label for method in ask.methods]
    assert labels == ["uniform", "natural", "dograph-paper", "mine"]
    assert ask.methods[3].mixer == {"name": "dograph", "recipe": "paper", "half_life": 3}
    assert ask.proxy is None
    assert [m.label for m in asked("clusters", methods="dograph-paper").methods] == [
        "equal",
        "dograph-paper",
    ]
    mixed = asked("num-domains", methods="a=dograph[recipe=paper,num_domains=9], m7").methods
    assert [method.label for method in mixed] == ["uniform", "a", "m7"]
    paper = {"name": "dograph", "recipe": "paper"}
    assert mixed[1].mixer == {**paper, "num_domains": 9}
    assert mixed[2].mixer == {**paper, "sampling": "uniform", "num_domains": 7}


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("validation-loss", {"settings": ("mixer.name=uniform",)}, "--methods names the mixers"),
        ("validation-loss", {"settings": ("seed=1",)}, "--seeds names the seeds"),
        ("validation-loss", {"settings": ("run=x",)}, "--out names the folder"),
        ("validation-loss", {"settings": ("train.stepz=1",)}, "did you mean"),
        (
            "model-scale",
            {"settings": ("model.path=x",)},
            "model.preset or model.path, and not both",
        ),
        ("model-scale", {"settings": ("model.preset=tiny,gpt5",)}, "allowed: demo"),
        ("model-scale", {"settings": ("model.preset=tiny,",)}, "allowed: demo"),
        ("clusters", {"proxy": ("train.steps=2",)}, "--proxy is for planned methods"),
        ("validation-loss", {"methods": "nonsense"}, '"nonsense" is not known'),
        ("validation-loss", {"methods": "doge,doge"}, '--methods names "doge" twice'),
    ],
)
def test_what_is_refused(name, more, told):
    with pytest.raises(ConfigError, match=told):
        asked(name, **more)


@pytest.mark.parametrize("name", ["gradient-pca", "clusters"])
def test_methods_without_probes_are_refused_before_they_train(name):
    for methods, blind in (
        ("natural", "natural"),
        ("uniform,dograph,doge,mine=dynamic-loss", "uniform, doge, mine"),
    ):
        with pytest.raises(ConfigError, match=f"runs of {blind} take none") as caught:
            asked(name, methods=methods)
        told = str(caught.value)
        assert told.startswith(f"{name} needs probes")
        able = "inverse-norm, dograph-paper, dograph, equal, variance"
        assert f"Leave them out of --methods. These can be probed: {able}" in told
    labels = [
        m.label for m in asked(name, methods="inverse-norm,mine=dograph[half_life=3],m7").methods
    ]
    assert labels == ["equal", "inverse-norm", "mine", "m7"]
    for setting in ("probe.rows=0", "probe.at=[]"):
        with pytest.raises(ConfigError, match=r"takes none; leave both at their defaults"):
            asked(name, settings=(setting,))
    assert asked("validation-loss", methods="natural", settings=("probe.rows=0",))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "validation-loss"'):
        find_artefact("validation-los")


@pytest.mark.parametrize(
    ("name", "scale", "command"),
    [
        (
            "validation-loss",
            "mini",
            "prepare slimpajama-6b --tokenizer gpt2 --keep 0.006 --out data/slimpajama-mini",
        ),
        (
            "validation-loss",
            "paper",
            "prepare slimpajama-6b --tokenizer gpt2 --out data/slimpajama-6b",
        ),
        ("llama-1.1b", "mini", "prepare pile --tokenizer gpt2 --keep 0.0005 --out data/pile-mini"),
        ("llama-1.1b", "paper", "prepare pile --tokenizer gpt2 --out data/pile"),
    ],
)
def test_a_corpus_that_is_not_there_comes_with_its_command(
    name, scale, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError) as caught:
        require_corpus(Wanted(artefact=find_artefact(name), scale=scale))
    told = str(caught.value)
    assert f"dograph data {command}\n" in told
    assert "data.corpus=DIR" in told
    assert ("tokens of it" in told) == (scale == "mini")


@pytest.mark.parametrize("name", ["validation-loss", "llama-1.1b"])
def test_the_command_of_the_message_is_understood(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError) as caught:
        require_corpus(Wanted(artefact=find_artefact(name)))
    commands = [line.split() for line in str(caught.value).splitlines() if line.startswith("  ")]
    parser = get_command(app).commands["data"].commands["prepare"]
    (params,) = [parser.make_context("prepare", words[3:]).params for words in commands]
    option = PrepareOptions(**{k: v for k, v in params.items() if v is not None})
    recipe, tokens = ("pile", 300e9) if name == "llama-1.1b" else ("slimpajama-6b", 6e9)
    assert option.known_corpus.name == recipe
    assert f"about {round(option.keep * tokens / 1e6)}M tokens" in str(caught.value)


def test_the_folder_is_the_users_or_the_runs_own():
    artefact = find_artefact("validation-loss")
    assert Wanted(artefact=artefact, out=Path("mine")).folder == Path("mine")
    assert Wanted(artefact=artefact).folder == Path("reproduce/mini/methods")
    assert asked("validation-loss", out=Path("x")).out == Path("x")
    sizes = by_size("model-scale", out=Path("x"), settings=("model.preset=tiny,demo",))
    assert {size: ask.out for size, ask in sizes.items()} == {
        "tiny": Path("x/tiny"),
        "demo": Path("x/demo"),
    }
