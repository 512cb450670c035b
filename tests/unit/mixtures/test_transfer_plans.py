"""Plans by the transfer law: proposals, what is told of the laws, infinite predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from dograph.errors import ConfigError
from dograph.mixtures import surrogates as choosing
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.proposals import simulate
from dograph.mixtures.surrogates import choose_surrogate, is_constant, score
from dograph.mixtures.tables import MixtureTable, read_table

pytestmark = pytest.mark.usefixtures("shared_fits")

PROXIES = Path(__file__).parents[3] / "benchmarks" / "results" / "plans"
SOURCES = ["a", "b", "c", "d"]
# a token of the source of the same name is worth 1
WORTH = np.array([[1.0, 0.05, 0.1, 0.02], [0.1, 1.0, 0.02, 0.1], [0.0, 0.2, 1.0, 0.0]])


def true_loss(weight_NS):
    return 2 + 0.8 * (weight_NS @ WORTH.T) ** -0.35


@pytest.fixture(scope="module")
def planted():
    draws = np.random.default_rng(2)
    weight_NS = draws.dirichlet(np.full(4, 0.7), 60)
    loss_NV = true_loss(weight_NS) + 0.002 * draws.standard_normal((60, 3))
    return MixtureTable(SOURCES, ["a", "b", "c"], [f"r{n}" for n in range(60)], weight_NS, loss_NV)


@pytest.mark.parametrize("caps", [None, {"a": 0.25, "c": 0.3}])
def test_proposals_approach_the_planted_optimum(planted, caps):
    share_V = np.array([0.5, 0.3, 0.2])
    cap_S = np.array([(caps or {}).get(source, 1.0) for source in SOURCES])

    def loss(weight_S):
        return float(true_loss(np.maximum(weight_S, 0)[None])[0] @ share_V)

    best_S = minimize(
        loss,
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(0, cap) for cap in cap_S],
        constraints={"type": "eq", "fun": lambda weight_S: weight_S.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    options = {"target": dict(zip("abc", share_V, strict=True)), "caps": caps}
    exact = propose_from_table("mixing-law", planted, surrogate="transfer", **options)
    weight_S = np.array(list(exact.mixture.weights.values()))
    np.testing.assert_allclose(weight_S, best_S, atol=0.01)
    assert exact.findings["optimum"]["gap"] < 1e-6


def test_regmix_chooses_it_where_it_ranks_left_out_runs_best(planted):
    findings = propose_from_table("regmix", planted, target="b", draws=5000, top=16).findings
    assert findings["surrogate"]["name"] == "transfer"
    assert findings["surrogate"]["chosen"]
    scores = findings["surrogate"]["cross_validated"]
    assert scores["transfer"]["spearman"] > scores["exponential"]["spearman"] > 0.9
    assert findings["predicted"]["proposal"] < findings["predicted"]["best_run"]["measured"] + 0.01


def test_findings_of_the_law(planted):
    findings = propose_from_table(
        "mixing-law", planted, target="mean", surrogate="transfer"
    ).findings
    assert json.loads(json.dumps(findings, allow_nan=False)) == findings
    assert list(findings["surrogate"]["cross_validated"]) == ["transfer"]
    assert findings["surrogate"]["why"] == "transfer was asked for"
    law = findings["optimum"]["laws"]["b"]
    assert (law["c"], law["alpha"]) == pytest.approx((2.0, 0.35), abs=0.05)
    assert law["worth"] == pytest.approx(dict(zip(SOURCES, WORTH[1], strict=True)), abs=0.03)
    at_S = np.array([0.1, 0.2, 0.3, 0.4])
    worth_S = np.array(list(law["worth"].values()))
    told = law["c"] + np.exp(law["log_k"]) * (worth_S @ at_S) ** -law["alpha"]
    assert told == pytest.approx(true_loss(at_S[None])[0, 1], abs=0.01)


def test_without_a_name_the_mixing_law_is_the_authors(planted):
    findings = propose_from_table("mixing-law", planted, target="b").findings
    assert findings["surrogate"]["name"] == "exponential"
    with pytest.raises(ConfigError, match=r"exponential or transfer; to plan with .lightgbm., use"):
        propose_from_table("mixing-law", planted, target="a", surrogate="lightgbm")


@pytest.mark.parametrize("method", ["regmix", "mixing-law"])
def test_a_prior_without_what_a_target_is_learned_from_is_refused(method):
    draws = np.random.default_rng(0)
    weight_NS = draws.dirichlet(np.full(3, 0.7), 40)
    loss_NV = (1 + weight_NS[:, 0] ** -0.3 + 0.1 * weight_NS[:, 2])[:, None]
    table = MixtureTable(["a", "b", "c"], ["a"], [f"r{n}" for n in range(40)], weight_NS, loss_NV)
    prior = {"a": 0.0, "b": 0.0, "c": 1.0}
    with pytest.raises(ConfigError, match=r"an infinite loss.*caps"):
        propose_from_table(
            method, table, target="a", prior=prior, surrogate="transfer", draws=200, top=1
        )


@pytest.mark.slow
def test_on_real_proxies_the_error_on_left_out_runs_is_below_half_of_the_exponentials():
    """32 proxies of 7 sources: five folds, the mean over the sources' losses."""
    read = read_table(PROXIES / "proxies.mixtures.csv", PROXIES / "proxies.losses.csv")
    fold_N = np.random.default_rng(0).permutation(np.arange(32) % 5)
    error = {}
    for name in ("transfer", "exponential"):
        guess_NV = np.full_like(read.loss_NV, np.nan)
        for fold in range(5):
            out_N = fold_N == fold
            for v in range(7):
                law = choosing.SURROGATES[name](read.weight_NS[~out_N], read.loss_NV[~out_N, v])
                guess_NV[out_N, v] = law.predict(read.weight_NS[out_N])
        error[name] = np.abs(guess_NV.mean(axis=1) - read.loss_NV.mean(axis=1)).mean()
    assert error["transfer"] < 0.04
    assert error["transfer"] < error["exponential"] / 2


def test_infinite_predictions_have_ranks_but_no_error():
    loss_N = np.array([1.0, 2.0, 3.0, 4.0])
    result = score(np.array([1.0, 3.0, 2.0, np.inf]), loss_N)
    assert result.spearman == pytest.approx(0.8)
    assert (result.pearson, result.mean_error, result.bias) == (None, None, None)
    assert result.note == "an infinite loss is predicted of 1 of 4 runs"
    assert not is_constant(np.array([1.0, np.inf]))
    assert is_constant(np.full(3, np.inf))


class Beyond:
    """Predicts the first weight, and infinity where it is above a limit."""

    def __init__(self, limit):
        self.limit = limit

    def fit(self, weight_NS, loss_N, *, seed=0):
        return self

    def predict(self, weight_NS):
        return np.where(weight_NS[:, 0] > self.limit, np.inf, weight_NS[:, 0])


def test_an_infinite_error_loses_to_any_other(monkeypatch):
    weight_NS = np.random.default_rng(0).dirichlet(np.ones(3), 30)
    highest = float(weight_NS[:, 0].max())
    # the highest is still the last in rank: both rank alike
    monkeypatch.setattr(
        choosing, "SURROGATES", {"a": Beyond(highest - 1e-9).fit, "b": Beyond(1.0).fit}
    )
    result = choose_surrogate(weight_NS, 5 + weight_NS[:, :1], {"t": 1.0}, names=("a", "b"))
    assert result.name == "b"
    scores = result.validated["a"].objective
    assert (scores.spearman, scores.mean_error) == (pytest.approx(1.0), None)
    assert "surrogate a, cross-validated: an infinite loss is predicted of 1 of 30 runs" in (
        result.notes
    )
    json.dumps(result.validated["a"].as_json(), allow_nan=False)


def test_a_simulation_passes_over_infinite_losses():
    prior_S = np.array([0.6, 0.3, 0.1])
    weight_S, result = simulate(Beyond(0.5).predict, prior_S, np.ones(3), draws=2000, top=64)
    assert not result["constant"]
    assert weight_S[0] < 0.1
    assert all(np.isfinite(average["predicted_loss"]) for average in result["sensitivity"])
