"""What a rank says to the others, for tests of train.distributed and sketch.gradients."""

import torch

from dograph.data.loader import rank_slice
from dograph.sketch.gradients import WorldRows, average_gradients


def talk(world, num_samples):
    """Every rank holds its part of 0, 1, 2, ...; the second one has no gradient of `b`."""
    own = torch.arange(float(num_samples))[rank_slice(num_samples, world.rank, world.size)]
    a, b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    a.grad = torch.full((2,), float(world.rank))
    b.grad = None if world.rank == 1 else torch.ones(3)
    average_gradients([a, b])
    rows = WorldRows(len(own), world.device, world.sizes(num_samples))
    return {
        "gathered": rows.gather(torch.stack((own, -own), dim=1)),
        "local": rows.local(torch.arange(float(num_samples))),
        "agreed": world.agree([0, 15, 2][world.rank]),
        "shared": world.share(f"rank {world.rank}: ä"),
        "total": world.total(torch.full((2,), float(world.rank + 1))),
        "averaged": [a.grad, b.grad],
    }
