import numpy as np
import torch

from dograph.domains.graph import cosine, mmd_squared


def means():
    """Five domain means, one of them empty."""
    generator = torch.Generator().manual_seed(0)
    mean_MK = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    mean_MK[2] = 0
    return mean_MK


def test_edges_are_cosines_of_means():
    mean_MK = means()
    vectors = mean_MK.numpy()
    cosine_MM = cosine(mean_MK @ mean_MK.T).numpy()
    both = 0
    for j in range(5):
        for k in range(5):
            if 2 in (j, k):
                assert cosine_MM[j, k] == 0
                continue
            expected = vectors[j] @ vectors[k]
            expected /= np.linalg.norm(vectors[j]) * np.linalg.norm(vectors[k])
            np.testing.assert_allclose(cosine_MM[j, k], expected, atol=1e-12)
            both |= 1 if expected < 0 else 2
    assert both == 3, "the example has agreeing and opposing domains"


def test_cosine_stays_in_range_in_float32():
    mean_MK = means().float()
    mean_MK[1] = 3 * mean_MK[0]
    cosine_MM = cosine(mean_MK @ mean_MK.T)
    assert float(cosine_MM.abs().max()) <= 1
    torch.testing.assert_close(cosine_MM.diagonal(), torch.tensor([1.0, 1, 0, 1, 1]))
    torch.testing.assert_close(cosine_MM[0, 1], torch.tensor(1.0))


def test_mmd_is_the_distance_between_means():
    mean_MK = means()
    distance_MM = torch.cdist(mean_MK, mean_MK).square()
    torch.testing.assert_close(mmd_squared(mean_MK @ mean_MK.T), distance_MM, atol=1e-9, rtol=1e-9)
    same_MK = means().float()[[0, 0, 0]] * torch.tensor([[1.0], [1 + 1e-7], [1.0]])
    assert bool((mmd_squared(same_MK @ same_MK.T) >= 0).all())
