"""Olmix: laws with a KL term to a prior, and reuse of an earlier mixture."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from dograph.errors import ConfigError
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.from_table import MixtureReuse, propose_from_table
from dograph.mixtures.mixing_laws import ExponentialLaw
from dograph.mixtures.tables import MixtureTable, read_table
from law_oracles import weighted_slope, weighted_value
from planned_tables import exponential_table

pytestmark = pytest.mark.usefixtures("shared_fits")
SOURCES = ["a", "b", "c", "d"]
KLS = [1e-3, 0.05, 0.1, 3.0]


def some_laws(seed, sources, capped=False):
    draws = np.random.default_rng(seed)
    laws = [
        ExponentialLaw(draws.uniform(1, 3), draws.normal(), draws.normal(0, 2, sources))
        for _ in range(5 + sources)
    ]
    share_V, prior_S = draws.dirichlet(np.ones(len(laws))), draws.dirichlet(np.ones(sources))
    cap_S = np.ones(sources)
    if capped:
        cap_S = np.minimum(1, draws.uniform(0.4, 2, sources) * 1.5 / sources)
        cap_S *= max(1, 1.1 / cap_S.sum())
    return laws, share_V, prior_S, cap_S


def log_ratio(weight_S, prior_S):
    return np.log(np.maximum(weight_S, 1e-300) / prior_S)


def divergence(weight_S, prior_S):
    return float(weight_S @ log_ratio(weight_S, prior_S))


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("kl", KLS)
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_scipys_and_meets_the_optimality_conditions(seed, kl, capped):
    laws, share_V, prior_S, cap_S = some_laws(seed, 3 + 2 * seed, capped)
    found = find_optimum(laws, share_V, cap_S, kl=kl, prior_S=prior_S)

    def value(r):
        return weighted_value(laws, share_V, r) + kl * divergence(r, prior_S)

    def slope(r):
        return weighted_slope(laws, share_V, r) + kl * (log_ratio(r, prior_S) + 1)

    long = minimize(
        *(value, cap_S / cap_S.sum()),
        jac=slope,
        method="SLSQP",
        bounds=[(1e-12, cap) for cap in cap_S],
        constraints={"type": "eq", "fun": lambda r: r.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    weight_S = found.weight_S
    assert found.loss <= value(long.x) + 1e-12
    if kl > 0.01:  # with less, SLSQP stops early next to the logarithm's pole
        np.testing.assert_allclose(weight_S, long.x, atol=2e-5)
    assert weight_S.sum() == pytest.approx(1, abs=1e-12)
    assert (weight_S <= cap_S).all()
    # slopes are equal below the caps, and lower at the caps
    slope_S, below_S = slope(weight_S), (weight_S < cap_S) & (weight_S > 1e-300)
    level = slope_S[below_S].mean()
    np.testing.assert_allclose(slope_S[below_S], level, atol=1e-8 * (1 + kl))
    assert (slope_S[weight_S >= cap_S] <= level + 1e-9).all()
    assert found.gap < 1e-9 * (1 + kl)
    assert found.unique
    assert found.loss == pytest.approx(value(weight_S), abs=1e-10)


def test_mirror_descent_ends_at_the_same_mixture():
    """r <- r exp(-step slope), normalised: an oracle that knows no second derivative."""
    laws, share_V, prior_S, _ = some_laws(1, 5)
    weight_S = np.full(5, 0.2)
    for _ in range(4000):
        slope_S = weighted_slope(laws, share_V, weight_S) + 0.1 * np.log(weight_S / prior_S)
        weight_S = weight_S * np.exp(-0.1 * (slope_S - slope_S.min()))
        weight_S /= weight_S.sum()
    found = find_optimum(laws, share_V, kl=0.1, prior_S=prior_S)
    np.testing.assert_allclose(found.weight_S, weight_S, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_limits(seed):
    laws, share_V, prior_S, cap_S = some_laws(seed, 6, capped=True)
    most = find_optimum(laws, share_V, kl=1e7, prior_S=prior_S).weight_S
    np.testing.assert_allclose(most, prior_S, atol=1e-5)
    least = find_optimum(laws, share_V, cap_S, kl=1e-7, prior_S=prior_S)
    none = find_optimum(laws, share_V, cap_S)
    np.testing.assert_allclose(least.weight_S, none.weight_S, atol=1e-4)
    for kl in (0.0, 1e-12):
        same = find_optimum(laws, share_V, cap_S, kl=kl, prior_S=prior_S)
        np.testing.assert_array_equal(same.weight_S, none.weight_S)


def test_more_weight_on_the_prior_comes_nearer_to_it():
    laws, share_V, prior_S, cap_S = some_laws(2, 7, capped=True)
    found = [find_optimum(laws, share_V, cap_S, kl=kl, prior_S=prior_S) for kl in KLS]
    away = [divergence(one.weight_S, prior_S) for one in found]
    loss = [weighted_value(laws, share_V, one.weight_S) for one in found]
    assert away == sorted(away, reverse=True)
    assert loss == sorted(loss)


def test_order_does_not_matter():
    laws, share_V, prior_S, cap_S = some_laws(3, 6, capped=True)
    order = np.array([4, 2, 0, 5, 3, 1])
    moved = [replace(law, t_S=law.t_S[order]) for law in laws]
    weight_S = find_optimum(laws, share_V, cap_S, kl=0.1, prior_S=prior_S).weight_S
    other_S = find_optimum(moved, share_V, cap_S[order], kl=0.1, prior_S=prior_S[order]).weight_S
    np.testing.assert_allclose(other_S, weight_S[order], atol=1e-12)


def test_what_a_cap_cuts_off_goes_to_the_others():
    """Of a law that depends on no source the best mixture is the prior, cut to the caps."""
    laws, prior_S = [ExponentialLaw(1.0, 0.0, np.zeros(3))], np.array([0.505, 0.396, 0.099])
    found = find_optimum(laws, [1.0], np.array([0.5, 1.0, 1.0]), kl=0.1, prior_S=prior_S)
    np.testing.assert_allclose(found.weight_S, [0.5, 0.4, 0.1], atol=1e-12)


def test_steep_laws_and_caps_that_leave_almost_nothing_else():
    """Where the best source is capped, what is left goes to sources of weight exp(-3000)."""
    laws = [ExponentialLaw(1.0, 0.0, np.array([-3.0, 0.0, 0.1]))]
    prior_S = np.array([0.4, 0.3, 0.3])
    found = find_optimum(laws, [1.0], np.array([0.5, 1.0, 1.0]), kl=1e-5, prior_S=prior_S)
    assert found.weight_S[0] == 0.5
    assert found.weight_S[1] == pytest.approx(0.5, abs=1e-6)
    assert found.gap < 1e-12


def test_steep_laws_are_solved_by_way_of_higher_kls():
    """Newton's method for the last kl alone ends far from the minimum of these."""
    rows = ([25, -4, 3, 11, -2], [0, -9, 13, 4, 0], [4, -3, -18, 22, 8], [4, 23, -18, 1, -9])
    laws = [ExponentialLaw(1.0, 0.0, np.array(row, dtype=float)) for row in rows]
    found = find_optimum(laws, np.ones(4), kl=1e-6, prior_S=np.full(5, 0.2))
    assert found.gap < 1e-8
    assert found.loss == pytest.approx(find_optimum(laws, np.ones(4)).loss, abs=1e-5)


def plan(table, **how):
    how = {"target": "mean", "kl": 0.1, "delta": 0.02} | how
    return propose_from_table("olmix", table, **how)


@pytest.fixture(scope="module")
def swarm():
    return exponential_table(9, SOURCES, ["a", "b"])


def test_a_plan_from_a_table(swarm):
    table, t_VS = swarm
    prior_S = np.array([0.1, 0.2, 0.3, 0.4])
    prior = dict(zip(SOURCES, prior_S.tolist(), strict=True))
    proposal = plan(table, prior=prior)
    laws = [ExponentialLaw(1.5, 0.5, t_S) for t_S in t_VS]
    true_S = find_optimum(laws, np.ones(2), kl=0.1, prior_S=prior_S).weight_S
    assert list(proposal.mixture.weights.values()) == pytest.approx(true_S, abs=1e-4)
    assert json.loads(json.dumps(proposal.findings)) == proposal.findings
    assert proposal.findings["surrogate"]["why"] == "the law of Olmix"
    with pytest.raises(ConfigError, match="olmix has an exponential law"):
        plan(table, surrogate="ridge")


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("caps", [None, {"a": 0.2, "c": 0.15}])
def test_reuse_without_a_change_returns_the_old_mixture(swarm, kl, caps):
    """The runs have the unchanged sources in the old ratios; the prior has others."""
    table, t_VS = swarm
    prior = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    old = plan(table, prior=prior, kl=kl, caps=caps).mixture.weights
    kept = old["a"] + old["c"]
    weight_NS = table.weight_NS.copy()
    for column, source in ((0, "a"), (2, "c")):
        weight_NS[:, column] = table.weight_NS[:, [0, 2]].sum(1) * old[source] / kept
    again = replace(table, weight_NS=weight_NS, loss_NV=1.5 + np.exp(0.5 + weight_NS @ t_VS.T))
    reuse = MixtureReuse.of(old, ["a", "c"], again)
    proposal = plan(again, prior=prior, kl=kl, caps=caps, reuse=reuse)
    assert dict(proposal.mixture.weights) == pytest.approx(dict(old), abs=2e-4)
    assert not any("earlier mixture" in note for note in proposal.findings["notes"])


def test_a_new_source_leaves_the_old_ratios(swarm):
    table, _ = swarm
    reuse = MixtureReuse.of({"a": 0.5, "b": 0.3, "gone": 0.2}, ["a", "b"], table)
    proposal = plan(table, reuse=reuse, caps={"b": 0.09})
    weights = proposal.mixture.weights
    assert weights["a"] / weights["b"] == pytest.approx(5 / 3)
    assert weights["b"] <= 0.09 + 1e-12
    assert set(weights) == set(SOURCES)
    assert proposal.findings["sources"] == ["c", "d", "unchanged"]
    mean_S = table.weight_NS.mean(0)
    assert list(proposal.findings["prior"].values()) == pytest.approx(mean_S)
    assert any("of 9 runs the unchanged sources are not" in n for n in proposal.findings["notes"])


def test_a_column_that_stands_for_the_old_mixture(swarm):
    table, _ = swarm
    old = {"x": 0.6, "y": 0.2, "a": 0.2}
    weights = plan(table, reuse=MixtureReuse.of(old, ["d"], table)).mixture.weights
    assert set(weights) == {"a", "b", "c", "x", "y"}
    plain = plan(table).mixture.weights
    assert weights["x"] == pytest.approx(0.75 * plain["d"])
    assert weights["y"] == pytest.approx(0.25 * plain["d"])


def test_one_unchanged_source_of_the_table(swarm):
    """It keeps its only ratio, 1: the plan is the one without reuse."""
    reuse = MixtureReuse.of({"a": 0.4, "gone": 0.6}, ["a"], swarm[0])
    assert (reuse.name, dict(reuse.ratios)) == ("unchanged", {"a": 1.0})
    weights = plan(swarm[0], reuse=reuse).mixture.weights
    assert dict(weights) == pytest.approx(dict(plan(swarm[0]).mixture.weights), abs=1e-6)


def test_the_lowest_cap_of_an_unchanged_source_counts():
    column = MixtureReuse("d", {"x": 0.75, "y": 0.25}, is_column=True)
    assert column.caps({"x": 0.6, "b": 0.3}) == pytest.approx({"d": 0.8, "b": 0.3})
    assert column.caps({"x": 0.6, "y": 0.1, "d": 0.5}) == pytest.approx({"d": 0.4})
    assert column.caps({"x": 0.6, "d": 0.5}) == {"d": 0.5}


@pytest.mark.parametrize(("b", "is_noted"), [(0.509, False), (0.511, True)])
def test_ratios_off_by_more_than_rounding_are_noted(b, is_noted):
    """L1 distances of 0.018 and 0.022 from equal parts."""
    row = [1 - b, b]
    table = MixtureTable(["a", "b"], ["x"], ["r"], np.array([row]), np.array([[2.0]]))
    notes = MixtureReuse("unchanged", {"a": 0.5, "b": 0.5}).table(table).notes
    assert bool(notes) == is_noted


@pytest.mark.parametrize(
    ("old", "unchanged", "told"),
    [
        ({"a": 1.0}, ["aa"], 'no source "aa"'),
        ({"a": 1.0}, ["a", "b"], "does not name b; it names a"),
        ({"a": 0.0, "b": 0.0, "e": 1.0}, ["a", "b"], "no weight on a, b"),
        ({"a": 1.0}, ["d"], "no weight on d"),
    ],
)
def test_what_cannot_be_reused(swarm, old, unchanged, told):
    with pytest.raises(ConfigError, match=told):
        MixtureReuse.of(old, unchanged, swarm[0])


def test_a_prior_without_a_source_that_is_kept(swarm):
    reuse = MixtureReuse.of({"a": 0.5, "b": 0.5}, ["a", "b"], swarm[0])
    with pytest.raises(ConfigError, match="nothing of a, which the plan keeps"):
        plan(swarm[0], reuse=reuse, prior={"a": 0, "b": 1, "c": 1, "d": 1})


def test_a_prior_may_lack_a_source_that_is_kept_at_0():
    reuse = MixtureReuse("unchanged", {"a": 0.0, "b": 1.0})
    assert reuse.prior({"a": 0.0, "b": 0.4, "c": 0.6}) == ({"c": 0.6, "unchanged": 0.4}, 0.0)


def test_the_two_files_of_olmix(tmp_path):
    """Its own header: an unnamed index, run, name, index; and run_id without the others."""
    (tmp_path / "ratios.csv").write_text(
        ",run,name,index,dclm,stack-edu:C,stack-edu:Go\n"
        "0,2zwo,swarm-0000,0,0.5,0.3,0.2\n1,8qvc,swarm-0001,1,0.2,0.3,0.5\n"
    )
    (tmp_path / "metrics.csv").write_text("run_id,mmlu:rc::olmes\n8qvc,1.5\n2zwo,1.25\n")
    table = read_table(tmp_path / "ratios.csv", tmp_path / "metrics.csv")
    assert isinstance(table, MixtureTable)
    assert (table.runs, table.sources) == (
        ["2zwo", "8qvc"],
        ["dclm", "stack-edu:C", "stack-edu:Go"],
    )
    np.testing.assert_array_equal(table.loss_NV[:, 0], [1.25, 1.5])
