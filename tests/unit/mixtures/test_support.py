"""How well runs support a proposal: the left-out ranks, the weights seen and the nearest runs."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dograph.mixtures import from_table
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.tables import MixtureTable, read_table

PLANS = Path(__file__).parents[3] / "benchmarks" / "results" / "plans"
pytestmark = pytest.mark.usefixtures("shared_fits")


@pytest.fixture(scope="module")
def proxies():
    """32 real proxies of seven sources."""
    return read_table(PLANS / "proxies.mixtures.csv", PLANS / "proxies.losses.csv")


def support(table, method="regmix", **how):
    how = {"target": "mean", "draws": 5000} | how
    proposal = propose_from_table(method, table, **how)
    weight_S = np.array(list(proposal.mixture.weights.values()))
    return proposal.findings["support"], weight_S, proposal.findings["notes"]


def test_a_good_fit_near_real_runs_is_supported(proxies):
    found, weight_S, notes = support(proxies, "mixing-law", target="RedPajamaC4")
    assert found["problems"] == []
    assert found["spearman"] > 0.95
    distance_N = np.abs(proxies.weight_NS - weight_S).sum(1)
    assert list(found["nearest_runs"].values()) == pytest.approx(sorted(distance_N)[:3])
    assert next(iter(found["nearest_runs"])) == proxies.runs[int(distance_N.argmin())]
    assert any("more of a source than any run: RedPajamaC4 1 (" in note for note in notes)


def test_a_real_fit_that_does_not_rank_is_not(proxies):
    """The mean over sources is no linear function of the mixture: Spearman 0.22 on left-out runs,
    and 0.91 of a source of which no run has over 0.39."""
    found, weight_S, notes = support(proxies, surrogate="ridge", draws=20_000)
    ranks, above, far = found["problems"]
    assert "32 runs" in ranks
    assert f"a Spearman correlation of {found['spearman']:.2f}; at least 0.50" in ranks
    stackexchange = proxies.sources.index("RedPajamaStackExchange")
    assert f"RedPajamaStackExchange {weight_S[stackexchange]:.4g} (most in a run: 0.3897)" in above
    assert "from every average of runs, at most 1.00" in far
    assert set(found["problems"]) <= set(notes)


def test_a_real_fit_that_ranks_well_far_from_all_runs_is_not(proxies):
    found, _, _ = support(proxies, "mixing-law", target="RedPajamaWikipedia")
    assert found["spearman"] > 0.9
    above, far = found["problems"]
    assert "RedPajamaWikipedia 1 (most in a run: 0.4" in above
    assert "1.20 (L1) from every average of runs" in far


def test_the_distance_to_averages_of_runs():
    """By hand, and against the nearest of many random averages."""
    corners = np.eye(3)
    assert from_table.distance_to_blends(corners, np.full(3, 1 / 3)) == pytest.approx(0, abs=1e-12)
    assert from_table.distance_to_blends(corners[:2], np.full(3, 1 / 3)) == pytest.approx(2 / 3)
    assert from_table.distance_to_blends(corners[:1], corners[2]) == pytest.approx(2)
    draws = np.random.default_rng(0)
    run_NS, other_S = draws.dirichlet(np.ones(4), 6), np.array([0.9, 0.1, 0, 0])
    blend_MS = draws.dirichlet(np.full(6, 0.3), 20_000) @ run_NS
    nearest = np.abs(blend_MS - other_S).sum(1).min()
    found = from_table.distance_to_blends(run_NS, other_S)
    assert nearest - 0.03 < found <= nearest + 1e-12


def rare_table(runs=60):
    """Sources a and b, and one of which no run has over 0.026, that seems to help the most."""
    draws = np.random.default_rng(0)
    rare_N = draws.uniform(0, 0.026, runs)
    a_N = draws.uniform(0, 1, runs) * (1 - rare_N)
    weight_NS = np.stack([a_N, 1 - a_N - rare_N, rare_N], axis=1)
    loss_NV = (3 - 0.2 * a_N - 2 * rare_N + 0.01 * draws.standard_normal(runs))[:, None]
    return MixtureTable(
        ["a", "b", "rare"], ["x"], [f"r{n}" for n in range(runs)], weight_NS, loss_NV
    )


def test_a_source_that_runs_hardly_had():
    equal = dict.fromkeys(["a", "b", "rare"], 1.0)
    found, weight_S, _ = support(rare_table(), prior=equal, surrogate="linear")
    assert weight_S[2] > 0.68
    assert any(f"rare {weight_S[2]:.4g} (most in a run: 0.0" in one for one in found["problems"])
    natural = {"a": 0.5, "b": 0.498, "rare": 0.002}
    how = {"prior": natural, "surrogate": "linear", "max_usage": 15.0}
    found, weight_S, _ = support(rare_table(), **how)
    assert weight_S[2] <= 15 * 0.002 + 1e-9
    assert found["problems"] == []


@pytest.mark.parametrize(("cap", "problems"), [(0.024, 0), (0.026, 1)])
def test_small_weights_above_what_runs_had_are_harmless(cap, problems):
    """No run has over 0.005 of the source; up to 0.02 more is noted only, though it is 5 times."""
    rare_N, a_N = np.tile([0.0, 0.005, 0.002, 0.004], 5), np.linspace(0.2, 0.8, 20)
    weight_NS = np.stack([a_N, 1 - a_N - rare_N, rare_N], axis=1)
    loss_NV = (3 - 0.2 * a_N - 20 * rare_N)[:, None]
    names = [f"r{n}" for n in range(20)]
    table = MixtureTable(["a", "b", "rare"], ["x"], names, weight_NS, loss_NV)
    found, weight_S, notes = support(table, "mixing-law", caps={"a": 0.8, "rare": cap})
    assert weight_S[2] == pytest.approx(cap)
    assert len(found["problems"]) == problems
    assert any(f"rare {cap} (most in a run: 0.005)" in note for note in notes)


@pytest.mark.parametrize("runs", [8, 40])
def test_noise_is_hardly_ever_supported(runs):
    passed = 0
    for seed in range(20):
        draws = np.random.default_rng(seed)
        weight_NS, loss_NV = draws.dirichlet(np.ones(3), runs), draws.normal(3, 0.1, (runs, 1))
        names = [f"r{n}" for n in range(runs)]
        table = MixtureTable(["a", "b", "c"], ["x"], names, weight_NS, loss_NV)
        found, _, _ = support(table, surrogate="linear", draws=500)
        passed += not any("Spearman" in problem for problem in found["problems"])
    assert passed <= 2


@pytest.mark.parametrize("runs", [4, 6, 12, 60])
def test_the_least_rank_correlation_is_above_chance(runs):
    """By scipy on random orders; of 60 runs the constant is the higher bound."""
    draws = np.random.default_rng(0)
    least = max(from_table.LEAST_SPEARMAN, from_table.CHANCE / math.sqrt(runs - 1))
    order = np.arange(runs)
    by_chance = [stats.spearmanr(order, draws.permutation(runs)).statistic for _ in range(1000)]
    assert np.mean(np.array(by_chance) >= least) < 0.07


def test_a_constant_surrogate_supports_nothing(proxies):
    found, _, _ = support(proxies, surrogate="lightgbm", target="RedPajamaC4")
    assert "lightgbm predicts losses with a Spearman correlation of 0.00" in found["problems"][0]


def test_four_runs_in_the_right_order_are_enough_and_others_are_not():
    weight_NS = np.array([[0.2, 0.8], [0.4, 0.6], [0.6, 0.4], [0.8, 0.2]])
    for loss, number in (([3.0, 2.8, 2.6, 2.4], 0), ([3.0, 2.6, 2.8, 2.4], 1)):
        loss_NV = np.array(loss)[:, None]
        table = MixtureTable(["a", "b"], ["x"], list("rstu"), weight_NS, loss_NV)
        found, _, _ = support(table, surrogate="linear", draws=500)
        assert found["least_spearman"] == pytest.approx(0.95, abs=0.001)
        assert len(found["problems"]) == number
