"""Plans of DoReMi and DoGE, in a lab whose proxies see made-up signals."""

import json
from dataclasses import dataclass, field

import pytest
import torch

from dograph.errors import ConfigError
from dograph.mixers.base import ProxyResult
from dograph.mixers.registry import build_mixer
from dograph.testing import check_mixer
from dograph.types import Signals

STEPS = 60


@dataclass
class MadeUp:
    """Proxies whose excess or gradients are those of `excess` and `gradients`, by source."""

    tokens: dict[str, int]
    excess: list[float] = field(default_factory=lambda: [0.1, 0.0, 0.4])
    gradients: torch.Tensor = field(default_factory=lambda: torch.eye(3))
    steps: int = STEPS
    budget: int = 1000
    asked: list = field(default_factory=list)

    @property
    def strata(self):
        return self.tokens

    def train(self, proxies):
        self.asked.append(list(proxies))
        return [self.run(proxy) for proxy in proxies]

    def run(self, proxy):
        options = dict(proxy.mixer)
        mixer = build_mixer(options.pop("name"), options)
        mixer.plan(self)
        number = len(self.tokens)
        for step in range(STEPS if mixer.needs else 0):
            seen = Signals(
                step=step,
                num_samples=number,
                loss_B=torch.full((number,), 3.0),
                reference_loss_B=torch.full((number,), 3.0),
                excess_loss_B=torch.tensor(self.excess),
                source_B=torch.arange(number),
                sketch_BK=self.gradients,
                lr=1e-3,
                vocab_size=50,
            )
            mixer.weigh(seen)
        state = {
            k: v.tolist() if isinstance(v, torch.Tensor) else v
            for k, v in mixer.state_dict().items()
        }
        folder = f"lab/{proxy.label}-{proxy.seed}/model"
        return ProxyResult({}, [], json.loads(json.dumps(state)), folder, 1, 1)


def lab(**facts):
    return MadeUp({"a": 600, "b": 300, "c": 100}, **facts)


@pytest.mark.parametrize("name", ["doremi", "doge"])
def test_contract(name):
    check_mixer(build_mixer(name, {}))


def test_doremi_trains_a_reference_then_its_proxy():
    place, mixer = lab(), build_mixer("doremi", {})
    plan = mixer.plan(place)
    [reference], [proxy] = place.asked
    assert reference.mixer == {"name": "natural"}
    assert proxy.mixer["name"] == "doremi-proxy"
    assert proxy.mixer["reference"] == "lab/round 1: reference-0/model"
    assert (proxy.mixer["eta"], proxy.mixer["smoothing"]) == (1.0, 1e-3)
    assert reference.seed != proxy.seed  # other data, in another order
    assert plan.weights["c"] > 0.8
    found = mixer.findings
    assert found["rounds"][0]["reference"] == {"a": 0.6, "b": 0.3, "c": 0.1}
    assert found["rounds"][0]["weights"] == pytest.approx(dict(plan.weights))
    assert found["rounds"][0]["max_change"] == pytest.approx(plan.weights["c"] - 0.1)
    assert not found["converged"]
    assert any("nearly all weight is on c" in line and "eta" in line for line in found["advice"])
    assert len(found["rounds"][0]["trajectory"]) <= 50
    json.dumps(found)


def test_doremi_rounds_go_on_from_the_last_and_stop():
    """With no excess the proxy's weights stay equal, so the second round changes nothing."""
    place = lab(excess=[0.0, 0.0, 0.0])
    mixer = build_mixer("doremi", {"rounds": 5})
    plan = mixer.plan(place)
    assert plan.weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
    rounds = mixer.findings["rounds"]
    assert [round(r["max_change"], 6) for r in rounds] == [round(0.6 - 1 / 3, 6), 0.0]
    assert mixer.findings["converged"]
    assert mixer.findings["advice"] == []
    references = [asked[0] for asked in place.asked[::2]]
    assert references[1].mixer["name"] == "static"
    assert references[1].mixer["weights"] == pytest.approx(dict.fromkeys("abc", 1 / 3))
    seeds = [proxy.seed for asked in place.asked for proxy in asked]
    assert len(set(seeds)) == 4


@pytest.mark.parametrize(("tolerance", "rounds"), [(0.26, 2), (0.27, 1)])
def test_doremi_rounds_stop_below_the_tolerance(tolerance, rounds):
    """With no excess, the largest change of the first round is 0.6 - 1/3."""
    mixer = build_mixer("doremi", {"rounds": 5, "tolerance": tolerance})
    mixer.plan(lab(excess=[0.0, 0.0, 0.0]))
    assert len(mixer.findings["rounds"]) == rounds


def test_doremi_says_when_rounds_do_not_settle():
    place = lab()
    mixer = build_mixer("doremi", {"rounds": 2, "tolerance": 0.0, "eta": 0.01})
    mixer.plan(place)
    assert len(place.asked) == 4
    assert any("after 2 rounds" in line for line in mixer.findings["advice"])


def test_doremi_starts_from_the_reference_weights_with_its_eta():
    place = lab()
    mixer = build_mixer("doremi", {"eta": 0.1, "rounds": 2, "reference_weights": {"a": 2}})
    plan = mixer.plan(place)
    assert [len(asked) for asked in place.asked] == [1, 1, 1, 1]
    assert place.asked[0][0].mixer == {"name": "static", "weights": {"a": 1.0}}
    assert [asked[0].mixer["eta"] for asked in place.asked[1::2]] == [0.1, 0.1]
    assert dict(plan.weights) == pytest.approx(mixer.findings["rounds"][-1]["weights"])
    other = build_mixer("doremi", {"eta": 1.0, "reference_weights": {"a": 2}}).plan(lab())
    assert dict(plan.weights) != pytest.approx(dict(other.weights), abs=0.1)


def test_doge_follows_the_targets():
    gradients = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.9, 0.1, 0.1]])
    place = lab(gradients=gradients)
    mixer = build_mixer("doge", {"targets": ["c"]})
    plan = mixer.plan(place)
    [[proxy]] = place.asked
    assert proxy.mixer["targets"] == ["c"]
    assert proxy.settings == {"sketch": {"refresh": "never"}, "probe": {"rows": 0}}
    assert set(plan.weights) == {"a", "b"}  # the target is no part of the plan
    assert plan.weights["a"] > plan.weights["b"]
    found = mixer.findings
    assert found["weights"] == pytest.approx(dict(plan.weights))
    assert found["last"]["a"] > found["weights"]["a"]
    assert set(found) >= {"drift", "entropy_nats", "effective_sources", "trajectory", "advice"}
    apart = sum(abs(found["last"][name] - w) for name, w in found["weights"].items())
    assert found["last_from_average"] == pytest.approx(apart)
    assert found["second_half_from_first"] > 0
    json.dumps(found)


def test_doge_hands_its_options_to_the_proxy():
    gradients = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.1]])
    plans = []
    for mu in (0.01, 0.1):
        place = lab(gradients=gradients)
        plans.append(build_mixer("doge", {"mu": mu, "clip_norm": 1.0}).plan(place).weights)
        [[proxy]] = place.asked
        assert (proxy.mixer["mu"], proxy.mixer["clip_norm"]) == (mu, 1.0)
        assert proxy.mixer["alignment"] == "independent"
        assert "targets" not in proxy.mixer
    assert sum(abs(plans[0][name] - plans[1][name]) for name in plans[0]) > 0.05


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("doremi", {"eta": [1.0, 0.1]}, "mixer.eta=.*give a finite number above 0"),
        ("doremi", {"eta": -1}, "mixer.eta=-1: give a finite number above 0"),
        (
            "doremi",
            {"rounds": 0},
            "mixer.rounds=0: give a whole number of at least 1 and at most 100",
        ),
        ("doremi", {"rounds": 1.9}, "mixer.rounds=1.9: give a whole number"),
        ("doremi", {"clip_excess_per": "sample"}, "mixer.clip_excess_per"),
        ("doge", {"mu": "low"}, "mixer.mu='low': give a finite number above 0"),
        ("doge", {"targets": "c"}, "mixer.targets must list"),
    ],
)
def test_wrong_options_are_refused_before_any_proxy(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build_mixer(name, options)


def test_unknown_names_are_refused_before_any_proxy():
    place = lab()
    with pytest.raises(ConfigError, match='reference_weights names "z"'):
        build_mixer("doremi", {"reference_weights": {"a": 1, "z": 1}}).plan(place)
    with pytest.raises(ConfigError, match='targets names "z"'):
        build_mixer("doge", {"targets": ["z"]}).plan(place)
    assert place.asked == []
