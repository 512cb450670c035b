"""The implicit mixing law: validation sets that nobody has seen, found from their mean alone."""

import numpy as np
import pytest

from dograph.cli.plan_table import MixingLawTable, RegMixTable
from dograph.errors import ConfigError
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.mixing_laws import ExponentialFit, ExponentialLaw, fit_exponential
from dograph.mixtures.tables import MixtureTable
from dograph.rng import stream
from law_oracles import check_derivatives, weighted_value


def hidden(seed, sets, sources=4, runs=60, noise=0.0):
    """Each set is helped by a source of its own; only the mean over the sets is measured."""
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.ones(sources), runs)
    laws = [
        ExponentialLaw(
            draws.uniform(1, 2),
            draws.normal(0, 0.3),
            draws.normal(0, 0.3, sources) - 2 * np.eye(sources)[own],
        )
        for own in range(sets)
    ]
    share_V = draws.dirichlet(np.full(sets, 50.0))
    each = [share * law.predict(weight_NS) for share, law in zip(share_V, laws, strict=True)]
    return weight_NS, sum(each) + draws.normal(0, noise, runs), laws, share_V


def excess(laws, share_V, weight_S):
    """How far a mixture is above the best one for the true sets and shares."""
    return weighted_value(laws, share_V, weight_S) - find_optimum(laws, share_V).loss


@pytest.mark.parametrize(
    ("seed", "sets", "noise"), [(0, 2, 0.0), (1, 2, 0.005), (2, 3, 0.0), (3, 3, 0.005)]
)
def test_hidden_sets_are_found_and_their_best_mixture(seed, sets, noise):
    weight_NS, loss_N, laws, share_V = hidden(seed, sets, noise=noise)
    implicit = fit_exponential(weight_NS, loss_N, latent=sets)
    assert np.abs(implicit.predict(weight_NS) - loss_N).mean() < 1e-3 + noise
    found = find_optimum(implicit.laws, np.ones(sets))
    assert found.loss == pytest.approx(implicit.predict(found.weight_S[None])[0], rel=1e-12)
    one = find_optimum([fit_exponential(weight_NS, loss_N)], np.ones(1))
    assert excess(laws, share_V, found.weight_S) < 0.003
    assert excess(laws, share_V, one.weight_S) > 0.01


def test_the_law_is_the_mean_of_its_sets_and_fits_no_worse_than_one():
    weight_NS, loss_N, _, _ = hidden(5, 3, noise=0.01)
    implicit, one = (fit_exponential(weight_NS, loss_N, latent=n) for n in (3, 1))
    each = [law.c + np.exp(law.log_k + weight_NS @ law.t_S) for law in implicit.laws]
    np.testing.assert_allclose(implicit.predict(weight_NS), np.mean(each, axis=0), rtol=1e-14)
    errors = [np.abs(law.predict(weight_NS) - loss_N).mean() for law in (implicit, one)]
    assert errors[0] < errors[1]


def test_derivatives_against_finite_differences():
    weight_NS, loss_N, _, _ = hidden(2, 2, runs=20)
    fit = ExponentialFit(weight_NS, loss_N, latent=3)
    fit.ridge_K[:] *= 1e3  # so that its part is seen
    start_BP = fit.starts(stream(0, "test"))
    assert start_BP.shape[1] == 1 + 3 * 4
    check_derivatives(fit, start_BP[5])
    several_BRP = fit.jacobian(start_BP[:2])
    np.testing.assert_allclose(several_BRP[1], fit.jacobian(start_BP[1]), rtol=1e-12)


def test_a_plan_with_latent_sets():
    weight_NS, loss_N, laws, share_V = hidden(0, 2, runs=30)
    sources, runs = list("abcd"), [f"r{n}" for n in range(30)]
    table = MixtureTable(sources, ["overall"], runs, weight_NS, loss_N[:, None])
    plan = propose_from_table("mixing-law", table, target="overall", latent=2)
    assert excess(laws, share_V, np.array(list(plan.mixture.weights.values()))) < 1e-3
    assert list(plan.findings["optimum"]["laws"]) == [
        "overall, latent set 1",
        "overall, latent set 2",
    ]
    assert plan.findings["support"]["spearman"] > 0.99
    predicted = plan.findings["predicted"]["proposal"]
    assert predicted == pytest.approx(find_optimum(laws, share_V).loss, abs=1e-3)


def test_latent_sets_are_an_option_of_the_mixing_law():
    assert MixingLawTable().latent == 1
    with pytest.raises(ConfigError, match=r"mixer\.latent=0: give a whole number of at least 1"):
        MixingLawTable(latent=0)
    with pytest.raises(ConfigError, match=r"mixer\.latent is not an option"):
        RegMixTable(latent=2)
