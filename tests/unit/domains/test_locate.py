"""Where samples fall in domains that stand: the labels of a step, and nothing changed by asking."""

import pytest
import torch

from dograph.domains.kmeans import KMeans
from dograph.domains.scopes import FIT_BATCHES, PeriodScope, Scope, StreamScope, closeness

M, K = 4, 12


def cluster(normalise=True):
    return KMeans(M, normalise=normalise, restarts=4, seed=3)


def batch(step, size=20):
    generator = torch.Generator().manual_seed(step)
    centre_MK = 4 * torch.eye(M, K)
    which = torch.randint(M, (size,), generator=generator)
    return centre_MK[which] + 0.5 * torch.randn(size, K, generator=generator)


def filled(scope, steps):
    for step in range(steps):
        scope.assign(batch(step), step, 0)
        scope.observe(batch(step), step)
    return scope


@pytest.mark.parametrize(
    "scope",
    [
        StreamScope(cluster()),
        PeriodScope(cluster(), every=3),
        PeriodScope(cluster(normalise=False), every=3),
    ],
    ids=["stream", "epoch by angle", "epoch by distance"],
)
def test_the_labels_are_those_of_a_step_and_asking_changes_nothing(scope):
    assert scope.locate(batch(0), 0) is None
    filled(scope, FIT_BATCHES + 2)
    before = {name: value for name, value in scope.state_dict().items()}
    copies = {n: v.clone() for n, v in before.items() if isinstance(v, torch.Tensor)}
    label_B, near_BM = scope.locate(batch(99), 99)
    after = scope.state_dict()
    assert after.keys() == before.keys()
    for name, value in after.items():
        same = torch.equal(value, copies[name]) if name in copies else value == before[name]
        assert same, name
    assert torch.equal(label_B, scope.assign(batch(99), 99, 0).label_B)
    assert torch.equal(near_BM.argmax(dim=1), label_B)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_batch_scope_clusters_the_samples_themselves(normalise):
    scope = Scope(cluster(normalise))
    point_BK = batch(5, size=40)
    label_B, near_BM = scope.locate(point_BK, 7)
    assert torch.equal(label_B, scope.assign(point_BK, 7, 0).label_B)
    unit_BK = point_BK / point_BK.norm(dim=1, keepdim=True) if normalise else point_BK
    for j in range(M):
        mean_K = unit_BK[label_B == j].mean(dim=0)
        if normalise:
            expected = torch.cosine_similarity(point_BK, mean_K[None])
        else:
            expected = -(point_BK - mean_K).square().sum(dim=1)
        assert torch.allclose(near_BM[:, j], expected, atol=1e-4)


@pytest.mark.parametrize("normalise", [True, False])
def test_nobody_is_near_an_empty_domain(normalise):
    """Its centroid is infinite; the others must be told apart all the same."""
    point_BK = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.0, 0.0], [2.0, 0.0]])
    centroid_MK = torch.tensor([[torch.inf, torch.inf], [1.0, 0.0], [0.0, 1.0]])
    near_BM = closeness(point_BK, centroid_MK, normalise)
    assert torch.equal(near_BM[:, 0], torch.full((4,), -torch.inf))
    assert near_BM.argmax(dim=1).tolist() == [1, 2, 1, 1]
