"""DoGraph against Algorithm 1 written out, and its scopes, budget and bad batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.metrics import adjusted_rand_score

from dograph.errors import ConfigError
from dograph.mixers.dograph import DoGraph
from dograph.testing import check_mixer
from dograph.types import Signals
from dograph_batches import DIM, SIZE, UNEVEN, batch


@pytest.mark.parametrize(
    "options", [{}, {"recipe": "safe"}, {"recipe": "paper"}, {"scope": "period"}]
)
def test_contract(options):
    check_mixer(DoGraph(**options))


def test_algorithm_1_written_out():
    """K-means by scikit-learn, the objective by scipy, c_i = w_j / |D_j|."""
    signals = batch(source_B=UNEVEN)
    mixer = DoGraph("paper", num_domains=4)
    weight_B = mixer.weigh(signals)
    X = signals.sketch_BK.double().numpy()
    label = SklearnKMeans(4, n_init=20, random_state=0).fit_predict(X)
    assert adjusted_rand_score(label, mixer.domains.label_B) == 1
    means = np.stack([X[label == j].mean(0) for j in range(4)])
    scale = (X**2).sum(1).mean()
    distance = ((X - means[label]) ** 2).sum(1)
    sigma = np.array([distance[label == j].var() for j in range(4)]) / scale**2

    def objective(w):
        return ((w @ means) ** 2).sum() / scale + sigma @ w

    best = minimize(
        objective,
        np.full(4, 0.25),
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    expected = best.x[label] / np.bincount(label)[label]
    np.testing.assert_allclose(weight_B.numpy(), expected / expected.sum(), atol=2e-5)


def test_equal_weights_where_weights_are_shares():
    mixer = DoGraph("paper", num_domains=4, objective={"name": "precision", "q": 0.0})
    weight_B = mixer.weigh(batch(source_B=UNEVEN))
    torch.testing.assert_close(weight_B, torch.full((SIZE,), 1 / SIZE))


def test_precision_is_inverse_norms_times_sizes():
    signals = batch()
    mixer = DoGraph("paper", num_domains=4, objective="precision")
    weight_B = mixer.weigh(signals)
    square = signals.sketch_BK.square().sum(1)
    inverse = torch.stack([square[signals.source_B == j].mean() ** -0.5 for j in range(4)])
    expected = inverse[signals.source_B]
    torch.testing.assert_close(weight_B, expected / expected.sum(), atol=1e-5, rtol=0)


def test_the_budget_keeps_its_floor():
    free = DoGraph("paper", num_domains=4).weigh(batch())
    kept = DoGraph("paper", num_domains=4, min_effective_fraction=0.9).weigh(batch())
    assert 1 / (SIZE * free.square().sum()) < 0.8
    assert 1 / (SIZE * kept.square().sum()) == pytest.approx(0.9, abs=1e-5)
    assert torch.corrcoef(torch.stack([free, kept]))[0, 1] > 0.9999


@pytest.mark.parametrize("gradient_norm_from", ["blocks", "all"])
def test_normalized_gradients_with_shares_as_weights_is_inverse_norm(gradient_norm_from):
    signals = batch()
    signals = replace(signals, block_norm_B=signals.block_norm_B.square())
    mixer = DoGraph("inverse-norm", num_domains=4, gradient_norm_from=gradient_norm_from)
    norm = signals.block_norm_B if gradient_norm_from == "blocks" else signals.sketch_BK.norm(dim=1)
    norm = norm.clamp_min(0.1 * norm.median())
    expected = (1 / norm) / (1 / norm).sum()
    torch.testing.assert_close(mixer.weigh(signals), expected, atol=1e-6, rtol=1e-4)


def test_kept_shares_weigh_inside_sources_alone():
    signals = replace(batch(), source_B=torch.arange(SIZE) ** 2 % 3)  # across the domains
    free_B = DoGraph("paper", num_domains=4, objective="precision").weigh(signals)
    options = {"num_domains": 4, "objective": "precision", "keep_source_shares": True}
    weight_B = DoGraph("paper", **options).weigh(signals)
    floored_B = DoGraph("paper", min_effective_fraction=0.98, **options).weigh(signals)
    assert 1 / (SIZE * weight_B.square().sum()) < 0.97
    assert 1 / (SIZE * floored_B.square().sum()) == pytest.approx(0.98, abs=1e-5)
    for source in signals.source_B.unique():
        own_B = signals.source_B == source
        drawn = own_B.sum() / SIZE
        torch.testing.assert_close(weight_B[own_B].sum(), drawn)
        torch.testing.assert_close(floored_B[own_B].sum(), drawn)
        torch.testing.assert_close(weight_B[own_B] / drawn, free_B[own_B] / free_B[own_B].sum())


def test_kept_shares_need_sources_and_whole_batches():
    mixer = DoGraph("paper", num_domains=4, keep_source_shares=True)
    with pytest.raises(ConfigError, match="pass source_B"):
        mixer.weigh(replace(batch(), source_B=None))
    lagging = DoGraph("safe", num_domains=4, keep_source_shares=True, warmup_steps=0)
    for step in range(11):
        lagging.weigh(batch(step))
    with pytest.raises(ConfigError, match="whole batches"):
        lagging.weigh_lagged(batch(11), 2 * SIZE)
    with pytest.raises(ConfigError, match=r"keep_source_shares='yes': give true or false"):
        DoGraph("paper", keep_source_shares="yes")


def test_stream_finds_and_keeps_domains():
    mixer = DoGraph("safe", num_domains=4, warmup_steps=0)
    for step in range(40):
        weight_B = mixer.weigh(batch(step))
        if step < 10:  # nothing is known until the first fit
            torch.testing.assert_close(weight_B, torch.full((SIZE,), 1 / SIZE))
            assert mixer.domains is None
        elif step == 10:
            first = mixer.domains.label_B.clone()
    assert torch.equal(mixer.domains.label_B, first)  # the same sources, in the same places
    assert float(mixer.report()["domains/nmi"]) == pytest.approx(1.0)
    share_M = mixer.domains.share_M
    torch.testing.assert_close(share_M, torch.full((4,), 0.25), atol=1e-3, rtol=0)
    # Long gradients are trusted less: precision gives w_j ~ 1/norm_j at equal shares.
    norms = torch.stack([batch().sketch_BK[first == j].norm(dim=1).mean() for j in range(4)])
    assert torch.equal(mixer.weight_M.argsort(descending=True), norms.argsort())


def test_stream_statistics_are_those_of_decayed_sums():
    """One direction only, so labels are certain: moments against explicit weighted sums."""
    half_life, steps = 7.0, 30
    mixer = DoGraph("safe", num_domains=1, half_life=half_life)
    batches = [batch(step, groups=2, noise=1.0) for step in range(steps + 1)]
    for signals in batches:
        mixer.weigh(signals)
    decay = 0.5 ** (1 / half_life)
    # The fit takes batches 0 to 9 as one; then every batch decays what is there.
    age = [decay ** (steps - 1 - max(step, 9)) for step in range(steps)]
    X = torch.cat([b.sketch_BK for b in batches[:steps]]).double()
    v = torch.tensor(age, dtype=torch.float64).repeat_interleave(SIZE)
    mean = (v @ X) / v.sum()
    assert float(mixer.domains.gram_MM) == pytest.approx(float(mean @ mean), rel=1e-4)
    square = (v * X.square().sum(1)).sum() / v.sum()
    assert float(mixer.domains.square_M) == pytest.approx(float(square), rel=1e-4)
    assert float(mixer.domains.scale) == pytest.approx(float(square), rel=1e-4)


def test_epoch_pools_a_period_and_holds_it():
    mixer = DoGraph("paper", scope="period", period_steps=5, num_domains=4)
    seen = [batch(step) for step in range(12)]
    weights = [mixer.weigh(signals) for signals in seen]
    for step in range(5):
        torch.testing.assert_close(weights[step], torch.full((SIZE,), 1 / SIZE))
    pool = torch.cat([signals.sketch_BK for signals in seen[:5]]).double()
    source = torch.cat([signals.source_B for signals in seen[:5]])
    means = torch.stack([pool[source == j].mean(0) for j in range(4)])
    again = DoGraph("paper", scope="period", period_steps=5, num_domains=4)
    for signals in seen[:6]:
        again.weigh(signals)
    own = torch.stack([again.scope.centroid_MK[j] for j in range(4)]).double()
    nearest = torch.cdist(own, means).argmin(1)
    assert nearest.unique().numel() == 4
    torch.testing.assert_close(own, means[nearest], atol=1e-4, rtol=1e-4)
    # The same weights all through the second period, whatever the batch.
    torch.testing.assert_close(weights[5].unique(), weights[9].unique(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("scope", ["stream", "period", "batch"])
def test_state_restores_everything(scope):
    options = {"scope": scope, "period_steps": 4, "num_domains": 4}
    whole, first, second = (DoGraph(**options) for _ in range(3))
    for step in range(13):
        whole.weigh(batch(step))
        first.weigh(batch(step))
    second.load_state_dict({k: v for k, v in first.state_dict().items() if v is not None})
    for step in range(13, 30):
        assert torch.equal(whole.weigh(batch(step)), second.weigh(batch(step)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("recipe", ["paper", "safe"])
def test_a_gradient_that_is_not_finite_falls_back_to_equal_weights(recipe, value):
    mixer = DoGraph(recipe, num_domains=4)
    for step in range(12):
        mixer.weigh(batch(step))
    bad = batch(12)
    bad.sketch_BK[3, 5] = value
    torch.testing.assert_close(mixer.weigh(bad), torch.full((SIZE,), 1 / SIZE))
    assert float(mixer.report()["weights/fallback"]) == 1.0
    after = mixer.weigh(batch(13))
    assert torch.isfinite(after).all()
    assert float(mixer.report()["weights/fallback"]) == 0.0


def test_an_objective_without_an_answer_falls_back_and_says_so():
    class Lost:
        def __call__(self, domains):
            return torch.full_like(domains.share_M, torch.nan)

        def residual(self, domains, weight_M):
            return weight_M.sum()

    mixer = DoGraph("paper", num_domains=4, objective=Lost())
    torch.testing.assert_close(mixer.weigh(batch()), torch.full((SIZE,), 1 / SIZE))
    assert float(mixer.report()["weights/fallback"]) == 1.0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_more_domains_than_samples(size):
    mixer = DoGraph("paper", num_domains=11)
    weight_B = mixer.weigh(batch(size=size))
    assert weight_B.shape == (size,)
    assert float(weight_B.sum()) == pytest.approx(1)
    assert int((mixer.domains.share_M > 0).sum()) == size


def test_samples_that_are_all_alike():
    signals = batch()
    signals = replace(signals, sketch_BK=torch.ones(SIZE, DIM))
    for recipe in ("paper", "safe"):
        mixer = DoGraph(recipe, num_domains=4)
        for step in range(12):
            weight_B = mixer.weigh(replace(signals, step=step))
        torch.testing.assert_close(weight_B, torch.full((SIZE,), 1 / SIZE))


def test_stream_refuses_a_projection_that_changes_every_step():
    mixer = DoGraph("safe", num_domains=4)
    mixer.weigh(batch(0, projection=0))
    with pytest.raises(ConfigError, match=r"scope=stream needs .* refresh to never"):
        mixer.weigh(batch(1, projection=1))


def test_stream_starts_anew_after_a_refresh():
    mixer = DoGraph("safe", num_domains=4)
    for step in range(30):
        mixer.weigh(batch(step))
    mixer.weigh(batch(30, projection=30))
    assert mixer.domains is None
    for step in range(31, 42):
        mixer.weigh(batch(step, projection=30))
    assert float(mixer.report()["domains/nmi"]) > 0.9


def test_signals_without_sketches():
    with pytest.raises(ConfigError, match="Sketcher"):
        DoGraph().weigh(Signals(step=0, num_samples=4))


def test_report_names_sizes_weights_and_ratios():
    mixer = DoGraph("paper", num_domains=4)
    signals = batch()
    weight_B = mixer.weigh(signals)
    report = mixer.report()
    assert float(report["weights/max_relative_weight"]) == pytest.approx(
        SIZE * float(weight_B.max())
    )
    ratio = (weight_B @ signals.sketch_BK).norm() / signals.sketch_BK.mean(0).norm()
    assert float(report["weights/gradient_norm_ratio"]) == pytest.approx(float(ratio), rel=1e-5)
    w = report["domains/weight"]
    assert torch.equal(w, w.sort(descending=True).values)  # no identity: by falling weight
    entropy = -sum(float(x) * np.log(float(x)) for x in w if x > 0)
    assert float(report["weights/entropy_nats"]) == pytest.approx(entropy, rel=1e-5)
    assert int(report["domains/samples"].sum()) == SIZE
    assert float(report["weights/solver_residual"]) < 1e-6
