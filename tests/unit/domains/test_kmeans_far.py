"""K-means far from the origin: distances are small differences of large squares.

Shapes: B samples, K sketch, M domains.
"""

import pytest
import torch

from dograph.domains.kmeans import KMeans


def groups(seed, *, offset, apart, width):
    """Float32 samples of three groups around a point that is `offset` from 0 in every direction."""
    draw = torch.Generator().manual_seed(seed)
    label_B = torch.arange(36) % 3
    centre_MK = apart * torch.randn(3, 32, generator=draw)
    sketch_BK = centre_MK[label_B] + width * torch.randn(36, 32, generator=draw)
    return sketch_BK + offset * torch.randn(32, generator=draw).sign(), label_B


def exact_inertia(sketch_BK, label_B):
    total = 0.0
    for domain in label_B.unique():
        member_bK = sketch_BK[label_B == domain].double()
        total += float((member_bK - member_bK.mean(dim=0)).square().sum())
    return total


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("offset", "apart", "width"), [(1e3, 0.01, 0.001), (1e4, 0.1, 0.01)])
def test_groups_and_their_inertia_far_from_the_origin(offset, apart, width, seed):
    """Without centring the inertia is off by 1e-4, and in float32 the groups are not found."""
    sketch_BK, label_B = groups(seed, offset=offset, apart=apart, width=width)
    generator = torch.Generator().manual_seed(seed)
    found = KMeans(3, restarts=4).cluster(sketch_BK, generator)
    together_BB = label_B[:, None] == label_B
    assert torch.equal(found.label_B[:, None] == found.label_B, together_BB)
    expected = exact_inertia(sketch_BK, label_B)
    assert float(found.inertia) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_samples_nearer_than_rounding_are_one_domain(seed):
    """Squares of 3e9 are rounded by 5e-7; the groups' own squares, which are 1, must not decide."""
    draw = torch.Generator().manual_seed(seed)
    label_B = torch.arange(36) % 3
    near_BK = torch.randn(3, 32, generator=draw, dtype=torch.float64)[label_B] / 5
    near_BK += 1e-6 * torch.randn(36, 32, generator=draw, dtype=torch.float64)
    sketch_BK = near_BK + 1e4 * torch.rand(32, generator=draw, dtype=torch.float64)
    found = KMeans(8, restarts=4).cluster(sketch_BK, draw)
    assert torch.equal(found.label_B[:, None] == found.label_B, label_B[:, None] == label_B)
    assert float(found.inertia) == 0
