import numpy as np
import torch

from dograph.domains.graph import adjacency, cosine, laplacian, mmd_squared


def means():
    """Five domain means, one of them empty."""
    generator = torch.Generator().manual_seed(0)
    mean_MK = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    mean_MK[2] = 0
    return mean_MK


def test_edges_are_positive_cosines():
    mean_MK = means()
    vectors = mean_MK.numpy()
    a_MM = adjacency(mean_MK @ mean_MK.T).numpy()
    both = 0
    for j in range(5):
        for k in range(5):
            if j == k or 2 in (j, k):
                assert a_MM[j, k] == 0
                continue
            expected = vectors[j] @ vectors[k]
            expected /= np.linalg.norm(vectors[j]) * np.linalg.norm(vectors[k])
            np.testing.assert_allclose(a_MM[j, k], max(expected, 0), atol=1e-12)
            both |= 1 if expected < 0 else 2
    assert both == 3, "the example has agreeing and opposing domains"


def test_cosine_stays_in_range_in_float32():
    mean_MK = means().float()
    mean_MK[1] = 3 * mean_MK[0]
    cosine_MM = cosine(mean_MK @ mean_MK.T)
    assert float(cosine_MM.abs().max()) <= 1
    torch.testing.assert_close(cosine_MM.diagonal(), torch.tensor([1.0, 1, 0, 1, 1]))
    torch.testing.assert_close(cosine_MM[0, 1], torch.tensor(1.0))


def test_laplacian_sums_squared_differences_over_edges():
    mean_MK = means()
    a_MM = adjacency(mean_MK @ mean_MK.T)
    weight_M = torch.rand(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    apart_MM = (weight_M[:, None] - weight_M).square()
    l_MM = laplacian(a_MM)
    torch.testing.assert_close(weight_M @ l_MM @ weight_M, (a_MM * apart_MM).sum() / 2)
    torch.testing.assert_close(l_MM.sum(dim=1), torch.zeros(5, dtype=torch.float64))


def test_mmd_is_the_distance_between_means():
    mean_MK = means()
    distance_MM = torch.cdist(mean_MK, mean_MK).square()
    torch.testing.assert_close(mmd_squared(mean_MK @ mean_MK.T), distance_MM, atol=1e-9, rtol=1e-9)
    same_MK = means().float()[[0, 0, 0]] * torch.tensor([[1.0], [1 + 1e-7], [1.0]])
    assert bool((mmd_squared(same_MK @ same_MK.T) >= 0).all())
