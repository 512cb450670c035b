"""A period's domains are held as they were found, and projections that end too soon are refused.

Shapes: B samples, K sketch, M domains, P pooled samples.
"""

import pytest
import torch

from dograph.domains.kmeans import KMeans
from dograph.domains.scopes import FIT_BATCHES, PeriodScope, StreamScope, closeness
from dograph.errors import ConfigError

M, K, EVERY, SIZE = 6, 16, 10, 48


def cluster(normalise, num_domains=M):
    return KMeans(num_domains, normalise=normalise, restarts=8, seed=3)


def batches(seed, noise):
    """Directions around a few centres; with noise they overlap, and norms span decades."""
    generator = torch.Generator().manual_seed(seed)
    centre_MK = torch.randn(M, K, generator=generator)
    for _ in range(EVERY):
        which_B = torch.randint(M, (SIZE,), generator=generator)
        point_BK = centre_MK[which_B] + noise * torch.randn(SIZE, K, generator=generator)
        yield point_BK * (noise * torch.randn(SIZE, 1, generator=generator)).exp()


def period(normalise, seed, noise=1.0):
    """An epoch scope after its first period, the pooled sketches, and what K-means said of them."""
    scope, pool = PeriodScope(cluster(normalise), every=EVERY), list(batches(seed, noise))
    for step, sketch_BK in enumerate(pool):
        assert scope.assign(sketch_BK, step, 0) is None
        scope.observe(sketch_BK, step)
    pool_PK = torch.cat(pool)
    return scope, pool_PK, cluster(normalise)(pool_PK, EVERY - 1)


@pytest.mark.parametrize("normalise", [True, False], ids=["by angle", "by distance"])
@pytest.mark.parametrize("seed", range(5))
def test_a_period_is_held_by_the_centroids_that_k_means_found(normalise, seed):
    """Its own samples keep their domains, so that shares are those of the samples assigned."""
    scope, pool_PK, label_P = period(normalise, seed)
    held_P = closeness(pool_PK, scope.centroid_MK, normalise).argmax(dim=1)
    assert torch.equal(held_P, label_P)
    domains = scope.assign(pool_PK, EVERY, 0)
    assert torch.equal(domains.label_B, label_P)
    share_M = torch.bincount(label_P, minlength=M) / len(label_P)
    torch.testing.assert_close(domains.share_M, share_M)
    for j in range(M):
        square = pool_PK[label_P == j].square().sum(dim=1).mean()
        torch.testing.assert_close(domains.square_M[j], square)


@pytest.mark.parametrize("normalise", [True, False], ids=["by angle", "by distance"])
def test_the_next_period_keeps_the_numbers(normalise):
    """Though K-means counts domains by size, and the largest of before is now the smallest."""
    scope, pool_PK, label_P = period(normalise, 0, noise=0.1)
    times_M = torch.tensor([1, 6, 5, 4, 3, 2])
    second_PK = pool_PK.repeat_interleave(times_M[label_P], dim=0)
    for step, sketch_BK in enumerate(second_PK.tensor_split(EVERY), EVERY):
        scope.observe(sketch_BK, step)
    domains = scope.assign(pool_PK, 2 * EVERY, 0)
    assert torch.equal(domains.label_B, label_P)
    count_M = times_M * torch.bincount(label_P, minlength=M)
    torch.testing.assert_close(domains.share_M, count_M / count_M.sum())


SCOPES = {
    "period": lambda: PeriodScope(cluster(normalise=False, num_domains=2), every=3),
    "stream": lambda: StreamScope(cluster(normalise=True, num_domains=2)),
}
NEEDED = {"period": 3, "stream": FIT_BATCHES}


def run(scope, refresh, steps, first=0):
    """The steps at which domains are known, with a new projection every `refresh` steps."""
    known = []
    for step in range(first, steps):
        sketch_BK = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        if scope.assign(sketch_BK, step, step - step % refresh) is not None:
            known.append(step)
        scope.observe(sketch_BK, step)
    return known


@pytest.mark.parametrize("name", SCOPES)
def test_a_projection_too_short_for_domains_is_refused(name):
    for refresh in (1, NEEDED[name] - 1, NEEDED[name]):
        message = rf"scope={name} needs .* after {refresh}; set refresh to never"
        with pytest.raises(ConfigError, match=message):
            run(SCOPES[name](), refresh, 4 * NEEDED[name])


@pytest.mark.parametrize("name", SCOPES)
def test_a_projection_that_lasts_one_step_more_has_domains_at_its_last(name):
    refresh = NEEDED[name] + 1
    assert run(SCOPES[name](), refresh, 3 * refresh) == [refresh * i - 1 for i in (1, 2, 3)]


@pytest.mark.parametrize("name", SCOPES)
def test_a_run_may_start_in_the_middle_of_a_projection(name):
    refresh = NEEDED[name] + 1
    known = run(SCOPES[name](), refresh, 3 * refresh, first=refresh - 2)
    assert known == [2 * refresh - 1, 3 * refresh - 1]


@pytest.mark.parametrize("name", SCOPES)
def test_domains_once_known_are_never_lost_under_one_projection(name):
    assert run(SCOPES[name](), 1000, 4 * NEEDED[name]) == list(
        range(NEEDED[name], 4 * NEEDED[name])
    )
