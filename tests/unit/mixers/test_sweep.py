"""The mixtures that are tried, the caps of a plan and the table that proxies fill."""

import numpy as np
import pytest

from dograph.mixers.base import ProxyResult
from dograph.mixers.mixing_law import MixingLaw, _curve
from dograph.mixers.regmix import RegMix
from dograph.mixers.sweep import Sweep, table_of
from dograph.mixtures.from_table import Proposal
from dograph.mixtures.proposals import generate_mixtures
from dograph.types import Mixture

TOKENS = {"web": 6_000_000, "code": 3_000_000, "books": 1_000_000}


class Lab:
    tokens = strata = TOKENS
    budget, steps = 8_000_000, 100

    def train(self, proxies):
        return [ProxyResult({"web": 1.0 + n}, [], {}, "", 1, 1) for n, _ in enumerate(proxies)]


def sweep(**changes):
    facts = {"num_proxies": 8, "target": "mean", "max_usage": 2.0, "max_epochs": None, "seed": 3}
    return Sweep(**(facts | changes))


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
    caps = sweep(max_usage=max_usage, max_epochs=max_epochs).caps(Lab())
    assert caps == pytest.approx(dict(zip(TOKENS, expected, strict=True)))


def test_mixtures_are_the_generators_under_the_same_usage_cap():
    found = sweep(max_usage=1.5, seed=7).mixtures(Lab())
    assert found == generate_mixtures(TOKENS, 8, seed=7, max_usage=1.5)
    assert max(mixture.weights["books"] for mixture in found) <= 1.5 * 0.1 + 2e-4


def test_proxies_leave_out_what_has_no_weight():
    mixtures = [Mixture.normalised({"web": 1.0, "code": 0.0, "books": 3.0})]
    [proxy] = sweep(seed=5).proxies(mixtures, "small, mixture", {"model": {"preset": "tiny"}})
    assert proxy.mixer == {"name": "static", "weights": {"web": 0.25, "books": 0.75}}
    assert (proxy.label, proxy.seed) == ("small, mixture 1", 5)
    assert proxy.settings == {"model": {"preset": "tiny"}}


def test_a_loss_that_a_proxy_lacks_is_missing():
    mixtures = [Mixture({"code": 0.25, "web": 0.75}), Mixture({"books": 1.0})]
    table = table_of(mixtures, [{"web": 2.0}, {"code": 3.0, "web": 4.0}], list(TOKENS))
    np.testing.assert_array_equal(table.weight_NS, [[0.75, 0.25, 0], [0, 0, 1]])
    assert table.targets == ["web", "code"]
    np.testing.assert_array_equal(table.loss_NV, [[2.0, np.nan], [4.0, 3.0]])


def test_natural_is_by_the_tokens_of_the_sources_that_have_losses(monkeypatch):
    mixtures = [Mixture({"web": 1.0})]
    table = table_of(mixtures, [{"books": 1.0, "web": 1.0}], list(TOKENS))
    asked = []
    monkeypatch.setattr(
        "dograph.mixers.sweep.propose_from_table", lambda *_, target, **__: asked.append(target)
    )
    for target in ("natural", ["web"]):
        sweep(target=target).propose("regmix", Lab(), table, None)
    assert asked == [{"books": 1e6, "web": 6e6}, ["web"]]


def test_regmix_asks_for_what_it_was_told(monkeypatch):
    asked = {}

    def propose(method, table, **how):
        asked.update(how, method=method, table=table)
        return Proposal(Mixture({"web": 1.0}), {})

    monkeypatch.setattr("dograph.mixers.sweep.propose_from_table", propose)
    mixer = RegMix(
        num_proxies=4, surrogate="ridge", top=9, draws=77, max_usage=1.75, max_epochs=1.5, seed=6
    )
    mixer.plan(Lab())
    assert (asked["method"], asked["surrogate"]) == ("regmix", "ridge")
    assert (asked["top"], asked["draws"], asked["seed"]) == (9, 77, 6)
    assert asked["prior"] == TOKENS
    assert asked["caps"] == pytest.approx({"web": 1.0, "code": 0.525, "books": 0.175})
    assert asked["table"].loss_NV[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_defaults_are_the_authors():
    options = RegMix().options
    assert (options.draws, options.top, options.surrogate) == (100_000, 128, None)
    for planner in (RegMix(), MixingLaw()):
        assert planner.options.max_usage == 15.0
        assert planner.options.target == "mean"


def test_a_curve_has_no_first_third():
    """Losses of the warm-up are far from any power law; steps become tokens."""
    points = [(n, {"web": 9.0 if 3 * n < 100 else 2.0 + 1 / n}) for n in (10, 33, 34, 50, 100)]
    curve = _curve(ProxyResult({}, points, {}, "", 1, 5_000), "web")
    np.testing.assert_allclose(curve.x_X, [1700, 2500, 5000])
    np.testing.assert_allclose(curve.loss_X, [2 + 1 / 34, 2.02, 2.01])
