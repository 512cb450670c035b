"""Mixtures known before training."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.mixers.fixed import Scheduled, Static, Uniform, UniMax, inlined
from dograph.mixers.registry import MIXERS, build_mixer
from dograph.testing import check_mixer
from dograph.types import Signals


@dataclass
class Lab:
    tokens: dict[str, int]
    budget: int = 1000
    steps: int = 100

    @property
    def strata(self) -> dict[str, int]:
        return self.tokens


LAB = Lab({"a": 700, "b": 200, "c": 100})
OPTIONS = {
    "static": {"weights": {"a": 1.0, "b": 1.0}},
    "scheduled": {"stages": {0: {"a": 1.0}, 5: {"b": 1.0}}},
    "group-dro": {"sources": ["a", "b", "c"]},
    "doremi-proxy": {"sources": ["a", "b", "c"]},
    "doge-proxy": {"sources": ["a", "b", "c"]},
    "domain2vec": {"vectors": {"a": [1.0], "b": [0.0], "c": [0.5], "target": [0.4]}},
    "regmix": {"num_proxies": 16, "surrogate": "linear"},
}


@pytest.mark.parametrize("name", MIXERS)
def test_contract(name):
    check_mixer(build_mixer(name, OPTIONS.get(name, {})))


def test_natural_and_uniform():
    assert Mixer().plan(LAB).weights == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1})
    assert Uniform().plan(LAB).weights == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})


def test_static_from_weights_and_file(tmp_path):
    assert Static(weights={"a": 3, "b": 1}).plan(LAB).weights == {"a": 0.75, "b": 0.25}
    file = tmp_path / "mixture.yaml"
    file.write_text("weights:\n  a: 0.1\n  c: 0.3\nmethod: by hand\n")
    assert Static(file=str(file)).plan(LAB).weights == pytest.approx({"a": 0.25, "c": 0.75})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "is not YAML"),
        ("a: 1", "has no `weights`"),
        ("weights: 3", "mapping of source: weight"),
        ("weights: {a: x}", "numbers >= 0"),
        ("weights: {a: -1, b: 3}", r"numbers >= 0: got \{'a': -1\.0\}"),
        ("weights:\n  a: 0.2\n  b: 0.3\n  a: 0.5", '"a" is there twice, again in line 4'),
        (f"weights: {3000 * '['}{3000 * ']'}", "nested too deeply"),
        ("weights: {a: 0}", "positive finite sum"),
    ],
)
def test_static_refuses_bad_files(tmp_path, content, message):
    file = tmp_path / "mixture.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        Static(file=str(file))


def test_mixture_files_are_read_into_the_options(tmp_path):
    file = tmp_path / "mixture.yaml"
    file.write_text("weights: {a: 1, b: 3}\n")
    assert inlined({"file": str(file)}) == {"weights": {"a": 0.25, "b": 0.75}}
    stages = inlined({"stages": {0: str(file), 5: {"a": 1}}})["stages"]
    assert stages == {0: {"a": 0.25, "b": 0.75}, 5: {"a": 1}}
    with pytest.raises(ConfigError, match="cannot be read"):
        inlined({"file": str(tmp_path)})
    with pytest.raises(ConfigError, match="must be a mapping of step"):
        Scheduled(stages=[1])


def test_provenance_travels_with_the_weights(tmp_path):
    file = tmp_path / "mixture.yaml"
    file.write_text("weights: {a: 1, b: 3}\nprovenance: {method: doge, seq_len: 128}\n")
    told = {"method": "doge", "made_by": "unknown", "seq_len": 128}
    options = inlined({"file": str(file)})
    assert options == {"weights": {"a": 0.25, "b": 0.75}, "provenance": told}
    assert Static(**options).provenance == Static(file=str(file)).provenance
    assert Static(**options).provenance.seq_len == 128
    assert inlined(options) == options
    stages = inlined({"stages": {0: str(file), 5: {"a": 1}}})["stages"]
    assert stages == {0: options, 5: {"a": 1}}
    assert Scheduled(stages).plan(LAB).weights == {"a": 0.25, "b": 0.75}
    assert Scheduled({0: {"weights": 1, "a": 3}}).plan(LAB).weights["weights"] == 0.25  # a source
    with pytest.raises(ConfigError, match=r"mixer\.stages\.0 may have weights and provenance"):
        Scheduled({0: {"weights": {"a": 1}, "source": "x"}})


def test_static_by_the_name_of_a_published_mixture():
    names = ["wiki", "cc", "c4", "books", "ArXiv", "RedPajamaGithub", "stack_exchange", "own"]
    mixer = Static(preset="doge-slimpajama")
    weights = mixer.plan(Lab(dict.fromkeys(names, 10))).weights
    assert weights == pytest.approx(
        {
            "wiki": 0.148,
            "cc": 0.214,
            "c4": 0.269,
            "books": 0.045,
            "ArXiv": 0.088,
            "RedPajamaGithub": 0.070,
            "stack_exchange": 0.166,
        }
    )
    assert mixer.provenance.method == "doge"
    with pytest.raises(ConfigError, match="does not fit this corpus"):
        mixer.plan(LAB)
    with pytest.raises(ConfigError, match='did you mean "regmix-pile"'):
        Static(preset="regmix-pil")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"file": "m.yaml", "weights": {"a": 1}},
        {"file": "m.yaml", "preset": "regmix-pile"},
        {"weights": {"a": 1}, "preset": "regmix-pile"},
    ],
)
def test_static_takes_one_origin_and_inlining_does_not_choose(options):
    with pytest.raises(ConfigError, match="and one alone"):
        Static(**options)
    assert inlined(options) == options


def test_provenance_is_for_weights():
    with pytest.raises(ConfigError, match=r"goes with mixer\.weights"):
        Static(preset="regmix-pile", provenance={"method": "x"})
    with pytest.raises(ConfigError, match=r"mixer\.provenance\.method"):
        Static(weights={"a": 1}, provenance={"made_by": "x"})


def test_scheduled_changes_at_its_steps():
    mixer = Scheduled(stages={0: {"a": 1}, 5: {"b": 1}, "9": {"c": 1}})
    assert mixer.plan(LAB).weights == {"a": 1.0}
    changes = {
        step + 1: mixture.weights
        for step in range(20)
        if (mixture := mixer.remix(Signals(step=step, num_samples=1)))
    }
    assert changes == {5: {"b": 1.0}, 9: {"c": 1.0}}
    with pytest.raises(ConfigError, match="step 0"):
        Scheduled(stages={3: {"a": 1}})


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
    budget=st.integers(1, 10**7),
    cap=st.floats(0.1, 20),
)
def test_unimax_is_water_filling(sizes, budget, cap):
    """Each share is min(level, cap * size) for one water level, found here by bisection."""
    tokens = {f"s{i}": size for i, size in enumerate(sizes)}
    limit = np.array(sizes) * cap
    spent = min(budget, limit.sum() * (1 - 1e-12))
    level = brentq(lambda x: np.minimum(x, limit).sum() - spent, 0, limit.max() + budget)
    expected = np.minimum(level, limit) / np.minimum(level, limit).sum()
    got = UniMax(max_epochs=cap).plan(Lab(tokens, budget)).weights
    assert list(got.values()) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


def test_registry_errors():
    with pytest.raises(ConfigError, match='did you mean "uniform"'):
        build_mixer("unifrom", {})
    with pytest.raises(ConfigError, match=r'mixer.max_epoch is not.*did you mean "max_epochs"'):
        build_mixer("unimax", {"max_epoch": 2})
    with pytest.raises(ConfigError, match="takes no options"):
        build_mixer("natural", {"x": 2})
    with pytest.raises(ConfigError, match="no module"):
        build_mixer("nowhere_at_all:Mixer", {})
    with pytest.raises(ConfigError, match=r"subclass of dograph\.Mixer"):
        build_mixer("pathlib:Path", {})


def test_own_mixer_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_methods.py").write_text(
        "import torch\nfrom dograph import Mixer\n"
        "class Softest(Mixer):\n"
        "    needs = frozenset({'loss'})\n"
        "    def __init__(self, temperature: float = 1.0): self.temperature = temperature\n"
        "    def weigh(self, signals):\n"
        "        return torch.softmax(-signals.loss_B / self.temperature, dim=0)\n"
        "class ByPlace(Mixer):\n"
        "    def weigh(self, signals):\n"
        "        return torch.softmax(torch.arange(signals.num_samples).float(), dim=0)\n"
        "class Broken(Softest):\n"
        "    def weigh(self, signals): return signals.loss_B\n"
    )
    monkeypatch.chdir(tmp_path)
    mixer = build_mixer("my_methods:Softest", {"temperature": 0.5})
    assert mixer.temperature == 0.5
    check_mixer(mixer)
    with pytest.raises(AssertionError, match="sum to 1"):
        check_mixer(build_mixer("my_methods:Broken", {}))
    with pytest.raises(AssertionError, match="follow their samples"):
        check_mixer(build_mixer("my_methods:ByPlace", {}))
