"""From the weights of domains to those of samples, in one step.

Shapes: B samples, M domains.
"""

import torch
from torch import Tensor

from dograph.domains.partition import sample_weights
from dograph.domains.sample_weights import effective_floor
from dograph.kernels import usable
from dograph.types import Domains

MOST_SAMPLES = 4096  # of the kernel, which is one program


def all_finite(*weights: Tensor) -> Tensor:
    """Whether all numbers are finite: sums of weights do not overflow."""
    total = torch.stack([weight.sum() for weight in weights]).sum()
    return total - total == 0


def share_out(
    domains: Domains, weight_M: Tensor, finite: Tensor, floor: float | None
) -> tuple[Tensor, Tensor]:
    """`sample_weights`, then `effective_floor`; and whether all of it was finite.

    Where `finite` is False, or a weight is not finite, all samples count alike. On a GPU this is
    one kernel (sharing_kernel.py).
    """
    if len(domains.label_B) <= MOST_SAMPLES and usable(weight_M):
        from dograph.kernels.sample_weights import share_out_by_kernel

        return share_out_by_kernel(domains, weight_M, finite, floor)
    weight_B = sample_weights(domains, weight_M)
    if floor is not None:
        weight_B = effective_floor(weight_B, floor)
    finite = finite & all_finite(weight_M, weight_B)
    return torch.where(finite, weight_B, 1 / len(weight_B)), finite
