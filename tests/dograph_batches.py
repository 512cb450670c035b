"""Signals whose domains are known: samples around a few directions of different length."""

from dataclasses import dataclass

import torch

from dograph.types import Signals

SIZE, DIM = 24, 40


@dataclass
class Lab:
    tokens: dict[str, int]
    budget: int = 10_000
    steps: int = 100

    @property
    def strata(self):
        return self.tokens


UNEVEN = torch.tensor([0] * 10 + [1] * 7 + [2] * 5 + [3] * 2)


def batch(step=0, *, groups=4, noise=0.3, size=SIZE, seed=0, projection=0, source_B=None):
    """Samples around a few directions of different length; the direction is the source."""
    centre_MK = torch.randn(groups, DIM, generator=torch.Generator().manual_seed(seed))
    centre_MK *= torch.arange(1, groups + 1)[:, None]
    source_B = torch.arange(size) % groups if source_B is None else source_B
    spread = torch.randn(size, DIM, generator=torch.Generator().manual_seed(1000 * seed + step + 1))
    sketch_BK = centre_MK[source_B] + noise * spread
    return Signals(
        step=step,
        num_samples=size,
        source_B=source_B,
        stratum_B=source_B,
        sketch_BK=sketch_BK,
        block_norm_B=sketch_BK.norm(dim=1),
        projection=projection,
    )
