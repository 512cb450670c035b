"""Persistent domains, step by step against loops over samples.

Shapes: B samples, K sketch, M domains.
"""

import pytest
import torch
import torch.nn.functional as F

from dograph.domains.kmeans import KMeans
from dograph.domains.scopes import FIT_BATCHES, StreamScope

SUMS = ("count_M", "direction_MK", "gradient_MK", "square_M", "spread_M", "spread_square_M")


def stream(num_domains, **options):
    cluster = KMeans(num_domains, normalise=True, restarts=2, seed=0)
    return StreamScope(cluster, **options)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_centre_is_the_decayed_mean_of_directions():
    scope, half_life = stream(2, half_life=2.0), 2.0
    batches = [3 * normal(4 + step % 3, 5, seed=step) + 1 for step in range(7)]
    for step, sketch_BK in enumerate(batches):
        scope.assign(sketch_BK, step, 0)
        scope.observe(sketch_BK, step)
    total_K, total = torch.zeros(5), 0.0
    for age, sketch_BK in enumerate(reversed(batches)):
        for row_K in sketch_BK:
            total_K += 0.5 ** (age / half_life) * row_K / row_K.norm()
            total += 0.5 ** (age / half_life)
    got_K = scope.sums["centre_K"] / scope.sums["centre_count"]
    torch.testing.assert_close(got_K, total_K / total)
    row_K = batches[0][0] / batches[0][0].norm() - total_K / total
    torch.testing.assert_close(scope._directions(batches[0])[0], row_K / row_K.norm())


def test_domains_are_found_over_the_last_batches_and_no_others():
    scope, batches = stream(2), [normal(6, 5, seed=step) for step in range(23)]
    for step, sketch_BK in enumerate(batches):
        scope.assign(sketch_BK, step, 0)
        scope.observe(sketch_BK, step)
    assert torch.equal(torch.cat(scope.pool), torch.cat(batches[-FIT_BATCHES:]))


def known(scope, count_M, direction_MK):
    """A scope with these domains; the other sums are told apart by their values."""
    num = len(count_M)
    scope.sums |= {
        "count_M": torch.tensor(count_M),
        "direction_MK": direction_MK.clone(),
        "gradient_MK": 7 * direction_MK,
        "square_M": torch.arange(1.0, num + 1),
        "spread_M": torch.arange(11.0, num + 11),
        "spread_square_M": torch.arange(21.0, num + 21),
    }
    return {name: value.clone() for name, value in scope.sums.items()}


@pytest.mark.parametrize(("least", "starts"), [(2.4, True), (2.7, False)])
def test_a_domain_that_lost_its_samples_starts_at_the_farthest_one(least, starts):
    """Below a quarter of an equal share, here 2.5 or so of 30; with half a share."""
    scope = stream(3)
    before = known(scope, [15.0, least, 15.0 - least], torch.eye(3, 4))
    sketch_BK = torch.tensor([[9.0, 1, 0, 1], [0, 5, 0, 3], [1, 1, 1, 4], [0, 0, 8, 1]])
    scope._reseed(sketch_BK, F.normalize(sketch_BK))
    if not starts:
        assert all(torch.equal(scope.sums[name], before[name]) for name in SUMS)
        return
    far_K, mass = sketch_BK[2], 30 / 6
    square = float(far_K @ far_K)
    expected = {
        "count_M": mass,
        "direction_MK": mass * far_K / far_K.norm(),
        "gradient_MK": mass * far_K,
        "square_M": mass * square,
        "spread_M": mass * square,
        "spread_square_M": mass * square**2,
    }
    for name in SUMS:
        torch.testing.assert_close(scope.sums[name][1], torch.as_tensor(expected[name]))
        assert torch.equal(scope.sums[name][[0, 2]], before[name][[0, 2]]), name


@pytest.mark.parametrize("better", [True, False])
def test_a_refit_is_taken_where_it_fits_better_and_keeps_the_numbers(monkeypatch, better):
    scope = stream(3)
    before = known(scope, [3.0, 4.0, 5.0], torch.eye(3, 4) + 0.4)
    sketch_BK = torch.eye(3, 4).repeat(4, 1) + 0.05 * normal(12, 4)
    order = [2, 0, 1]  # which new domain continues each old one: no order that is its own inverse
    near_MK = torch.eye(3, 4) if better else torch.eye(3, 4) + 0.8
    new = {name: value + 100 for name, value in before.items()}
    new["direction_MK"] = near_MK[[order.index(j) for j in range(3)]]
    assert [int(row.argmax()) for row in new["direction_MK"]] == [1, 2, 0]
    monkeypatch.setattr(scope, "_fitted", lambda step: new)
    scope._refit(F.normalize(sketch_BK), 0)
    for name in SUMS:
        expected = new[name][order] if better else before[name]
        assert torch.equal(scope.sums[name], expected), name
    assert torch.equal(scope.sums["direction_MK"].argmax(dim=1), torch.arange(3))


@pytest.mark.parametrize(("gains", "taken"), [([0.7, -0.3, -0.2, -0.1], False), ([0.03] * 4, True)])
def test_a_gain_within_its_standard_error_is_none(monkeypatch, gains, taken):
    scope = stream(1)
    old_MK, new_MK = torch.eye(2, 3)[:1], torch.eye(2, 3)[1:]
    before = known(scope, [3.0], old_MK)
    monkeypatch.setattr(scope, "_fitted", lambda step: {**before, "direction_MK": new_MK})
    near_B = torch.full((4,), 0.2) + torch.tensor([0.0, 0.3, 0.2, 0.1])
    far_B = near_B + torch.tensor(gains)
    rest_B = (1 - near_B.square() - far_B.square()).sqrt()
    scope._refit(torch.stack((near_B, far_B, rest_B), dim=1), 0)
    assert torch.equal(scope.sums["direction_MK"], new_MK if taken else old_MK)


def test_a_refit_is_judged_by_a_batch_that_nobody_has_seen(monkeypatch):
    scope, seen = stream(3, refit_every=1), []
    before = known(scope, [3.0, 4.0, 5.0], torch.eye(3, 4))

    def look(direction_BK, step):
        seen.append(len(scope.pool))
        assert all(torch.equal(scope.sums[name], before[name]) for name in SUMS)

    monkeypatch.setattr(scope, "_refit", look)
    scope.observe(normal(6, 4), 0)
    assert seen == [0]
    assert float(scope.sums["count_M"].sum()) == pytest.approx(12 * scope.decay + 6)


def test_statistics_of_two_domains_are_those_of_their_samples():
    """Two opposite directions, so labels are certain; distances are to the means of before."""
    scope = stream(2, half_life=3.0, refit_every=1000)
    sign_B = torch.tensor([1.0, -1, 1, 1, -1, 1])[:, None]
    axis_K = torch.tensor([4.0, 0, 0, 0, 0])
    batches = [sign_B * axis_K + 0.5 * normal(6, 5, seed=step) for step in range(13)]
    for step, sketch_BK in enumerate(batches):
        scope.assign(sketch_BK, step, 0)
        scope.observe(sketch_BK, step)
    domains = scope.assign(batches[0], 13, 0)
    for side in (True, False):
        pool = torch.cat(batches[:10])
        own = pool[pool[:, 0] > 0] if side else pool[pool[:, 0] < 0]
        distance = [float((row - own.mean(dim=0)).square().sum()) for row in own]
        count, total_K = float(len(own)), own.sum(dim=0)
        spread, square = sum(distance), sum(d**2 for d in distance)
        for sketch_BK in batches[10:]:
            rows = sketch_BK[sketch_BK[:, 0] > 0] if side else sketch_BK[sketch_BK[:, 0] < 0]
            mean_K, decay = total_K / count, 0.5 ** (1 / 3)
            distance = [float((row - mean_K).square().sum()) for row in rows]
            count, total_K = decay * count + len(rows), decay * total_K + rows.sum(dim=0)
            spread = decay * spread + sum(distance)
            square = decay * square + sum(d**2 for d in distance)
        j = int(domains.label_B[0 if side else 1])
        assert float(scope.sums["count_M"][j]) == pytest.approx(count)
        mean_K = total_K / count
        assert float(domains.gram_MM[j, j]) == pytest.approx(float(mean_K @ mean_K), rel=1e-4)
        assert float(domains.spread_M[j]) == pytest.approx(spread / count, rel=1e-4)
        variance = square / count - (spread / count) ** 2
        assert float(domains.spread_variance_M[j]) == pytest.approx(variance, rel=1e-3)
