"""Triton: domain weights to sample weights in one program; the twin is `share_out`.

Shapes: B samples, M domains; PB and PM are powers of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import launch, power_of_two
from dograph.types import Domains


def share_out_by_kernel(
    domains: Domains, weight_M: Tensor, finite: Tensor, floor: float | None
) -> tuple[Tensor, Tensor]:
    """Sample weights in the dtype of `weight_M`, and whether all are finite."""
    size, num_domains = len(domains.label_B), len(weight_M)
    weight_B = torch.empty(size, dtype=weight_M.dtype, device=weight_M.device)
    all_finite = torch.empty_like(finite)
    launch(
        _share_out,
        (1,),
        *(domains.label_B.contiguous(), domains.share_M.contiguous(), weight_M.contiguous()),
        *(finite.view(torch.uint8), weight_B, all_finite.view(torch.uint8), size),
        M=num_domains,
        ROOM=-1.0 if floor is None else 1 / floor - 1,
        PB=power_of_two(size, 16),
        PM=power_of_two(num_domains, 2),
        warps=4,
    )
    return weight_B, all_finite


@triton.jit
def _share_out(
    label,
    share,
    weight,
    finite,
    result,
    all_finite,
    B,
    M: constexpr,
    ROOM: constexpr,
    PB: constexpr,
    PM: constexpr,
):
    sample = tl.arange(0, PB)
    inside = sample < B
    domain = tl.arange(0, PM)
    equal = tl.full((), 1.0, tl.float64) / B
    label_B = tl.load(label + sample, mask=inside, other=0)
    share_B = tl.load(share + label_B).to(tl.float64)
    weight_B = tl.load(weight + label_B).to(tl.float64)
    present_B = inside & (share_B > 0)
    weight_B = tl.where(present_B, weight_B / tl.where(present_B, share_B, 1.0), 0.0)
    total = tl.sum(weight_B, axis=0)
    known = (total > 0) & (total < float("inf"))
    weight_B = tl.where(known, weight_B / tl.where(known, total, 1.0), equal)
    if ROOM >= 0:
        apart_B = tl.where(inside, weight_B - equal, 0.0)
        excess = tl.sum(apart_B * apart_B, axis=0) * B
        pull = tl.sqrt(ROOM / tl.where(excess > 0, excess, 1.0))
        pull = tl.where((excess > 0) & (pull < 1), pull, 1.0)
        weight_B = equal + pull * apart_B
    weight_M = tl.load(weight + domain, mask=domain < M, other=0.0).to(tl.float64)
    check = tl.sum(weight_M, axis=0) + tl.sum(tl.where(inside, weight_B, 0.0), axis=0)
    whole = (tl.load(finite) != 0) & (check - check == 0)
    tl.store(result + sample, tl.where(whole, weight_B, equal), mask=inside)
    tl.store(all_finite, whole.to(tl.uint8))
