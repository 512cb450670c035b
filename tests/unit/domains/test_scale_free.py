"""Weights do not depend on the scale of gradients, also where their fourth powers leave float32.

Shapes: B samples, K sketch, M domains.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dograph.domains.objectives import Uncertainty
from dograph.domains.partition import partition
from dograph.mixers.dograph import DoGraph
from dograph.types import Signals

SCALES = [1e-12, 1.0, 1e12]


def batch(seed=0):
    """Float32 sketches of three domains whose spreads differ."""
    draw = torch.Generator().manual_seed(seed)
    label_B = torch.arange(36) % 3
    mean_MK = torch.randn(3, 40, generator=draw)
    width_B = torch.tensor([0.5, 1.0, 1.5])[label_B]
    noise_BK = torch.randn(36, 40, generator=draw) * torch.rand(36, 1, generator=draw)
    return mean_MK[label_B] + width_B[:, None] * noise_BK, label_B


def oracle(sketch_BK, label_B, *, beta, sigma):
    """The definition in float64, from the vectors, minimized by a general solver."""
    x_BK = sketch_BK.double().numpy()
    x_BK = x_BK / np.sqrt((x_BK**2).sum(axis=1).mean())
    mean_MK, sigma_M = [], []
    for j in range(3):
        members = x_BK[label_B.numpy() == j]
        mean_MK.append(members.mean(axis=0))
        distance = ((members - mean_MK[-1]) ** 2).sum(axis=1)
        sigma_M.append(distance.var() if sigma == "paper" else distance.mean())
    gram_MM, slope_M = np.array(mean_MK) @ np.array(mean_MK).T, beta * np.array(sigma_M)
    found = minimize(
        lambda w: w @ gram_MM @ w + slope_M @ w,
        np.full(3, 1 / 3),
        jac=lambda w: 2 * gram_MM @ w + slope_M,
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x


@pytest.mark.parametrize("sigma", ["paper", "mean"])
@pytest.mark.parametrize("scale", SCALES)
def test_uncertainty_of_a_batch(scale, sigma):
    sketch_BK, label_B = batch()
    beta = 20.0 if sigma == "paper" else 1.0  # where spreads decide as much as means
    domains = partition(sketch_BK * scale, label_B, 3)
    weight_M = Uncertainty(beta=beta, sigma=sigma)(domains)
    expected_M = oracle(sketch_BK, label_B, beta=beta, sigma=sigma)
    without_M = oracle(sketch_BK, label_B, beta=0.0, sigma=sigma)
    np.testing.assert_allclose(weight_M.numpy(), expected_M, atol=1e-5)
    assert expected_M.min() > 0.01
    assert abs(expected_M - without_M).max() > 0.05


@pytest.mark.parametrize("scope", ["batch", "period", "stream"])
def test_uncertainty_in_every_scope(scope):
    """Powers of two, which float32 scales by exactly: all that differs is the range."""
    found = {}
    objective = {"name": "uncertainty", "beta": 20.0}
    for scale in (2.0**-40, 1.0, 2.0**40):
        options = {"num_domains": 3, "warmup_steps": 0, "restarts": 2, "period_steps": 5}
        mixer = DoGraph("paper", scope=scope, objective=objective, **options)
        for step in range(1 if scope == "batch" else 13):
            sketch_BK = batch(seed=step % 2)[0] * scale
            weight_B = mixer.weigh(Signals(step=step, num_samples=36, sketch_BK=sketch_BK))
        found[scale] = weight_B
    assert (36 * found[1.0] - 1).abs().max() > 0.05
    for weight_B in found.values():
        torch.testing.assert_close(weight_B, found[1.0], atol=1e-6, rtol=0)
