import numpy as np
import pytest
import torch

from dograph.domains.partition import partition, sample_weights
from dograph.types import Domains

NUM_DOMAINS = 5


def batch(seed=0, size=24, dims=40, dtype=torch.float64):
    """Sketches, and labels with an empty domain (3) and a domain of one sample (4)."""
    generator = torch.Generator().manual_seed(seed)
    sketch_BK = torch.randn(size, dims, generator=generator, dtype=torch.float64) + 0.3
    label_B = torch.randint(3, (size,), generator=generator)
    label_B[5] = 4
    return sketch_BK.to(dtype), label_B


def by_vectors(sketch_BK, label_B):
    """The definitions, one domain at a time."""
    x = sketch_BK.double().numpy()
    mean_MK = np.zeros((NUM_DOMAINS, x.shape[1]))
    square_M, spread_M, variance_M, share_M = np.zeros((4, NUM_DOMAINS))
    for j in np.unique(label_B):
        members = x[label_B.numpy() == j]
        mean_MK[j] = members.mean(axis=0)
        distance = ((members - mean_MK[j]) ** 2).sum(axis=1)
        share_M[j] = len(members) / len(x)
        square_M[j] = (members**2).sum(axis=1).mean()
        spread_M[j], variance_M[j] = distance.mean(), distance.var()
    return {
        "share_M": share_M,
        "gram_MM": mean_MK @ mean_MK.T,
        "square_M": square_M,
        "spread_M": spread_M,
        "spread_variance_M": variance_M,
        "scale": (x**2).sum(axis=1).mean(),
    }


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_the_gram_gives_what_the_vectors_give(dtype, rtol):
    sketch_BK, label_B = batch(dtype=dtype)
    domains = partition(sketch_BK, label_B, NUM_DOMAINS)
    for name, expected in by_vectors(sketch_BK, label_B).items():
        got = getattr(domains, name)
        fourth_power = name == "spread_variance_M"
        assert got.dtype == (torch.float64 if fourth_power else dtype), name
        np.testing.assert_allclose(got.numpy(), expected, rtol=rtol, atol=1e-12, err_msg=name)
    assert domains.present_M.tolist() == [True, True, True, False, True]
    assert float(domains.spread_M[4]) == float(domains.spread_variance_M[4]) == 0


def test_spreads_survive_a_large_common_gradient():
    """Float32 sketches with a mean of 1e4 around which they differ by 1."""
    sketch_BK, label_B = batch(dtype=torch.float32)
    shifted_BK = sketch_BK + 1e4
    shifted = partition(shifted_BK, label_B, NUM_DOMAINS)
    expected = by_vectors(shifted_BK, label_B)
    np.testing.assert_allclose(shifted.spread_M.numpy(), expected["spread_M"], rtol=1e-5)


def test_bf16_sketches_and_gradients_that_would_flow():
    sketch_BK, label_B = batch()
    rounded_BK = sketch_BK.to(torch.bfloat16).requires_grad_()
    domains = partition(rounded_BK, label_B, NUM_DOMAINS)
    assert domains.gram_MM.dtype == torch.float32
    assert not domains.gram_MM.requires_grad
    expected = by_vectors(rounded_BK.detach(), label_B)
    np.testing.assert_allclose(domains.gram_MM.numpy(), expected["gram_MM"], rtol=1e-5, atol=1e-5)


def test_weights_by_share_count_all_samples_alike():
    domains = partition(*batch(), NUM_DOMAINS)
    weight_B = sample_weights(domains, domains.share_M)
    torch.testing.assert_close(weight_B, torch.full((24,), 1 / 24, dtype=torch.float64))


def test_a_weighted_sum_of_samples_is_the_weighted_sum_of_means():
    sketch_BK, label_B = batch()
    domains = partition(sketch_BK, label_B, NUM_DOMAINS)
    weight_M = torch.tensor([0.1, 0.2, 0.3, 0.0, 0.4], dtype=torch.float64)
    weight_B = sample_weights(domains, weight_M)
    mean_MK = torch.stack([sketch_BK[label_B == j].mean(dim=0) for j in (0, 1, 2, 4)])
    torch.testing.assert_close(weight_B @ sketch_BK, weight_M[[0, 1, 2, 4]] @ mean_MK)
    assert float(weight_B.sum()) == pytest.approx(1)


def test_shares_from_elsewhere_are_renormalised():
    """Shares pooled over time do not match this batch; the sum is 1 all the same."""
    label_B = torch.tensor([0, 0, 0, 1])
    half_M = torch.tensor([0.5, 0.5])
    domains = Domains(label_B, half_M, torch.eye(2), half_M, half_M, half_M, torch.tensor(1.0))
    weight_B = sample_weights(domains, torch.tensor([0.2, 0.8]))
    torch.testing.assert_close(weight_B, torch.tensor([0.2, 0.2, 0.2, 0.8]) / 1.4)


@pytest.mark.parametrize("weight", [0.0, torch.nan, torch.inf])
def test_unusable_weights_count_all_samples_alike(weight):
    domains = partition(*batch(), NUM_DOMAINS)
    weight_B = sample_weights(domains, torch.full((NUM_DOMAINS,), weight, dtype=torch.float64))
    assert torch.equal(weight_B, torch.full((24,), 1 / 24, dtype=torch.float64))


def test_a_row_that_is_not_finite_ends_in_equal_weights():
    sketch_BK, label_B = batch()
    sketch_BK[3, 0] = torch.nan
    domains = partition(sketch_BK, label_B, NUM_DOMAINS)
    weight_B = sample_weights(domains, domains.square_M)
    assert torch.equal(weight_B, torch.full((24,), 1 / 24, dtype=torch.float64))


def test_the_spread_of_equal_samples_is_not_negative():
    """Distances are differences of rounded numbers; a squared one is at least 0."""
    label_B = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    for seed in range(40):
        sketch_MK = torch.randn(2, 7, generator=torch.manual_seed(seed))
        domains = partition(sketch_MK[label_B], label_B, 2)
        assert domains.spread_M.min() >= 0
        assert domains.spread_M.max() < 1e-12
