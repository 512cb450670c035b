"""What weights may cost: bounds on samples and domains, each in closed form.

Shapes: B samples, M domains. Sample weights are >= 0 and sum to 1, before and after.
"""

import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.simplex import running_sum

NORM_FLOOR = 0.1  # gradient norms below this fraction of the batch's median count as that fraction


def effective_floor(weight_B: Tensor, rho: float) -> Tensor:
    """Weights drawn towards equal ones until 1 / (n sum c^2), the effective share, reaches rho.

    c' = u + t (c - u) with u = 1/n and t = min(1, sqrt((1/rho - 1) / (n sum c^2 - 1))).
    """
    if not 0 < rho <= 1:
        raise ConfigError(f"a floor on the effective share of samples is in (0, 1], got {rho}")
    size = len(weight_B)
    apart_B = weight_B.double() - 1 / size
    excess = size * apart_B.square().sum()  # n sum c^2 - 1 without the cancellation
    pull = ((1 / rho - 1) / torch.where(excess > 0, excess, 1.0)).sqrt().clamp_max(1)
    return (1 / size + torch.where(excess > 0, pull, 1.0) * apart_B).to(weight_B.dtype)


def cap(weight_B: Tensor, times: float) -> Tensor:
    """The nearest weights of which none exceeds `times` times the equal weight 1/n.

    c'_i = min(times/n, c_i + level): what is cut off is spread evenly over the others, and the
    level is exact. With k samples at the cap the total is a line in the level, and the true total
    is the least of these lines over k.
    """
    if not times >= 1:
        raise ConfigError(f"a cap on sample weights is at least 1 (times the equal one): {times}")
    size = len(weight_B)
    most = times / size
    sum_B = running_sum(weight_B.double().sort(descending=True, stable=True).values)
    capped_B = torch.arange(1, size, dtype=torch.float64, device=weight_B.device)
    level_B = (sum_B[:-1] - capped_B * most) / (size - capped_B)
    level = torch.cat((level_B, level_B.new_zeros(1))).amax()
    return (weight_B.double() + level).clamp_max(most).to(weight_B.dtype)


def cap_times(times_M: Tensor, share_M: Tensor, most: float) -> Tensor:
    """`cap` in the mean over domains: min(most, times_j + level), its mean over shares being 1."""
    share_M = share_M / share_M.sum()
    low, high = torch.zeros_like(share_M[0]), torch.full_like(share_M[0], most)
    for _ in range(60):
        level = (low + high) / 2
        short = (share_M * (times_M + level).clamp(max=most)).sum() < 1
        low, high = torch.where(short, level, low), torch.where(short, high, level)
    return (times_M + high).clamp(max=most)


def floor_weights(weight_M: Tensor, floor: float, present_M: Tensor) -> Tensor:
    """Domain weights mixed with equal ones until each present domain has at least `floor`.

    w'_j = floor + (1 - floor m') w_j over the m' present domains; floor m' <= 1.
    """
    mixed_M = floor + (1 - floor * present_M.sum()) * weight_M
    return torch.where(present_M, mixed_M, 0.0)


def within_unit(weight_B: Tensor, norm_B: Tensor) -> Tensor:
    """Each sample counts by the direction of its gradient: c_i ~ weight_i / r_i, summing to 1.

    r_i is the gradient norm, at least a tenth of the batch's median. Norms without a positive
    finite median or total leave the weights as they were.
    """
    sorted_B = norm_B.double().sort().values
    size = len(sorted_B)
    least = NORM_FLOOR * (sorted_B[(size - 1) // 2] + sorted_B[size // 2]) / 2
    count_B = weight_B.double() / torch.maximum(norm_B.double(), least)
    total = count_B.sum()
    usable = (least > 0) & torch.isfinite(total) & (total > 0)
    return torch.where(usable, (count_B / total).to(weight_B.dtype), weight_B)
