"""A batch's sketches to its domains on a GPU: four kernels, one sum and one draw.

Shapes: B samples, K sketch, M domains, R restarts.
"""

import torch
from torch import Tensor

from dograph.domains.kmeans import ITERATIONS, RATIO, REFILL_EVERY, SAME, races
from dograph.types import Domains


def domains_of_batch(
    sketch_BK: Tensor,
    num_domains: int,
    *,
    generator: torch.Generator,
    restarts: int,
    normalise: bool,
) -> Domains:
    """What `partition` says of the labels of `kmeans`, for at most 128 samples."""
    from dograph.kernels.gram import sorted_space
    from dograph.kernels.kmeans import restarts_by_kernel
    from dograph.kernels.partition import domains_by_kernel

    dtype = torch.promote_types(sketch_BK.dtype, torch.float32)
    batch = sorted_space(sketch_BK, normalise, SAME, RATIO)
    race_MRLB = races(len(sketch_BK), min(num_domains, len(sketch_BK)), restarts, generator)
    label_RB, inertia_R = restarts_by_kernel(
        *(batch.gram_BB, batch.weight_B, batch.rounding_B, race_MRLB),
        spherical=normalise,
        iterations=ITERATIONS,
        refill_every=REFILL_EVERY,
    )
    return domains_by_kernel(batch, label_RB, inertia_R, num_domains, dtype)
