"""Triton: from the labels of all restarts to the domains of a batch, one program per domain.

The twin is the end of `kmeans` (best restart, numbering by size), then `partition`. A program reads
the rows of its domain's samples, which are not centred first: in float64 they need not be.

Shapes: B samples, M domains, R restarts; PB, PM, PR are powers of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import Sorted, launch, power_of_two, warps_for
from dograph.types import Domains


def domains_by_kernel(
    batch: Sorted, label_RB: Tensor, inertia_R: Tensor, num_domains: int, dtype: torch.dtype
) -> Domains:
    """The domains of the restart with the smallest inertia."""
    restarts, size = label_RB.shape
    label_B = torch.empty_like(batch.order_B)
    result_X = torch.empty(num_domains * (num_domains + 3) + 1, dtype=dtype, device=label_RB.device)
    variance_M = result_X.new_empty(num_domains, dtype=torch.float64)  # a fourth power
    side = power_of_two(size, 256)  # no blocks that were not run on a GPU
    launch(
        _describe,
        (num_domains,),
        *(batch.raw_BB, batch.order_B, batch.finite_B, label_RB, inertia_R),
        *(label_B, result_X, variance_M, size, restarts),
        M=num_domains,
        PB=side,
        PM=power_of_two(num_domains, 16),
        PR=power_of_two(restarts, 2),
        DEEP=16384 // side,
        warps=warps_for(side),
    )
    gram_X, row_X, scale_1 = result_X.split((num_domains**2, 3 * num_domains, 1))
    share_M, square_M, spread_M = row_X.view(3, num_domains)
    return Domains(
        label_B=label_B,
        share_M=share_M,
        gram_MM=gram_X.view(num_domains, num_domains),
        square_M=square_M,
        spread_M=spread_M,
        spread_variance_M=variance_M,
        scale=scale_1.view(()),
    )


@triton.jit
def _numbered(label_B, place_B, finite_B, B, M: constexpr, PM: constexpr):
    """Labels by decreasing domain size, ties by the first sample; 0 for non-finite samples."""
    domain = tl.arange(0, PM)
    member_BM = (label_B[:, None] == domain[None, :]) & finite_B[:, None]
    first_M = tl.min(tl.where(member_BM, place_B[:, None], B), axis=0)
    key_M = tl.sum(member_BM.to(tl.int32), axis=0) * (B + 1) - first_M
    ahead = (key_M[None, :] > key_M[:, None]) | (
        (key_M[None, :] == key_M[:, None]) & (domain[None, :] < domain[:, None])
    )
    rank_M = tl.sum((ahead & (domain < M)[None, :]).to(tl.int32), axis=1)
    return tl.sum(tl.where(member_BM, rank_M[None, :], 0), axis=1)


@triton.jit
def _describe(
    raw,
    order,
    finite,
    label,
    inertia,
    result_label,
    result,
    variance,
    B,
    R,
    M: constexpr,
    PB: constexpr,
    PM: constexpr,
    PR: constexpr,
    DEEP: constexpr,
):
    """One domain: its row of the Gram, its share, square and spread; and the labels of all."""
    domain, sample, restart = tl.program_id(0), tl.arange(0, PB), tl.arange(0, PR)
    inside = sample < B
    best = tl.argmin(tl.load(inertia + restart, mask=restart < R, other=float("inf")), axis=0)
    place_B = tl.load(order + sample, mask=inside, other=0).to(tl.int32)
    finite_B = tl.load(finite + sample, mask=inside, other=0.0) > 0
    label_B = tl.load(label + best * B + sample, mask=inside, other=0).to(tl.int32)
    label_B = _numbered(label_B, place_B, finite_B, B, M, PM)
    tl.store(result_label + place_B, label_B.to(tl.int64), mask=inside)
    tl.debug_barrier()  # labels that some threads stored others load

    square_B = tl.load(raw + sample * (B + 1), mask=inside, other=0.0)
    member_B = tl.where(inside, label_B, -1)
    member = member_B == domain
    count = tl.sum(member.to(tl.int32), axis=0)
    share = 1.0 / tl.where(count > 1, count, 1).to(tl.float64)
    near_B = share * _sum_of_rows(raw, order, result_label, domain, B, PB, DEEP)
    _store_means(result + domain * M, near_B, member_B, M, PB, DEEP)
    self = tl.sum(tl.where(member, near_B, 0.0), axis=0) * share
    distance_B = square_B - 2 * near_B + self
    distance_B = tl.where(member & (distance_B > 0), distance_B, 0.0)
    spread = tl.sum(distance_B, axis=0) * share
    apart_B = tl.where(member, distance_B - spread, 0.0)
    rows = result + M * M + domain
    tl.store(rows, count.to(tl.float64) / B)
    tl.store(rows + M, tl.sum(tl.where(member, square_B, 0.0), axis=0) * share)
    tl.store(rows + 2 * M, spread)
    tl.store(variance + domain, tl.sum(apart_B * apart_B, axis=0) * share)
    tl.store(result + M * M + 3 * M, tl.sum(square_B, axis=0) / B)


@triton.jit
def _sum_of_rows(raw, order, label, domain, B, PB: constexpr, DEEP: constexpr):
    """The sum of the rows of a domain, some rows at a time; only its own are read."""
    sample = tl.arange(0, PB)
    sum_B = tl.zeros((PB,), tl.float64)
    for first in range(0, B, DEEP):
        row = first + tl.arange(0, DEEP)
        place = tl.load(order + row, mask=row < B, other=0)
        member = (row < B) & (tl.load(label + place) == domain)
        whole = member[:, None] & (sample < B)[None, :]
        rows = tl.load(raw + row[:, None] * B + sample[None, :], mask=whole, other=0.0)
        sum_B += tl.sum(rows, axis=0)
    return sum_B


@triton.jit
def _store_means(result, value_B, member_B, M: constexpr, PB: constexpr, DEEP: constexpr):
    """The mean of `value_B` in each domain, for some domains at a time."""
    for first in range(0, M, DEEP):
        domain = first + tl.arange(0, DEEP)
        member_BM = member_B[:, None] == domain[None, :]
        count_M = tl.sum(member_BM.to(tl.int32), axis=0)
        sum_M = tl.sum(tl.where(member_BM, value_B[:, None], 0.0), axis=0)
        mean_M = sum_M / tl.where(count_M > 1, count_M, 1).to(tl.float64)
        tl.store(result + domain, mean_M, mask=domain < M)
