"""Triton: K-means with one program per restart, in float64.

The twin is `_restarted` of dograph.domains.kmeans, which has the formulas. A restart stops when
its labels no longer change: further iterations would not change them either.

Shapes: B samples, M domains, R restarts, L trial seeds; PB, PM, PL are powers of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dograph.kernels import Space, launch, power_of_two


def restarts_by_kernel(
    space: Space, race_MRLB: Tensor, iterations: int, refill_every: int
) -> tuple[Tensor, Tensor]:
    """label_RB (int64) and inertia_R of every restart; weights are 0 or 1."""
    num_domains, restarts, num_trials, size = race_MRLB.shape
    label_RB = torch.empty(restarts, size, dtype=torch.int64, device=race_MRLB.device)
    inertia_R = space.gram_BB.new_empty(restarts)
    side = power_of_two(size, 32)  # Triton 3.6 fails on some kernels of 16 rows
    launch(
        _restart,
        (restarts,),
        *(space.gram_BB, space.weight_B, space.rounding_B, race_MRLB, label_RB, inertia_R, size),
        M=num_domains,
        L=num_trials,
        ITERATIONS=iterations,
        REFILL_EVERY=refill_every,
        SPHERICAL=space.spherical,
        PB=side,
        PM=power_of_two(num_domains, 2),
        PL=power_of_two(num_trials, 2),
        warps=16 if side > 64 else 8 if side > 32 else 4,
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
