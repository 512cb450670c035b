"""The control with permuted labels: sizes of domains stay, members are drawn anew."""

import numpy as np
import torch
from benchmarks.permuted import PermutedLabels

from dograph import DoGraph
from dograph.types import Signals


def groups(step=0):
    """Signals of 3 far groups of 16 samples whose gradients have lengths 1, 4 and 16."""
    generator = torch.Generator().manual_seed(step)
    centre_MK = torch.eye(3, 8) * torch.tensor([[1.0], [4.0], [16.0]])
    noise_BK = 0.05 * torch.randn(48, 8, generator=generator)
    sketch_BK = centre_MK.repeat_interleave(16, dim=0) + noise_BK
    return Signals(step=step, num_samples=48, sketch_BK=sketch_BK)


def test_labels_are_permuted_and_sizes_stay():
    true, permuted = DoGraph(num_domains=3), PermutedLabels(num_domains=3)
    weights = []
    for step in range(20):
        true_B, weight_B = true.weigh(groups(step)), permuted.weigh(groups(step))
        counts = [mixer.domains.label_B.bincount(minlength=3) for mixer in (true, permuted)]
        assert torch.equal(*counts)
        assert true_B[:16].mean() / true_B[32:].mean() > 10
        weights.append(weight_B.view(3, 16).mean(dim=1).numpy())
    ratio = np.mean(weights, axis=0) * 48
    assert np.abs(ratio - 1).max() < 0.1, ratio


def test_it_repeats():
    one, other = (PermutedLabels(num_domains=3).weigh(groups(3)) for _ in range(2))
    assert torch.equal(one, other)
