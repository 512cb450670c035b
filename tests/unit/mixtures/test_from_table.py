"""Plans from tables whose answer is known."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from dograph.errors import ConfigError
from dograph.mixtures.file import read_mixture_file
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.surrogates import SURROGATES, fit_ridge, score
from dograph.mixtures.tables import MixtureTable, read_table
from planned_tables import exponential_table, regmix_files

pytestmark = pytest.mark.usefixtures("shared_fits")

SOURCES = ["a", "b", "c", "d"]
FAST = {"draws": 10_000}


@pytest.fixture(scope="module")
def planted():
    return exponential_table(100, SOURCES, ["a", "b", "c"], noise=0.001)


def true_optimum(t_VS, share_V, cap_S):
    """By scipy on the planted losses themselves."""

    def loss(weight_S):
        return share_V @ (1.5 + np.exp(0.5 + t_VS @ weight_S))

    best = minimize(
        loss,
        np.full(len(cap_S), 1 / len(cap_S)),
        method="SLSQP",
        bounds=[(0, cap) for cap in cap_S],
        constraints={"type": "eq", "fun": lambda weight_S: weight_S.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return best.x, loss


@pytest.mark.parametrize("method", ["regmix", "mixing-law"])
@pytest.mark.parametrize("caps", [None, {"a": 0.25, "c": 0.3}])
def test_proposals_approach_the_planted_optimum(planted, method, caps):
    table, t_VS = planted
    cap_S = np.array([(caps or {}).get(source, 1.0) for source in SOURCES])
    share_V = np.array([0.5, 0.3, 0.2])
    shares = dict(zip(table.targets, share_V, strict=True))
    best_S, loss = true_optimum(t_VS, share_V, cap_S)
    proposal = propose_from_table(method, table, target=shares, caps=caps, **FAST)
    weight_S = np.array(list(proposal.mixture.weights.values()))
    assert (weight_S <= cap_S + 1e-9).all()
    seen = min(loss(row) for row in table.weight_NS if (row <= cap_S).all())
    prior_S = table.weight_NS.mean(0)
    # of the way from the prior to the optimum, and better than the best run within the caps
    assert loss(weight_S) - loss(best_S) < 0.1 * (loss(prior_S) - loss(best_S))
    assert loss(weight_S) < seen
    if method == "mixing-law":
        np.testing.assert_allclose(weight_S, best_S, atol=0.02)
        assert proposal.findings["optimum"]["gap"] < 1e-6
    assert proposal.findings["surrogate"]["name"] == "exponential"


def test_findings_of_regmix(planted):
    table, t_VS = planted
    prior = {"a": 4e9, "b": 3e9, "c": 2e9, "d": 1e9}
    proposal = propose_from_table("regmix", table, target="b", prior=prior, **FAST)
    findings = proposal.findings
    assert json.loads(json.dumps(findings, allow_nan=False)) == findings
    assert (findings["method"], findings["runs"]) == ("regmix", 100)
    assert findings["targets"] == {"b": 1.0}
    assert findings["prior"] == pytest.approx({"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1})
    assert set(findings["surrogate"]["cross_validated"]) == set(SURROGATES)
    assert findings["surrogate"]["chosen"]
    assert "highest rank correlation" in findings["surrogate"]["why"]
    law = 1.5 + np.exp(0.5 + np.array([0.4, 0.3, 0.2, 0.1]) @ t_VS[1])
    assert findings["predicted"]["prior"] == pytest.approx(law, abs=0.01)
    best = int(table.loss_NV[:, 1].argmin())
    assert findings["predicted"]["best_run"]["run"] == table.runs[best]
    assert findings["predicted"]["best_run"]["measured"] == table.loss_NV[best, 1]
    assert findings["predicted"]["proposal"] < findings["predicted"]["prior"]
    assert findings["simulation"]["top"] == 128
    error = findings["in_sample"]["mean_error"]
    left_out = findings["surrogate"]["cross_validated"]["exponential"]["mean_error"]
    assert 0 < error < left_out < 0.01


def test_findings_of_the_law(planted):
    table, t_VS = planted
    findings = propose_from_table("mixing-law", table, target="mean").findings
    assert json.loads(json.dumps(findings, allow_nan=False)) == findings
    assert list(findings["surrogate"]["cross_validated"]) == ["exponential"]
    assert not findings["surrogate"]["chosen"]
    law = findings["optimum"]["laws"]["c"]
    assert law["c"] == pytest.approx(1.5, abs=0.1)
    at_S = np.array(list(law["log_k_plus_t"].values()))
    np.testing.assert_allclose(law["c"] + np.exp(at_S), 1.5 + np.exp(0.5 + t_VS[2]), atol=0.02)
    assert any("mean of the table's mixtures" in note for note in findings["notes"])
    mean_S = table.weight_NS.mean(0)
    assert findings["prior"] == pytest.approx(dict(zip(SOURCES, mean_S.tolist(), strict=True)))


def test_a_forced_surrogate_alone_is_used(planted):
    table, _ = planted
    proposal = propose_from_table("regmix", table, target="a", surrogate="ridge", **FAST)
    findings = proposal.findings
    assert list(findings["surrogate"]["cross_validated"]) == ["ridge"]
    assert findings["surrogate"]["why"] == "ridge was asked for"
    fitted = fit_ridge(table.weight_NS, table.loss_NV[:, 0])
    expected = np.abs(fitted.predict(table.weight_NS) - table.loss_NV[:, 0]).mean()
    assert findings["in_sample"]["mean_error"] == pytest.approx(expected)


def test_few_runs_with_lightgbm_propose_the_prior():
    table, _ = exponential_table(32, SOURCES, ["a"])
    prior = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    proposal = propose_from_table(
        "regmix", table, target="a", prior=prior, surrogate="lightgbm", **FAST
    )
    assert proposal.mixture.weights == pytest.approx(prior)
    text = "\n".join(proposal.findings["notes"])
    assert "fewer than 40 runs" in text
    assert "the proposal is the prior" in text
    assert proposal.findings["in_sample"]["spearman"] is None
    assert proposal.findings["simulation"]["constant"]
    json.dumps(proposal.findings, allow_nan=False)


def test_runs_without_a_needed_loss_are_named_and_left_out(planted):
    table, _ = planted
    loss_NV = table.loss_NV.copy()
    loss_NV[3, 0] = loss_NV[7, 2] = np.nan
    holed = MixtureTable(table.sources, table.targets, table.runs, table.weight_NS, loss_NV)
    findings = propose_from_table(
        "regmix", holed, target=["a", "b"], surrogate="ridge", **FAST
    ).findings
    assert findings["runs"] == 99
    assert "not fitted on, a loss is missing: 1 runs: r3" in findings["notes"]
    assert any("loss of c is missing in 1 runs: r7" in note for note in findings["notes"])
    loss_NV[3:, 0] = np.nan
    with pytest.raises(ConfigError, match="3 of 100 runs have the losses of a"):
        propose_from_table("mixing-law", holed, target="a")


def test_a_source_the_prior_lacks_gets_nothing(planted):
    table, _ = planted
    prior = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 1.0}
    for method in ("regmix", "mixing-law"):
        proposal = propose_from_table(method, table, target="a", prior=prior, **FAST)
        assert proposal.mixture.weights["a"] == 0
        assert proposal.findings["caps"] == {"a": 0.0}


def test_few_runs_are_said():
    table, _ = exponential_table(4, SOURCES, ["a"])
    findings = propose_from_table("regmix", table, target="a", **FAST).findings
    assert any("4 runs are fewer than sources + 1 (5)" in note for note in findings["notes"])
    assert findings["surrogate"]["folds"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "regmx"}, 'did you mean "regmix"'),
        ({"surrogate": "ridg"}, 'did you mean "ridge"'),
        ({"surrogate": "transfer"}, 'no surrogate "transfer".*exponential'),
        (
            {"method": "mixing-law", "surrogate": "ridge"},
            "mixing-law has an exponential law.*use regmix",
        ),
        ({"target": "e"}, "no target"),
        ({"prior": {"a": 1.0}}, "the prior lacks b, c, d"),
        ({"prior": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}}, 'no source "e"'),
        ({"caps": {"x": 0.1}}, 'no source "x"'),
        ({"caps": {"train_a": -1}}, 'no source "train_a"'),
        ({"caps": dict.fromkeys(SOURCES, 0.2)}, "allow 0.8"),
    ],
)
def test_bad_requests(planted, change, message):
    request = {"method": "regmix", "target": "a", **change}
    with pytest.raises(ConfigError, match=message):
        propose_from_table(request.pop("method"), planted[0], **request)


@pytest.mark.parametrize("method", ["regmix", "mixing-law"])
def test_a_prior_for_which_all_predictions_overflow_is_refused(method):
    """Losses of runs with little of source c, whose slope is too steep for a mixture of c alone."""
    draws = np.random.default_rng(0)
    weight_NS = draws.dirichlet([1, 1, 0.1], 400)
    weight_NS = weight_NS[weight_NS[:, 2] < 0.002][:40]
    loss_NV = (1 + np.exp(weight_NS @ np.array([0.0, 1.0, 2000.0])))[:, None]
    table = MixtureTable(["a", "b", "c"], ["a"], [f"r{n}" for n in range(40)], weight_NS, loss_NV)
    prior = {"a": 0.0, "b": 0.0, "c": 1.0}
    how = {"target": "a", "prior": prior, "surrogate": "exponential", "draws": 200, "top": 1}
    with pytest.raises(ConfigError, match=r"an infinite loss.*caps"):
        propose_from_table(method, table, **how)


def test_a_constant_target_is_refused(planted):
    table, _ = planted
    flat = MixtureTable(SOURCES, ["a"], table.runs, table.weight_NS, np.full((100, 1), 2.0))
    with pytest.raises(ConfigError, match="the same in every run"):
        propose_from_table("regmix", flat, target="a")


def test_a_pair_like_regmixs_from_files_to_a_mixture(tmp_path):
    regmix_files(tmp_path, runs=40)
    table = read_table(tmp_path / "mixtures.csv", tmp_path / "losses.csv")
    target = "metric/the_pile_pile_cc_val_loss"
    caps = {"train_the_pile_arxiv": 0.1}
    proposal = propose_from_table(
        "regmix", table, target=target, caps=caps, surrogate="ridge", **FAST
    )
    assert list(proposal.mixture.weights) == table.sources
    assert proposal.mixture.weights["arxiv"] <= 0.1
    assert proposal.findings["targets"] == {"pile_cc": 1.0}


def test_a_prior_in_regmixs_own_yaml_fits_regmixs_own_table(tmp_path):
    regmix_files(tmp_path, runs=40)
    table = read_table(tmp_path / "mixtures.csv", tmp_path / "losses.csv")
    lines = [f"  train_the_pile_{name}: {1 + n}" for n, name in enumerate(table.sources)]
    (tmp_path / "prior.yaml").write_text("\n".join(["train:", *lines, "valid: {}"]))
    prior = read_mixture_file(tmp_path / "prior.yaml").weights
    how = {"target": "pile_cc", "surrogate": "ridge", **FAST}
    findings = propose_from_table("regmix", table, prior=prior, **how).findings
    assert findings["prior"]["uspto_backgrounds"] == pytest.approx(17 / 153)


def test_a_fit_is_scored_on_other_runs_by_its_predictions():
    """What a test table is for: LightGBM from a larger table ranks runs that it has not seen."""
    table, t_VS = exponential_table(200, SOURCES, ["a"], noise=0.01)
    other, _ = exponential_table(50, SOURCES, ["a"], seed=4)
    loss_N = np.exp(other.weight_NS @ t_VS[0])
    fitted = propose_from_table("regmix", table, target="a", surrogate="lightgbm", draws=2000)
    guess_N = SURROGATES["lightgbm"](table.weight_NS, table.loss_NV[:, 0], seed=42)
    rho = stats.spearmanr(guess_N.predict(other.weight_NS), loss_N).statistic
    scores = score(fitted.objective.predict(other.weight_NS), loss_N)
    assert scores.spearman == pytest.approx(rho)
    assert rho > 0.9
