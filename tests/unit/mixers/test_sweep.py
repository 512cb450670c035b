"""The mixtures that are tried, the caps of a plan and the table that proxies fill."""

import numpy as np
import pytest

from dograph.errors import ConfigError
from dograph.mixers.base import ProxyResult
from dograph.mixers.sweep import MixingLaw, RegMix, SweepOptions, epoch_caps, late_curve
from dograph.mixtures.from_table import Proposal
from dograph.mixtures.proposals import APART, generate_mixtures, promising_mixtures
from dograph.mixtures.surrogates import PlanObjective
from dograph.rng import stream
from dograph.types import Mixture

TOKENS = {"web": 6_000_000, "code": 3_000_000, "books": 1_000_000}


class Lab:
    """Proxies whose losses are those given, in turn, or count up."""

    tokens = strata = TOKENS
    budget, steps, proxy_steps, parameters = 8_000_000, 100, 50, 10

    def __init__(self, losses=None):
        self.losses, self.asked = losses, []

    def train(self, proxies):
        self.asked += proxies
        losses = self.losses or [{"web": 1.0 + n} for n, _ in enumerate(proxies)]
        return [ProxyResult(own, [], {}, "", 1, 1) for own in losses]


@pytest.fixture
def asked(monkeypatch):
    """What plans ask of the table of their proxies."""
    asked = {}

    def propose(method, table, **how):
        asked.update(how, method=method, table=table)
        findings = {"surrogate": {"name": "ridge"}, "predicted": {"proposal": 1.0}}
        return Proposal(Mixture({"web": 1.0}), findings, PlanObjective([], np.array([])))

    monkeypatch.setattr("dograph.mixers.sweep.propose_from_table", propose)
    return asked


@pytest.mark.parametrize(
    ("max_usage", "max_epochs", "expected"),
    [
        (2.0, None, [1.0, 0.6, 0.2]),  # twice the shares 0.6, 0.3 and 0.1, and no more than all
        (2.0, 4.0, [1.0, 0.6, 0.2]),  # four epochs are 3.0, 1.5 and 0.5 of the run: no bound
        (15.0, 1.5, [1.0, 0.5625, 0.1875]),  # 1.5 epochs are 1.125, 0.5625 and 0.1875
        (1.75, 1.5, [1.0, 0.525, 0.175]),  # the lower of both
    ],
)
def test_caps_by_usage_and_by_epochs(max_usage, max_epochs, expected):
    options = SweepOptions(num_proxies=8, max_usage=max_usage, max_epochs=max_epochs)
    caps = options.caps(Lab())
    assert caps == pytest.approx(dict(zip(TOKENS, expected, strict=True)))


def test_caps_by_epochs_alone():
    assert epoch_caps(Lab(), 4.0) == pytest.approx({"web": 1.0, "code": 1.0, "books": 0.5})
    assert epoch_caps(Lab(), None) == {"web": 1.0, "code": 1.0, "books": 1.0}


def test_mixtures_are_the_generators_under_the_same_usage_cap(asked):
    lab = Lab()
    RegMix(num_proxies=8, max_usage=1.5, max_epochs=None, seed=7).plan(lab)
    expected = generate_mixtures(TOKENS, 8, seed=7, max_usage=1.5)
    weight_NS = [[mixture.weights[name] for name in TOKENS] for mixture in expected]
    np.testing.assert_array_equal(asked["table"].weight_NS, weight_NS)
    assert max(mixture.weights["books"] for mixture in expected) <= 1.5 * 0.1 + 2e-4


def test_proxies_leave_out_what_has_no_weight(asked, monkeypatch):
    mixtures = [Mixture.normalised({"web": 1.0, "code": 0.0, "books": 3.0})]
    monkeypatch.setattr("dograph.mixers.sweep.generate_mixtures", lambda *_, **__: mixtures)
    lab = Lab()
    monkeypatch.setattr("dograph.mixers.sweep.late_curve", lambda *_: None)
    monkeypatch.setattr("dograph.mixers.sweep.nest", lambda *_, **__: ([{"web": 1.0}], {}))
    MixingLaw(nest="sizes", sizes=["small", "tiny", "demo"], seed=5).plan(lab)
    proxy = lab.asked[0]
    assert proxy.mixer == {"name": "static", "weights": {"web": 0.25, "books": 0.75}}
    assert (proxy.label, proxy.seed) == ("small, mixture 1", 5)
    assert proxy.settings == {"eval": {"every": 4}, "model": {"preset": "small"}}
    lab = Lab()
    MixingLaw(seed=5).plan(lab)
    assert [(proxy.label, proxy.settings) for proxy in lab.asked] == [("mixture 1", {})]


def test_a_loss_that_a_proxy_lacks_is_missing(asked, monkeypatch):
    mixtures = [Mixture({"code": 0.25, "web": 0.75}), Mixture({"books": 1.0})]
    monkeypatch.setattr("dograph.mixers.sweep.generate_mixtures", lambda *_, **__: mixtures)
    RegMix().plan(Lab([{"web": 2.0}, {"code": 3.0, "web": 4.0}]))
    table = asked["table"]
    np.testing.assert_array_equal(table.weight_NS, [[0.75, 0.25, 0], [0, 0, 1]])
    assert table.targets == ["web", "code"]
    np.testing.assert_array_equal(table.loss_NV, [[2.0, np.nan], [4.0, 3.0]])


@pytest.mark.parametrize(
    ("target", "expected"), [("natural", {"books": 1e6, "web": 6e6}), (["web"], ["web"])]
)
def test_natural_is_by_the_tokens_of_the_sources_that_have_losses(asked, target, expected):
    RegMix(num_proxies=4, target=target).plan(Lab([{"books": 1.0, "web": 1.0}] * 4))
    assert asked["target"] == expected


def test_a_source_called_natural_is_a_target_like_any_other(asked, monkeypatch):
    monkeypatch.setattr(Lab, "tokens", {"natural": 3_000_000, "web": 7_000_000})
    RegMix(num_proxies=4, target="natural").plan(Lab([{"natural": 1.0, "web": 1.0}] * 4))
    assert asked["target"] == "natural"


def test_every_round_has_draws_of_its_own(asked, monkeypatch):
    drawn = []

    def promising(*given, draws, **how):
        drawn.append(draws.random())
        return np.array([[0.5, 0.3, 0.2]])

    monkeypatch.setattr("dograph.mixers.sweep.promising_mixtures", promising)
    RegMix(rounds=[4, 1, 1]).plan(Lab())
    assert len(set(drawn)) == 2


def test_regmix_asks_for_what_it_was_told(asked):
    mixer = RegMix(
        num_proxies=4, surrogate="ridge", top=9, draws=77, max_usage=1.75, max_epochs=1.5, seed=6
    )
    mixer.plan(Lab())
    assert (asked["method"], asked["surrogate"]) == ("regmix", "ridge")
    assert (asked["top"], asked["draws"], asked["seed"]) == (9, 77, 6)
    assert asked["prior"] == TOKENS
    assert asked["caps"] == pytest.approx({"web": 1.0, "code": 0.525, "books": 0.175})
    assert asked["table"].loss_NV[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_later_round_takes_the_lowest_predictions_that_are_new():
    """Against a search, mixture by mixture, over the same draws."""
    made_NS, pool = np.array([[0.0, 0.0, 1.0], [0.1, 0.1, 0.8]]), []

    def predict(weight_NS):
        pool.append(weight_NS)
        return weight_NS @ np.array([1.0, 0.0, -1.0])

    def drawn(done):
        around = np.array([0.6, 0.3, 0.1]), np.array([1.0, 0.6, 1.0])
        draws = stream(4, "test", done)
        return promising_mixtures(predict, *around, made_NS, 6, draws=draws, num_draws=3000)

    weight_NS, others = drawn(1), list(made_NS)
    assert len(pool[0]) == 3000
    assert 0.6 <= pool[0][:, 1].max() <= 0.6 + 2e-4 + 1e-9  # the cap, up to the grid
    np.testing.assert_allclose(pool[0].sum(1), 1)
    for weight_S in sorted(pool[0].tolist(), key=lambda w: w[0] - w[2]):
        if len(others) < 8 and all(np.abs(weight_S - other).sum() > APART for other in others):
            others.append(np.array(weight_S))
    np.testing.assert_array_equal(weight_NS, others[2:])
    np.testing.assert_array_equal(drawn(1), weight_NS)
    assert (drawn(2) != weight_NS).any()


def test_mixtures_come_closer_where_there_is_little_room():
    """Of two sources, 100 mixtures cannot be 0.1 apart: 2 / 0.1 would be the most."""
    flat, prior_S, none = lambda w: w[:, 0], np.array([0.5, 0.5]), np.zeros((0, 2))
    how = {"draws": stream(1, "test"), "num_draws": 5000}
    weight_NS = promising_mixtures(flat, prior_S, np.ones(2), none, 100, **how)
    assert len(np.unique(weight_NS[:, 0])) == 100
    assert 2 * np.diff(np.sort(weight_NS[:, 0])).min() > APART / 8  # halved three times
    with pytest.raises(ConfigError, match=r"needs 3 new mixtures.*1 are new.*mixer\.rounds"):
        promising_mixtures(flat, prior_S, np.array([0.5, 0.5]), none, 3, **how)


def test_rounds_add_up_and_each_knows_all_before_it(monkeypatch):
    """Losses fall with the share of code: later rounds draw more of it than the first."""

    class CodeLab(Lab):
        def train(self, proxies):
            self.asked.append(proxies)
            losses = [2.0 - p.mixer["weights"].get("code", 0.0) for p in proxies]
            return [ProxyResult({"web": loss}, [], {}, "", 1, 1) for loss in losses]

    options = {"surrogate": "linear", "max_epochs": None, "draws": 2000, "top": 10}
    mixer, lab = RegMix(rounds=[12, 5, 3], seed=2, **options), CodeLab()
    mixture = mixer.plan(lab)
    assert [len(proxies) for proxies in lab.asked] == [12, 5, 3]
    labels = [proxy.label for proxies in lab.asked for proxy in proxies]
    assert labels == [f"mixture {n}" for n in range(1, 21)]
    share = [np.mean([p.mixer["weights"].get("code", 0.0) for p in own]) for own in lab.asked]
    assert share[0] < 0.5 < 0.8 < share[1]
    assert mixture.weights["code"] > 0.9
    assert [own["proxies"] for own in mixer.findings["rounds"]] == [12, 5, 3]
    assert {own["surrogate"] for own in mixer.findings["rounds"]} == {"linear"}
    again = CodeLab()
    assert RegMix(rounds=[12, 5, 3], seed=2, **options).plan(again) == mixture
    assert again.asked == lab.asked
    one = CodeLab()
    RegMix(num_proxies=12, seed=2, **options).plan(one)
    assert one.asked[0] == lab.asked[0]  # the first round is RegMix's own


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rounds": [3, 8]}, "first round needs at least 4"),
        ({"rounds": [8, 0]}, r"mixer\.rounds"),
        ({"rounds": "64"}, r"mixer\.rounds"),
        ({"rounds": [8, 4], "num_proxies": 64}, r"rounds=\[8, 4\] with 64 proxies.*or give 12"),
    ],
)
def test_wrong_rounds_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        RegMix(**options)


def test_defaults_are_the_authors():
    assert RegMix(rounds=[8, 4], num_proxies=12).options.rounds == [8, 4]
    options = RegMix().options
    assert (options.draws, options.top, options.surrogate) == (100_000, 128, None)
    for planner in (RegMix(), MixingLaw()):
        assert planner.options.max_usage == 15.0
        assert planner.options.target == "mean"


def test_a_curve_has_no_first_third():
    """Losses of the warm-up are far from any power law; steps become tokens."""
    points = [(n, {"web": 9.0 if 3 * n < 100 else 2.0 + 1 / n}) for n in (10, 33, 34, 50, 100)]
    curve = late_curve(ProxyResult({}, points, {}, "", 1, 5_000), "web")
    np.testing.assert_allclose(curve.x_X, [1700, 2500, 5000])
    np.testing.assert_allclose(curve.loss_X, [2 + 1 / 34, 2.02, 2.01])
