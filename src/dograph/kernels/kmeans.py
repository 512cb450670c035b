"""Triton: the domains of a batch by K-means in float64: its Gram, all restarts, its statistics.

The twins are `_in_order_of_value`, `_space` and `_restarted` of dograph.domains.kmeans, which have
the formulas, then the end of `kmeans` and `partition`. Float64 is fast enough without tensor cores:
the Gram is a sum of outer products, split along K over the whole GPU. A restart is one program; it
stops when its labels no longer change: further iterations would not change them either.

Shapes: B samples, K sketch, N parts of K, X numbers in a row, M domains, R restarts, L trial seeds;
P, PB, PM, PL and PR are powers of two.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dograph.kernels import launch, power_of_two
from dograph.types import Domains

_PARTS = 128  # about as many programs as a GPU has multiprocessors


@dataclass(frozen=True, slots=True)
class Sorted:
    """A batch sorted by value, in float64; rows that are not finite are 0."""

    order_B: Tensor  # int64: the sample at each position
    raw_BB: Tensor  # Gram of the sketches
    gram_BB: Tensor  # Gram in the space that is clustered
    weight_B: Tensor
    finite_B: Tensor  # 1 or 0
    rounding_B: Tensor


def sorted_space(point_BK: Tensor, normalise: bool, same: float, ratio: float) -> Sorted:
    """The input of K-means and of the domains' statistics, in three operations."""
    point_BK = point_BK.contiguous()
    size, width = point_BK.shape
    chunk = max(triton.cdiv(width, _PARTS), 8)
    part_NX = torch.empty(
        triton.cdiv(width, chunk), (size + 1) * size, dtype=torch.float64, device=point_BK.device
    )
    side = power_of_two(size, 16)
    launch(
        _outer_products,
        len(part_NX),
        *(point_BK, part_NX, size, width),
        CHUNK=chunk,
        RATIO=ratio,
        PB=side,
        warps=_warps(side),
    )
    result_X = part_NX.new_empty(2 * size * size + 3 * size)
    order_B = torch.empty(size, dtype=torch.int64, device=point_BK.device)
    launch(
        _space,
        1,
        *(part_NX.sum(dim=0), result_X, order_B, size),
        SPHERICAL=normalise,
        SAME=same,
        PB=side,
        ROWS=min(side, 32),
        warps=_warps(side),
    )
    square = size * size
    raw_X, gram_X, row_X = result_X.split((square, square, 3 * size))
    weight_B, finite_B, rounding_B = row_X.view(3, size)
    raw_BB, gram_BB = raw_X.view(size, size), gram_X.view(size, size)
    return Sorted(order_B, raw_BB, gram_BB, weight_B, finite_B, rounding_B)


def _warps(side: int) -> int:
    return 16 if side > 64 else 8 if side > 32 else 4


@triton.jit
def _outer_products(point, part, B, K, CHUNK: tl.constexpr, RATIO: tl.constexpr, PB: tl.constexpr):
    """One part of K: sum_k x_k x_k', and below it the key sum_k x_k v_k."""
    program = tl.program_id(0)
    sample = tl.arange(0, PB)
    row_P1, col_1P = sample[:, None], sample[None, :]
    gram_PP = tl.zeros((PB, PB), tl.float64)
    key_1P = tl.zeros((1, PB), tl.float64)
    for step in range(CHUNK):
        place = program * CHUNK + step
        limit = tl.where(place < K, B, 0)
        down_P1 = tl.load(point + row_P1 * K + place, mask=row_P1 < limit, other=0.0)
        across_1P = tl.load(point + col_1P * K + place, mask=col_1P < limit, other=0.0)
        wide_1P = across_1P.to(tl.float64)
        gram_PP += down_P1.to(tl.float64) * wide_1P
        turn = (place + 1).to(tl.float64) * RATIO
        key_1P += wide_1P * (turn - tl.floor(turn) - 0.5)
    part += program.to(tl.int64) * (B + 1) * B
    tl.store(part + row_P1 * B + col_1P, gram_PP, mask=(row_P1 < B) & (col_1P < B))
    tl.store(part + B * B + col_1P, key_1P, mask=col_1P < B)


@triton.jit
def _read(total, sample, B):
    """Squares, which samples are finite, and their sort keys: non-finite ones come last."""
    square = tl.load(total + sample * (B + 1), mask=sample < B, other=0.0)
    key = tl.load(total + B * B + sample, mask=sample < B, other=0.0)
    finite = (sample < B) & (square < float("inf"))
    return tl.where(finite, square, 0.0), finite, tl.where(finite, key, float("inf"))


@triton.jit
def _rank(key, sample, all_key, all_sample, B):
    """The number of samples with a lower key, or with the same key and a lower index."""
    before = (all_key[None, :] < key[:, None]) | (
        (all_key[None, :] == key[:, None]) & (all_sample[None, :] < sample[:, None])
    )
    return tl.sum((before & (all_sample < B)[None, :]).to(tl.int32), axis=1)


@triton.jit
def _tile(total, row, row_finite, col, col_finite, B):
    both = row_finite[:, None] & col_finite[None, :]
    return tl.load(total + row[:, None] * B + col[None, :], mask=both, other=0.0)


@triton.jit
def _space(
    total,
    result,
    order,
    B,
    SPHERICAL: tl.constexpr,
    SAME: tl.constexpr,
    PB: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Reads the samples in batch order, some rows at a time, and writes them in sorted order."""
    col = tl.arange(0, PB)
    square, finite, key = _read(total, col, B)
    rank = _rank(key, col, key, col, B)
    count = tl.sum(finite.to(tl.float64), axis=0)
    count = tl.where(count > 1, count, 1.0)
    mean = tl.zeros((PB,), tl.float64)
    for first in range(0, PB, ROWS):
        row = first + tl.arange(0, ROWS)
        _square, row_finite, _key = _read(total, row, B)
        mean += tl.sum(_tile(total, row, row_finite, col, finite, B), axis=0)
    mean = mean / count
    grand = tl.sum(mean, axis=0) / count
    norm = tl.sqrt(tl.where(square > 0, square, 1.0))
    for first in range(0, PB, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = row < B
        row_square, row_finite, row_key = _read(total, row, B)
        row_rank = _rank(row_key, row, key, col, B)
        raw = _tile(total, row, row_finite, col, finite, B)
        if SPHERICAL:
            shapes = row_finite & (row_square > 0)
            gram = raw / (tl.sqrt(tl.where(shapes, row_square, 1.0))[:, None] * norm[None, :])
            reference = shapes.to(tl.float64)
        else:
            shapes = row_finite
            both = row_finite[:, None] & finite[None, :]
            row_mean = tl.sum(raw, axis=1) / count
            gram = tl.where(both, (raw - row_mean[:, None]) - (mean - grand)[None, :], 0.0)
            reference = row_square
        place = row_rank[:, None] * B + rank[None, :]
        whole = inside[:, None] & (col < B)[None, :]
        tl.store(result + place, raw, mask=whole)
        tl.store(result + B * B + place, gram, mask=whole)
        rows = result + 2 * B * B + row_rank
        tl.store(rows, shapes.to(tl.float64), mask=inside)
        tl.store(rows + B, row_finite.to(tl.float64), mask=inside)
        tl.store(rows + 2 * B, SAME * reference, mask=inside)
        tl.store(order + row_rank, row.to(tl.int64), mask=inside)


def restarts_by_kernel(
    gram_BB: Tensor,
    weight_B: Tensor,
    rounding_B: Tensor,
    race_MRLB: Tensor,
    *,
    spherical: bool,
    iterations: int,
    refill_every: int,
) -> tuple[Tensor, Tensor]:
    """label_RB (int64) and inertia_R of every restart; weights are 0 or 1."""
    num_domains, restarts, num_trials, size = race_MRLB.shape
    label_RB = torch.empty(restarts, size, dtype=torch.int64, device=gram_BB.device)
    inertia_R = gram_BB.new_empty(restarts)
    side = power_of_two(size, 32)  # Triton 3.6 fails on some kernels of 16 rows
    launch(
        _restart,
        restarts,
        *(gram_BB, weight_B, rounding_B, race_MRLB, label_RB, inertia_R, size),
        M=num_domains,
        L=num_trials,
        ITERATIONS=iterations,
        REFILL_EVERY=refill_every,
        SPHERICAL=spherical,
        PB=side,
        PM=power_of_two(num_domains, 2),
        PL=power_of_two(num_trials, 2),
        warps=_warps(side),
    )
    return label_RB, inertia_R


@triton.jit
def _restart(
    gram,
    weight,
    rounding,
    race,
    label,
    inertia,
    B,
    M: tl.constexpr,
    L: tl.constexpr,
    ITERATIONS: tl.constexpr,
    REFILL_EVERY: tl.constexpr,
    SPHERICAL: tl.constexpr,
    PB: tl.constexpr,
    PM: tl.constexpr,
    PL: tl.constexpr,
):
    restart = tl.program_id(0)
    sample = tl.arange(0, PB)
    inside = sample < B
    shapes = tl.load(weight + sample, mask=inside, other=0.0) > 0
    rounding_B = tl.load(rounding + sample, mask=inside, other=0.0)
    square_B = tl.load(gram + sample * (B + 1), mask=inside, other=0.0)
    race += restart * L * B
    label_B = _plus_plus(gram, rounding, race, square_B, rounding_B, shapes, B, M, L, PB, PL)
    gram_BB = tl.load(
        gram + sample[:, None] * B + sample[None, :],
        mask=inside[:, None] & inside[None, :],
        other=0.0,
    )
    moving = tl.full((), 1, tl.int32)
    for step in range(ITERATIONS):
        if moving != 0:
            nearest_B, score_B, _own_B, num_empty = _compare(
                gram_BB, shapes, label_B, M, SPHERICAL, PB
            )
            changed = tl.sum((inside & (nearest_B != label_B)).to(tl.int32), axis=0)
            moving = tl.where((changed == 0) & (num_empty == 0), 0, 1).to(tl.int32)
            label_B = nearest_B
            if (ITERATIONS - 1 - step) % REFILL_EVERY == 0:
                own_B = _distances(score_B, square_B, rounding_B, shapes)
                label_B = _fill_empty(label_B, own_B, shapes, M, PB, PM)
    _nearest_B, _best_B, last_B, _empty = _compare(gram_BB, shapes, label_B, M, SPHERICAL, PB)
    own_B = _distances(last_B, square_B, rounding_B, shapes)
    tl.store(inertia + restart, tl.sum(own_B, axis=0))
    tl.store(label + restart * B + sample, label_B.to(tl.int64), mask=inside)


@triton.jit
def _plus_plus(
    gram,
    rounding,
    race,
    square_B,
    rounding_B,
    shapes,
    B,
    M: tl.constexpr,
    L: tl.constexpr,
    PB: tl.constexpr,
    PL: tl.constexpr,
):
    infinity = float("inf")
    sample = tl.arange(0, PB)
    trial = tl.arange(0, PL)
    inside_LB = (trial < L)[:, None] & (sample < B)[None, :]
    odds_B = shapes.to(tl.float64)
    nearest_B = tl.full((PB,), infinity, tl.float64)
    label_B = tl.zeros((PB,), tl.int32)
    for domain in range(M):
        place_LB = (domain * tl.num_programs(0) * L + trial)[:, None] * B + sample[None, :]
        race_LB = tl.load(race + place_LB, mask=inside_LB, other=1.0)
        safe_B = tl.where(odds_B > 0, odds_B, 1.0)
        race_LB = tl.where((odds_B > 0)[None, :], race_LB / safe_B[None, :], infinity)
        drawn_L = tl.argmin(race_LB, axis=1)
        row_LB = tl.load(gram + drawn_L[:, None] * B + sample[None, :], mask=inside_LB, other=0.0)
        both_LB = tl.load(gram + drawn_L * (B + 1))[:, None] + square_B[None, :]
        distance_LB = both_LB - 2 * row_LB
        least_LB = tl.load(rounding + drawn_L)[:, None] + rounding_B[None, :]
        distance_LB = tl.where(distance_LB <= least_LB, 0.0, distance_LB)
        left_LB = tl.where(distance_LB < nearest_B[None, :], distance_LB, nearest_B[None, :])
        left_L = tl.sum(tl.where(shapes[None, :], left_LB, 0.0), axis=1)
        chosen = tl.argmin(tl.where(trial < L, left_L, infinity), axis=0)
        distance_B = tl.sum(tl.where((trial == chosen)[:, None], distance_LB, 0.0), axis=0)
        closer_B = distance_B < nearest_B
        label_B = tl.where(closer_B, domain, label_B)
        nearest_B = tl.where(closer_B, distance_B, nearest_B)
        odds_B = tl.where(shapes, nearest_B, 0.0)
    return label_B


@triton.jit
def _compare(gram_BB, shapes, label_B, M: tl.constexpr, SPHERICAL: tl.constexpr, PB: tl.constexpr):
    """The nearest centroid, its score, the score of the sample's own, the number of empty ones."""
    infinity = float("inf")
    member_B = tl.where(shapes, label_B, -1)
    member_B1 = member_B[:, None]
    nearest_B = tl.zeros((PB,), tl.int32)
    best_B = tl.full((PB,), infinity, tl.float64)
    own_B = tl.zeros((PB,), tl.float64)
    num_empty = tl.full((), 0, tl.int32)
    for domain in range(M):
        count = tl.sum((member_B == domain).to(tl.int32), axis=0)
        share = 1.0 / tl.where(count > 1, count, 1).to(tl.float64)
        cross_B = tl.sum(tl.where(member_B1 == domain, gram_BB, 0.0), axis=0) * share
        square = tl.sum(tl.where(member_B == domain, cross_B, 0.0), axis=0) * share
        if SPHERICAL:
            norm = tl.sqrt(tl.where(square > 0, square, 0.0))
            score_B = 1 - 2 * cross_B / tl.where(norm == 0, 1.0, norm)
        else:
            score_B = square - 2 * cross_B
        score_B = tl.where(count == 0, infinity, score_B)
        num_empty += (count == 0).to(tl.int32)
        nearest_B = tl.where(score_B < best_B, domain, nearest_B)
        best_B = tl.where(score_B < best_B, score_B, best_B)
        own_B = tl.where(label_B == domain, score_B, own_B)
    return nearest_B, best_B, own_B, num_empty


@triton.jit
def _distances(score_B, square_B, rounding_B, shapes):
    own_B = score_B + square_B
    return tl.where(shapes & (own_B > rounding_B), own_B, 0.0)


@triton.jit
def _fill_empty(label_B, own_B, shapes, M: tl.constexpr, PB: tl.constexpr, PM: tl.constexpr):
    """The k-th empty domain takes the k-th farthest sample, unless it lies on its centroid."""
    sample = tl.arange(0, PB)
    domain = tl.arange(0, PM)
    member_BM = (label_B[:, None] == domain[None, :]) & shapes[:, None]
    empty_M = (tl.sum(member_BM.to(tl.int32), axis=0) == 0) & (domain < M)
    num_empty = tl.sum(empty_M.to(tl.int32), axis=0)
    if num_empty > 0:
        farther = (own_B[None, :] > own_B[:, None]) | (
            (own_B[None, :] == own_B[:, None]) & (sample[None, :] < sample[:, None])
        )
        place_B = tl.sum(farther.to(tl.int32), axis=1)
        turn_M = tl.cumsum(empty_M.to(tl.int32), axis=0) - 1
        takes_BM = (place_B[:, None] == turn_M[None, :]) & empty_M[None, :]
        takes_BM = takes_BM & (own_B > 0)[:, None]
        taken_B = tl.sum(tl.where(takes_BM, domain[None, :] + 1, 0), axis=1)
        label_B = tl.where(taken_B > 0, taken_B - 1, label_B)
    return label_B


def domains_by_kernel(
    batch: Sorted, label_RB: Tensor, inertia_R: Tensor, num_domains: int, dtype: torch.dtype
) -> Domains:
    """The domains of the restart with the smallest inertia."""
    restarts, size = label_RB.shape
    label_B = torch.empty_like(batch.order_B)
    result_X = torch.empty(num_domains * (num_domains + 3) + 1, dtype=dtype, device=label_RB.device)
    variance_M = result_X.new_empty(num_domains, dtype=torch.float64)  # a fourth power
    side = power_of_two(size, 16)
    launch(
        _describe,
        1,
        *(batch.raw_BB, batch.order_B, batch.finite_B, label_RB, inertia_R),
        *(label_B, result_X, variance_M, size, restarts),
        M=num_domains,
        PB=side,
        PM=power_of_two(num_domains, 2),
        PR=power_of_two(restarts, 2),
        warps=_warps(side),
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
):
    sample = tl.arange(0, PB)
    inside = sample < B
    restart = tl.arange(0, PR)
    best = tl.argmin(tl.load(inertia + restart, mask=restart < R, other=float("inf")), axis=0)
    place_B = tl.load(order + sample, mask=inside, other=0).to(tl.int32)
    finite_B = tl.load(finite + sample, mask=inside, other=0.0) > 0
    label_B = tl.load(label + best * B + sample, mask=inside, other=0).to(tl.int32)
    label_B = _numbered(label_B, place_B, finite_B, B, M, PM)
    tl.store(result_label + place_B, label_B.to(tl.int64), mask=inside)

    whole = inside[:, None] & inside[None, :]
    raw_BB = tl.load(raw + sample[:, None] * B + sample[None, :], mask=whole, other=0.0)
    square_B = tl.load(raw + sample * (B + 1), mask=inside, other=0.0)
    mean_B = tl.sum(raw_BB, axis=0) / B
    grand = tl.sum(mean_B, axis=0) / B
    centred_BB = tl.where(whole, (raw_BB - mean_B[:, None]) - (mean_B - grand)[None, :], 0.0)
    own_B = (square_B - mean_B) - (mean_B - grand)

    member_B = tl.where(inside, label_B, -1)
    member_B1 = member_B[:, None]
    domain = tl.arange(0, PM)
    count_M = tl.sum((member_B1 == domain[None, :]).to(tl.int32), axis=0)
    share_M = 1.0 / tl.where(count_M > 1, count_M, 1).to(tl.float64)
    share_BM = tl.where(member_B1 == domain[None, :], share_M[None, :], 0.0)
    rows = result + M * M
    for j in range(M):
        member = member_B == j
        count = tl.sum(member.to(tl.int32), axis=0)
        share = 1.0 / tl.where(count > 1, count, 1).to(tl.float64)
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
