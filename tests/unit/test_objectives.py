import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dograph.domains.graph import adjacency, laplacian
from dograph.domains.objectives import (
    OBJECTIVES,
    Alignment,
    Precision,
    Robust,
    Uncertainty,
    Variance,
    build_objective,
)
from dograph.domains.partition import partition, sample_weights
from dograph.errors import ConfigError
from dograph.testing import check_objective, random_domains

READINGS = [
    Variance(),
    Variance(variance="weighted", lambda_=0.5),
    Robust(tau=0.5),
    Alignment(),
    Uncertainty(),
    Uncertainty(sigma="mean", beta=0.3),
    Uncertainty(sigma_floor=0.2),
    Precision(),
    Precision(q=2),
]
PENALISED = [kind(graph_penalty=0.7) for kind in OBJECTIVES.values()]


def example(seed=0, num_domains=5):
    """Domains in float64, their mean vectors and the vectors of their samples."""
    sketch_BK, label_B = random_domains(seed, num_domains)
    sketch_BK = sketch_BK.double()
    members = [sketch_BK[label_B == j].numpy() for j in range(num_domains)]
    means = np.stack([rows.mean(axis=0) for rows in members])
    scale = float(sketch_BK.square().sum(dim=1).mean())
    return partition(sketch_BK, label_B, num_domains), means, members, scale


def slsqp(loss, size):
    """The least of `loss` over the simplex, from several starts."""
    starts = [np.full(size, 1 / size), *np.random.default_rng(0).dirichlet(np.ones(size), 3)]
    results = [
        minimize(
            loss,
            start,
            bounds=[(0, 1)] * size,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-13, "maxiter": 500},
        )
        for start in starts
    ]
    return min(results, key=lambda result: result.fun)


@pytest.mark.parametrize("objective", READINGS + PENALISED, ids=repr)
def test_the_contract_of_objectives(objective):
    check_objective(objective)


@pytest.mark.parametrize("objective", READINGS + PENALISED, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_residuals_are_small_at_the_weights_and_not_elsewhere(objective, dtype):
    sketch_BK, label_B = random_domains(1, 11)
    domains = partition(sketch_BK.to(dtype), label_B, 11)
    weight_M = objective(domains)
    assert weight_M.dtype == dtype
    assert float(objective.residual(domains, weight_M)) < 1e-6
    away_M = torch.eye(11, dtype=dtype)[weight_M.argmin()]
    assert float(objective.residual(domains, away_M)) > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_variance_as_printed_is_the_shortest_update(seed):
    domains, means, _, scale = example(seed)
    oracle = slsqp(lambda w: np.sum((w @ means) ** 2) / scale, 5)
    for lambda_ in (1.0, 7.0):
        weight_M = Variance(lambda_=lambda_)(domains).numpy()
        np.testing.assert_allclose(weight_M, oracle.x, atol=2e-5)


@pytest.mark.parametrize("seed", range(3))
def test_variance_weighted_counts_weighted_norms(seed):
    domains, means, _, scale = example(seed)

    def loss(w):
        lengths = np.linalg.norm(w[:, None] * means, axis=1)
        return (lengths.var() + 0.3 * np.sum((w @ means) ** 2)) / scale

    objective = Variance(variance="weighted", lambda_=0.3)
    weight_M = objective(domains).numpy()
    oracle = slsqp(loss, 5)
    assert loss(weight_M) <= oracle.fun + 1e-7
    np.testing.assert_allclose(weight_M, oracle.x, atol=2e-4)


def test_variance_weighted_ignores_empty_domains():
    """The variance is over the present domains alone."""
    sketch_BK, label_B = random_domains(0, 3)
    objective = Variance(variance="weighted", lambda_=0.01)
    weight_M = objective(partition(sketch_BK.double(), label_B, 3))
    wider_M = objective(partition(sketch_BK.double(), label_B + 2, 9))
    torch.testing.assert_close(wider_M[2:5], weight_M, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sigma", ["paper", "mean"])
@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_uncertainty_is_the_printed_loss(sigma, floor):
    domains, means, members, scale = example(2)
    distance = [((rows - rows.mean(axis=0)) ** 2).sum(axis=1) for rows in members]
    if sigma == "paper":
        sigma2 = np.array([d.var() for d in distance]) / scale**2
    else:
        sigma2 = np.array([d.mean() for d in distance]) / scale
    assert sigma2[0] == 0, "one sample"
    sigma2 = np.maximum(sigma2, floor)
    oracle = slsqp(lambda w: np.sum((w @ means) ** 2) / scale + 0.4 * sigma2 @ w, 5)
    objective = Uncertainty(beta=0.4, sigma=sigma, sigma_floor=floor)
    np.testing.assert_allclose(objective(domains).numpy(), oracle.x, atol=2e-5)


def test_robust_is_a_softmax_of_norms_over_their_mean():
    domains, means, _, _ = example()
    norms = np.linalg.norm(means, axis=1)
    expected = np.exp(norms / norms.mean() / 0.25)
    weight_M = Robust(tau=0.25)(domains).numpy()
    np.testing.assert_allclose(weight_M, expected / expected.sum(), rtol=1e-10)
    hardest_M = Robust(tau=1e-6)(domains).numpy()
    assert hardest_M[norms.argmax()] == 1, "no overflow as tau vanishes"


def test_alignment_is_the_fixed_point_on_vectors():
    domains, means, _, _ = example()
    w = np.full(5, 0.2)
    for _ in range(20):
        update = w @ means
        cosine = means @ update / (np.linalg.norm(means, axis=1) * np.linalg.norm(update))
        w = np.maximum(cosine, 0) / np.maximum(cosine, 0).sum()
    objective = Alignment()
    weight_M = objective(domains)
    np.testing.assert_allclose(weight_M.numpy(), w, rtol=1e-9, atol=1e-12)
    early_M = Alignment(iterations=1)(domains)
    change = (Alignment(iterations=2)(domains) - early_M).abs().max()
    torch.testing.assert_close(objective.residual(domains, early_M), change)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alignment_stays_where_nothing_agrees(dtype):
    """Two opposite pairs: the update vanishes, and with it every cosine."""
    generator = torch.Generator().manual_seed(0)
    half_BK = torch.randn(2, 9, generator=generator, dtype=dtype)
    domains = partition(torch.cat((half_BK, -half_BK)), torch.arange(4), 5)
    weight_M = Alignment()(domains)
    torch.testing.assert_close(weight_M, torch.tensor([0.25, 0.25, 0.25, 0.25, 0], dtype=dtype))
    assert float(Alignment().residual(domains, weight_M)) == 0
    angle_B = torch.arange(3, dtype=dtype) * 2 * torch.pi / 3 + 0.1
    star_BK = torch.stack((angle_B.cos(), angle_B.sin()), dim=1)  # sums to 0 up to rounding
    weight_M = Alignment()(partition(star_BK, torch.arange(3), 3))
    torch.testing.assert_close(weight_M, torch.full((3,), 1 / 3, dtype=dtype))


def test_alignment_drops_a_domain_that_opposes_the_rest():
    sketch_BK = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-0.5, 0.0]])
    weight_M = Alignment()(partition(sketch_BK, torch.arange(3), 3))
    torch.testing.assert_close(weight_M, torch.tensor([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("q", [-1.0, 0.5, 1.0, 2.0])
def test_precision_weighs_shares_by_a_power_of_the_norm(q):
    domains, _, members, _ = example()
    rms = np.array([np.sqrt((rows**2).sum(axis=1).mean()) for rows in members])
    expected = np.array([len(rows) for rows in members]) * rms**-q
    weight_M = Precision(q=q)(domains).numpy()
    np.testing.assert_allclose(weight_M, expected / expected.sum(), rtol=1e-10)


def test_precision_of_order_zero_counts_all_samples_alike():
    domains, *_ = example()
    weight_B = sample_weights(domains, Precision(q=0)(domains))
    torch.testing.assert_close(weight_B, torch.full_like(weight_B, 1 / len(weight_B)))


def test_precision_neither_overflows_nor_trusts_a_silent_domain():
    sketch_BK = torch.tensor([[1.0], [2.0], [0.0]])
    domains = partition(sketch_BK, torch.arange(3), 3)
    rms = (5 / 3) ** 0.5
    expected_M = torch.tensor([1, 1 / 2, 1 / rms]) / (1.5 + 1 / rms)
    torch.testing.assert_close(Precision()(domains), expected_M)
    assert Precision(q=5000)(domains).tolist() == [1, 0, 0]
    assert Precision(q=-5000)(domains).tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", [Robust, Alignment, Precision])
def test_no_penalty_returns_the_formula_bit_for_bit(kind):
    domains, *_ = example()
    assert torch.equal(kind(graph_penalty=0.0)(domains), kind().formula(domains))
    assert not torch.allclose(kind(graph_penalty=1.0)(domains), kind()(domains), atol=1e-4)


@pytest.mark.parametrize("kind", [Robust, Alignment, Precision])
def test_penalised_formula_on_the_simplex(kind):
    domains, *_ = example(1)
    formula = kind()(domains).numpy()
    l_MM = laplacian(adjacency(domains.gram_MM)).numpy()
    oracle = slsqp(lambda w: np.sum((w - formula) ** 2) + 0.5 * w @ l_MM @ w, 5)
    np.testing.assert_allclose(kind(graph_penalty=0.5)(domains).numpy(), oracle.x, atol=2e-5)


def test_penalised_uncertainty():
    domains, means, _, scale = example(1)
    l_MM = laplacian(adjacency(domains.gram_MM)).numpy()
    sigma2 = domains.spread_variance_M.numpy() / scale**2
    oracle = slsqp(lambda w: np.sum((w @ means) ** 2) / scale + sigma2 @ w + 0.5 * w @ l_MM @ w, 5)
    np.testing.assert_allclose(Uncertainty(graph_penalty=0.5)(domains).numpy(), oracle.x, atol=2e-5)


@pytest.mark.parametrize("kind", OBJECTIVES.values())
def test_not_finite_gradients_end_in_equal_sample_weights(kind):
    sketch_BK, label_B = random_domains(0, 5)
    sketch_BK[0, 0] = torch.nan
    domains = partition(sketch_BK, label_B, 5)
    weight_B = sample_weights(domains, kind()(domains))
    torch.testing.assert_close(weight_B, torch.full_like(weight_B, 1 / len(weight_B)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"name": "variance", "lambda_": 0},
            r"objective\.lambda_=0: give a finite number above 0",
        ),
        (
            {"name": "variance", "variance": "weihgted"},
            r'objective\.variance=.weihgted.; did you mean "weighted"',
        ),
        ({"name": "robust", "tau": 0.0}, r"tau=0\.0: give a finite number above 0"),
        ({"name": "robust", "tau": "hot"}, "tau='hot': give a finite number above 0"),
        (
            {"name": "robust", "graph_penalty": -1},
            "graph_penalty=-1: give a finite number of at least 0",
        ),
        ({"name": "alignment", "iterations": 0}, "iterations=0: give a whole number of at least 1"),
        ({"name": "alignment", "iterations": 2.5}, r"iterations=2\.5: give a whole number"),
        ({"name": "alignment", "iterations": True}, "iterations=True: give a whole number"),
        ({"name": "uncertainty", "beta": -0.1}, r"beta=-0\.1: give a finite number of at least 0"),
        ({"name": "uncertainty", "beta": None}, "beta=None: give a finite number of at least 0"),
        (
            {"name": "uncertainty", "sigma_floor": -1},
            "sigma_floor=-1: give a finite number of at least 0",
        ),
        (
            {"name": "uncertainty", "sigma": "median"},
            'objective.sigma=.median.; did you mean "mean"',
        ),
        ({"name": "uncertainty", "sigma": ["mean"]}, "sigma"),
        ({"name": "precision", "q": torch.inf}, "q=inf: give a finite number$"),
        ({"name": "precision", "q": torch.nan}, "q=nan: give a finite number$"),
        ({"name": "uncertainty", "beat": 1}, 'beat is not an option of uncertainty.*"beta"'),
        ("uncertain", 'objective="uncertain" is not known; did you mean "uncertainty"'),
        ({"beta": 1}, "a mapping with a name"),
        (3, "an object with __call__ and residual; got 3"),
        (Uncertainty, "a name, a mapping with a name"),
    ],
)
def test_wrong_options_are_named(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_objective(spec)


class Equal:
    """Somebody's own objective."""

    def __call__(self, domains):
        return domains.present_M / domains.present_M.sum()

    def residual(self, domains, weight_M):
        return (weight_M - self(domains)).abs().amax()


def test_objectives_by_name_and_by_hand():
    assert build_objective("uncertainty") == Uncertainty(beta=1.0, sigma="paper")
    assert build_objective({"name": "uncertainty", "beta": 2}) == Uncertainty(beta=2)
    assert build_objective({"name": "variance", "variance": "weighted"}).variance == "weighted"
    mine = Equal()
    assert build_objective(mine) is mine
    with pytest.raises(TypeError):
        Uncertainty(2.0)
