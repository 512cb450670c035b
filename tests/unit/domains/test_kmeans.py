import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.metrics import adjusted_rand_score

from dograph.domains import kmeans
from dograph.domains.kmeans import KMeans, Space, _fill_empty
from dograph.errors import ConfigError


def cluster(point_BK, num_domains, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return KMeans(num_domains, **options).cluster(point_BK, generator)


def blobs(seed, num_domains=4, size=60, dims=8, noise=0.05):
    """Samples around far-apart centres, and the centre of each; sizes differ."""
    rng = np.random.default_rng(seed)
    share_M = np.arange(1, num_domains + 1) / (num_domains * (num_domains + 1) / 2)
    truth_B = np.sort(rng.choice(num_domains, size, p=share_M))
    truth_B[:num_domains] = np.arange(num_domains)
    centre_MK = rng.normal(size=(num_domains, dims))
    point_BK = centre_MK[truth_B] + noise * rng.normal(size=(size, dims))
    return torch.tensor(point_BK), truth_B


def gradient_like(seed, kind):
    """Batches as the step sees them: isotropic noise, blurred groups, a few very long rows."""
    generator = torch.Generator().manual_seed(seed)
    noise_BK = torch.randn(48, 64, generator=generator)
    if kind == "groups":
        return noise_BK * 0.7 + torch.randn(9, 64, generator=generator).repeat(6, 1)[:48]
    if kind == "long rows":
        return noise_BK * torch.randn(48, 1, generator=generator).exp() ** 1.5 + 3
    return noise_BK


def vector_inertia(point_BK, label_B):
    point_BK, label_B = point_BK.double().numpy(), label_B.numpy()
    return sum(
        ((point_BK[label_B == j] - point_BK[label_B == j].mean(axis=0)) ** 2).sum()
        for j in np.unique(label_B)
    )


@pytest.mark.parametrize("kind", ["noise", "groups", "long rows"])
@pytest.mark.parametrize("seed", range(4))
def test_as_good_as_the_best_of_scikit_learn(kind, seed):
    point_BK = gradient_like(seed, kind)
    found = cluster(point_BK, 11, seed)
    best = SklearnKMeans(11, n_init=20, random_state=seed).fit(point_BK.double().numpy()).inertia_
    assert float(found.inertia) <= 1.01 * best


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(3))
def test_the_gram_knows_what_the_vectors_know(dtype, seed):
    """Explicit centroids give the same inertia, and scikit-learn started there stays there."""
    point_BK = gradient_like(seed, "groups").to(dtype)
    found = cluster(point_BK, 7, seed)
    assert found.inertia.dtype == dtype
    assert float(found.inertia) == pytest.approx(vector_inertia(point_BK, found.label_B), rel=1e-6)
    vectors = point_BK.double().numpy()
    label_B = found.label_B.numpy()
    centroids = np.stack([vectors[label_B == j].mean(axis=0) for j in range(7)])
    stays = SklearnKMeans(7, init=centroids, n_init=1).fit(vectors)
    np.testing.assert_array_equal(stays.labels_, label_B)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_far_apart_groups_are_found_and_numbered_by_size(normalise, seed):
    point_BK, truth_B = blobs(seed)
    label_B = cluster(point_BK, 4, seed, normalise=normalise).label_B.numpy()
    assert adjusted_rand_score(truth_B, label_B) == 1.0
    size_M = np.bincount(label_B)
    first_M = np.array([np.argmax(label_B == j) for j in range(4)])
    assert sorted(range(4), key=lambda j: (-size_M[j], first_M[j])) == [0, 1, 2, 3]


def test_spherical_kmeans_assigns_by_cosine():
    point_BK = gradient_like(0, "long rows").double()
    point_BK[5] = 0
    found = cluster(point_BK, 6, normalise=True)
    length_B1 = point_BK.norm(dim=1, keepdim=True)
    unit_BK = point_BK / torch.where(length_B1 > 0, length_B1, 1.0)
    mean_MK = torch.stack([unit_BK[found.label_B == j].sum(dim=0) for j in range(6)])
    cosine_BM = unit_BK @ (mean_MK / mean_MK.norm(dim=1, keepdim=True)).T
    nearest_B = cosine_BM.argmax(dim=1)
    others = torch.arange(48) != 5
    assert torch.equal(found.label_B[others], nearest_B[others])
    own_B = cosine_BM.gather(1, found.label_B[:, None]).squeeze(1)[others]
    assert float(found.inertia) == pytest.approx(float((2 - 2 * own_B).sum()), rel=1e-9)
    scaled = cluster(point_BK * torch.linspace(0.1, 9, 48, dtype=torch.float64)[:, None], 6, 3)
    assert not torch.equal(scaled.label_B, found.label_B), "plain K-means sees lengths"


def test_small_differences_far_from_the_origin():
    """Float32 points that differ by 1 at 1e4: an uncentred Gram in float32 cannot tell."""
    generator = torch.Generator().manual_seed(0)
    truth_B = torch.arange(40) % 2
    small_BK = 0.05 * torch.randn(40, 16, generator=generator) + truth_B[:, None]
    label_B = cluster(small_BK + 1e4, 2).label_B
    assert adjusted_rand_score(truth_B.numpy(), label_B.numpy()) == 1.0


@pytest.mark.parametrize("normalise", [False, True])
def test_samples_in_another_order_make_the_same_domains(normalise):
    point_BK = gradient_like(1, "noise")
    found = cluster(point_BK, 11, normalise=normalise)
    for seed in range(3):
        order_B = torch.randperm(48, generator=torch.Generator().manual_seed(seed))
        moved = cluster(point_BK[order_B], 11, normalise=normalise)
        assert adjusted_rand_score(moved.label_B.numpy(), found.label_B[order_B].numpy()) == 1.0
        assert torch.equal(moved.inertia, found.inertia)


def test_repeats_and_depends_on_the_generator():
    point_BK = gradient_like(0, "noise")
    assert torch.equal(cluster(point_BK, 11).label_B, cluster(point_BK, 11).label_B)
    once = {float(cluster(point_BK, 11, seed, restarts=1).inertia) for seed in range(6)}
    assert len(once) > 1
    assert float(cluster(point_BK, 11, restarts=16).inertia) < max(once)


def test_fewer_distinct_samples_than_domains():
    point_BK = torch.eye(3, 5).repeat_interleave(torch.tensor([4, 2, 3]), dim=0)
    for normalise in (False, True):
        found = cluster(point_BK, 6, normalise=normalise)
        assert found.label_B.tolist() == [0] * 4 + [2] * 2 + [1] * 3
        assert float(found.inertia) == pytest.approx(0, abs=1e-6)
    assert cluster(torch.ones(4, 3), 2).label_B.tolist() == [0] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalise", [False, True])
def test_copies_of_a_sample_are_never_parted(dtype, normalise):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        copy_B = torch.randint(4, (17,), generator=generator)
        point_BK = torch.randn(4, 50, generator=generator, dtype=dtype)[copy_B] + 1
        label_B = cluster(point_BK, 9, seed, normalise=normalise).label_B
        assert adjusted_rand_score(copy_B.numpy(), label_B.numpy()) == 1.0


def test_more_domains_than_samples_and_a_single_sample():
    point_BK = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    found = cluster(point_BK, 11)
    assert found.label_B.tolist() == [0, 1, 2]
    assert float(found.inertia) == pytest.approx(0, abs=1e-6)
    assert cluster(point_BK[:1], 4).label_B.tolist() == [0]
    whole = cluster(point_BK, 1)
    assert float(whole.inertia) == pytest.approx(vector_inertia(point_BK, whole.label_B), rel=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("normalise", [False, True])
def test_rows_that_are_not_finite_shape_nothing(bad, normalise):
    point_BK, truth_B = blobs(2)
    clean = cluster(point_BK, 4, normalise=normalise)
    broken_BK = point_BK.clone()
    broken_BK[[10, 30], [0, 3]] = bad
    found = cluster(broken_BK, 4, normalise=normalise)
    assert found.label_B[[10, 30]].tolist() == [0, 0]
    kept = np.delete(np.arange(60), [10, 30])
    assert adjusted_rand_score(truth_B[kept], found.label_B[kept].numpy()) == 1.0
    assert float(found.inertia) < float(clean.inertia)
    nothing = cluster(torch.full((5, 2), bad), 3, normalise=normalise)
    assert nothing.label_B.tolist() == [0] * 5
    assert float(nothing.inertia) == 0


def test_zero_rows_shape_no_direction():
    point_BK, truth_B = blobs(1)
    point_BK[7] = 0
    found = cluster(point_BK, 4, normalise=True)
    kept = np.delete(np.arange(60), 7)
    assert adjusted_rand_score(truth_B[kept], found.label_B[kept].numpy()) == 1.0
    assert cluster(torch.zeros(4, 2), 2, normalise=True).label_B.tolist() == [0] * 4


def test_rows_that_are_not_finite_make_no_domain_large():
    """Two samples in the middle, where rows that are not finite lie as well."""
    point_BK = torch.tensor([-10.0, -10, -10, -10, -1, 1, 10, 10, 10, 10, torch.nan, torch.nan])
    assert cluster(point_BK[:, None], 3).label_B.tolist() == [0] * 4 + [2] * 2 + [1] * 4 + [0] * 2


def test_empty_domains_take_different_farthest_samples():
    point_BK = torch.tensor([[0.0], [1.0], [2.0], [9.0], [5.0]], dtype=torch.float64)
    one_B = torch.ones(5, dtype=torch.float64)
    space = Space(point_BK @ point_BK.T, one_B, 0 * one_B, False)
    label_1B = torch.ones(1, 5, dtype=torch.int64)  # domains 0 and 2 are empty
    square_B = point_BK.square().squeeze(1)
    distance_B = torch.tensor([3.0, 1.0, 0.0, 7.0, 0.0], dtype=torch.float64)
    score_1BM = (distance_B - square_B)[None, :, None].expand(1, 5, 3)
    assert _fill_empty(space, label_1B, score_1BM).tolist() == [[2, 1, 1, 0, 1]]
    on_the_spot = (-square_B)[None, :, None].expand(1, 5, 3)
    assert _fill_empty(space, label_1B, on_the_spot).tolist() == [[1] * 5]


@pytest.mark.parametrize("normalise", [False, True])
def test_empty_domains_come_back(monkeypatch, normalise):
    """Started with every sample in one domain."""

    def all_in_one(space, race_MRLB):
        return torch.zeros(race_MRLB.shape[1], len(space.weight_B), dtype=torch.int64)

    monkeypatch.setattr("dograph.domains.kmeans._plus_plus", all_in_one)
    point_BK, truth_B = blobs(0, num_domains=2)
    label_B = cluster(point_BK, 2, normalise=normalise).label_B.numpy()
    assert adjusted_rand_score(truth_B, label_B) == 1.0
    many_B = cluster(point_BK, 7, normalise=normalise).label_B
    assert many_B.unique().tolist() == list(range(7))
    last_B = cluster(point_BK, 7, normalise=normalise, iterations=1).label_B
    assert last_B.unique().tolist() == list(range(7)), "the last iteration did not look"


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", ["noise", "groups", "long rows"])
def test_settled_labels_are_those_of_all_iterations(monkeypatch, normalise, kind):
    """On a CPU it stops early, on a GPU it does not; also where domains run empty."""
    settled, stops = kmeans._has_settled, []

    def all_in_two(space, race_MRLB):
        return torch.arange(len(space.weight_B)).expand(race_MRLB.shape[1], -1) % 2

    def watched(*given):
        stops.append(settled(*given))
        return stops[-1]

    for start in (kmeans._plus_plus, all_in_two):
        monkeypatch.setattr(kmeans, "_plus_plus", start)
        for seed in range(5):
            point_BK = gradient_like(seed, kind)
            monkeypatch.setattr(kmeans, "_has_settled", lambda *_: False)
            whole = cluster(point_BK, 11, normalise=normalise)
            monkeypatch.setattr(kmeans, "_has_settled", watched)
            early = cluster(point_BK, 11, normalise=normalise)
            assert torch.equal(early.label_B, whole.label_B)
            assert torch.equal(early.inertia, whole.inertia)
    assert any(stops)


def test_ties_go_to_the_lowest_index():
    """Of torch, which K-means relies on."""
    value = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [3.0, 2.0, 1.0]])
    assert value.argmin(dim=-1).tolist() == [1, 0, 2]
    assert int(torch.full((4,), torch.inf).argmin()) == 0


@pytest.mark.parametrize("option", ["num_domains", "restarts", "iterations"])
def test_options_below_one_are_refused(option):
    options = {"num_domains": 2, option: 0}
    with pytest.raises(ConfigError, match=f"{option} must be at least 1, got 0"):
        KMeans(**options)


@pytest.mark.parametrize(("size", "most"), [(3, 1), (4, 1), (7, 1), (8, 2), (11, 2), (12, 3)])
def test_a_domain_for_every_so_many_samples(size, most):
    point_BK = torch.eye(size)  # all equally far apart: as many domains as there may be
    label_B = cluster(point_BK, 9, samples_per_domain=4).label_B
    assert label_B.unique().tolist() == list(range(most))
