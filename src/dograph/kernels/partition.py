"""Triton: from the labels of all restarts to the domains of a batch, in one launch.

The twin is the end of `kmeans` (best restart, numbering by size), then `partition`. Up to 128
samples it is one program that holds the Gram. Above, each domain is a program that reads the rows
of its samples; distances to its mean are then of samples that are not centred first.

Shapes: B samples, M domains, R restarts; PB, PM, PR are powers of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dograph.kernels import launch, power_of_two
from dograph.kernels.gram import IN_REGISTERS, Sorted
from dograph.types import Domains


def domains_by_kernel(
    batch: Sorted, label_RB: Tensor, inertia_R: Tensor, num_domains: int, dtype: torch.dtype
) -> Domains:
    """The domains of the restart with the smallest inertia."""
    restarts, size = label_RB.shape
    label_B = torch.empty_like(batch.order_B)
    result_X = torch.empty(num_domains * (num_domains + 3) + 1, dtype=dtype, device=label_RB.device)
    variance_M = result_X.new_empty(num_domains, dtype=torch.float64)  # a fourth power
    side, is_wide = power_of_two(size, 16), size > IN_REGISTERS
    launch(
        _describe,
        (num_domains if is_wide else 1,),
        *(batch.raw_BB, batch.order_B, batch.finite_B, label_RB, inertia_R),
        *(label_B, result_X, variance_M, size, restarts),
        M=num_domains,
        PB=side,
        PM=power_of_two(num_domains, 2),
        PR=power_of_two(restarts, 2),
        DEEP=16384 // side if is_wide else 0,
        warps=16 if side > 64 else 8 if side > 32 else 4,
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
def _numbered(label_B, place_B, finite_B, B, M: tl.constexpr, PM: tl.constexpr):
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
def _best_labels(
    order,
    finite,
    label,
    inertia,
    result,
    B,
    R,
    M: tl.constexpr,
    PB: tl.constexpr,
    PM: tl.constexpr,
    PR: tl.constexpr,
):
    """The labels of the best restart, numbered, and stored in the order of the batch."""
    sample, restart = tl.arange(0, PB), tl.arange(0, PR)
    inside = sample < B
    best = tl.argmin(tl.load(inertia + restart, mask=restart < R, other=float("inf")), axis=0)
    place_B = tl.load(order + sample, mask=inside, other=0).to(tl.int32)
    finite_B = tl.load(finite + sample, mask=inside, other=0.0) > 0
    label_B = tl.load(label + best * B + sample, mask=inside, other=0).to(tl.int32)
    label_B = _numbered(label_B, place_B, finite_B, B, M, PM)
    tl.store(result + place_B, label_B.to(tl.int64), mask=inside)
    return label_B


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
    M: tl.constexpr,
    PB: tl.constexpr,
    PM: tl.constexpr,
    PR: tl.constexpr,
    DEEP: tl.constexpr,
):
    sample = tl.arange(0, PB)
    inside = sample < B
    label_B = _best_labels(order, finite, label, inertia, result_label, B, R, M, PB, PM, PR)
    square_B = tl.load(raw + sample * (B + 1), mask=inside, other=0.0)
    member_B = tl.where(inside, label_B, -1)
    member_B1 = member_B[:, None]
    domain = tl.arange(0, PM)
    if DEEP > 0:
        own_B = square_B
        tl.debug_barrier()  # labels that some threads stored others load
    else:
        whole = inside[:, None] & inside[None, :]
        raw_BB = tl.load(raw + sample[:, None] * B + sample[None, :], mask=whole, other=0.0)
        mean_B = tl.sum(raw_BB, axis=0) / B
        grand = tl.sum(mean_B, axis=0) / B
        centred_BB = tl.where(whole, (raw_BB - mean_B[:, None]) - (mean_B - grand)[None, :], 0.0)
        own_B = (square_B - mean_B) - (mean_B - grand)
        count_M = tl.sum((member_B1 == domain[None, :]).to(tl.int32), axis=0)
        share_M = 1.0 / tl.where(count_M > 1, count_M, 1).to(tl.float64)
        share_BM = tl.where(member_B1 == domain[None, :], share_M[None, :], 0.0)
    rows = result + M * M
    for j in range(tl.program_id(0), M, tl.num_programs(0)):
        member = member_B == j
        count = tl.sum(member.to(tl.int32), axis=0)
        share = 1.0 / tl.where(count > 1, count, 1).to(tl.float64)
        if DEEP > 0:
            near_B = share * _sum_of_rows(raw, order, result_label, j, B, PB, DEEP)
            _store_means(result + j * M, near_B, member_B, M, PB, DEEP)
        else:
            cross_B = tl.sum(tl.where(member_B1 == j, raw_BB, 0.0), axis=0) * share
            gram_M = tl.sum(share_BM * cross_B[:, None], axis=0)
            tl.store(result + j * M + domain, gram_M, mask=domain < M)
            near_B = tl.sum(tl.where(member_B1 == j, centred_BB, 0.0), axis=0) * share
        self = tl.sum(tl.where(member, near_B, 0.0), axis=0) * share
        distance_B = own_B - 2 * near_B + self
        distance_B = tl.where(member & (distance_B > 0), distance_B, 0.0)
        spread = tl.sum(distance_B, axis=0) * share
        apart_B = tl.where(member, distance_B - spread, 0.0)
        tl.store(rows + j, count.to(tl.float64) / B)
        tl.store(rows + M + j, tl.sum(tl.where(member, square_B, 0.0), axis=0) * share)
        tl.store(rows + 2 * M + j, spread)
        tl.store(variance + j, tl.sum(apart_B * apart_B, axis=0) * share)
    tl.store(rows + 3 * M, tl.sum(square_B, axis=0) / B)


@triton.jit
def _sum_of_rows(raw, order, label, j, B, PB: tl.constexpr, DEEP: tl.constexpr):
    """The sum of the rows of domain j, some rows at a time; only its own are read."""
    sample = tl.arange(0, PB)
    sum_B = tl.zeros((PB,), tl.float64)
    for first in range(0, B, DEEP):
        row = first + tl.arange(0, DEEP)
        place = tl.load(order + row, mask=row < B, other=0)
        member = (row < B) & (tl.load(label + place) == j)
        whole = member[:, None] & (sample < B)[None, :]
        rows = tl.load(raw + row[:, None] * B + sample[None, :], mask=whole, other=0.0)
        sum_B += tl.sum(rows, axis=0)
    return sum_B


@triton.jit
def _store_means(result, value_B, member_B, M: tl.constexpr, PB: tl.constexpr, DEEP: tl.constexpr):
    """The mean of `value_B` in each domain, for some domains at a time."""
    for first in range(0, M, DEEP):
        domain = first + tl.arange(0, DEEP)
        member_BM = member_B[:, None] == domain[None, :]
        count_M = tl.sum(member_BM.to(tl.int32), axis=0)
        sum_M = tl.sum(tl.where(member_BM, value_B[:, None], 0.0), axis=0)
        mean_M = sum_M / tl.where(count_M > 1, count_M, 1).to(tl.float64)
        tl.store(result + domain, mean_M, mask=domain < M)
