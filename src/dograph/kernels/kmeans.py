"""Triton: K-means with one program per restart, in float64; several for larger batches.

The twin is `_restarted` of dograph.domains.kmeans, which has the formulas. A restart stops when
its labels no longer change: further iterations would not change them either. The Gram is read at
every iteration, by rows sorted by domain.

Shapes: B samples, M domains, R restarts, L trial seeds; PB, PM, PL are powers of two; C columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import Space, launch, power_of_two, warps_for


def restarts_by_kernel(
    space: Space, race_MRLB: Tensor, iterations: int, refill_every: int
) -> tuple[Tensor, Tensor]:
    """label_RB (int64) and inertia_R of every restart; weights are 0 or 1."""
    num_domains, restarts, num_trials, size = race_MRLB.shape
    label_RB = torch.empty(restarts, size, dtype=torch.int64, device=race_MRLB.device)
    inertia_R = space.gram_BB.new_empty(restarts)
    # Only blocks that were run on a GPU: Triton 3.6 fails on some kernels of 16 rows.
    side = power_of_two(size, 32 if num_domains <= 32 else 256)
    # One launch for all steps, or one for each where a restart is several programs.
    parts, at_once = (1, iterations + 2) if side <= 256 and num_domains <= 32 else (8, 1)
    label_2RB = label_RB.new_empty(2, restarts, size, dtype=torch.int32)
    cross_2RMB = inertia_R.new_empty(2, restarts, num_domains, size)
    sorted_RGP = label_2RB.new_empty(restarts, parts, side)
    final_2R = label_2RB.new_full((2, restarts), iterations)
    for step in range(0, iterations + 2, at_once):
        launch(
            _steps,
            (restarts, parts),
            *(space.gram_BB, space.weight_B, space.rounding_B, race_MRLB, label_RB, inertia_R),
            *(size, label_2RB, cross_2RMB, sorted_RGP, final_2R, max(step, 1), step + at_once),
            M=num_domains,
            L=num_trials,
            ITERATIONS=iterations,
            REFILL_EVERY=refill_every,
            SPHERICAL=space.spherical,
            PB=side,
            PM=power_of_two(num_domains, 32),
            PL=power_of_two(num_trials, 2),
            C=side // parts,
            SEEDS=step == 0,
            warps=warps_for(side),
        )
    return label_RB, inertia_R


@triton.jit
def _plus_plus(
    gram,
    rounding,
    race,
    square_B,
    rounding_B,
    shapes,
    B,
    M: constexpr,
    L: constexpr,
    PB: constexpr,
    PL: constexpr,
):
    infinity = float("inf")
    sample = tl.arange(0, PB)
    trial = tl.arange(0, PL)
    race += tl.program_id(0) * L * B
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
def _distances(score_B, square_B, rounding_B, shapes):
    own_B = score_B + square_B
    return tl.where(shapes & (own_B > rounding_B), own_B, 0.0)


@triton.jit
def _fill_empty(label_B, own_B, shapes, M: constexpr, PB: constexpr, PM: constexpr):
    """The k-th empty domain takes the k-th farthest sample, unless it lies on its centroid."""
    sample = tl.arange(0, PB)
    index_M = tl.arange(0, PM)
    member_BM = (label_B[:, None] == index_M[None, :]) & shapes[:, None]
    empty_M = (tl.sum(member_BM.to(tl.int32), axis=0) == 0) & (index_M < M)
    num_empty = tl.sum(empty_M.to(tl.int32), axis=0)
    if num_empty > 0:
        filled_B, left_B = label_B, own_B
        for domain in range(M):
            if tl.sum(tl.where(index_M == domain, empty_M.to(tl.int32), 0), axis=0) > 0:
                here_B = sample == tl.argmax(left_B, axis=0)
                filled_B = tl.where(here_B & (own_B > 0), domain, filled_B)
                left_B = tl.where(here_B, -1.0, left_B)
        label_B = filled_B
    return label_B


@triton.jit(do_not_specialize=["first", "last"])
def _steps(
    gram,
    weight,
    rounding,
    race,
    result,
    inertia,
    B,
    label,
    cross,
    order,
    settled,
    first,
    last,
    M: constexpr,
    L: constexpr,
    ITERATIONS: constexpr,
    REFILL_EVERY: constexpr,
    SPHERICAL: constexpr,
    PB: constexpr,
    PM: constexpr,
    PL: constexpr,
    C: constexpr,
    SEEDS: constexpr,
):
    """Lloyd's steps on sums of the step before; one beyond the last is for the inertia."""
    restart, count, sample = tl.program_id(0), tl.num_programs(0), tl.arange(0, PB)
    inside = sample < B
    shapes = tl.load(weight + sample, mask=inside, other=0.0) > 0
    rounding_B = tl.load(rounding + sample, mask=inside, other=0.0)
    square_B = tl.load(gram + sample * (B + 1), mask=inside, other=0.0)
    order += (restart * tl.num_programs(1) + tl.program_id(1)) * PB
    if SEEDS:
        seed_B = _plus_plus(gram, rounding, race, square_B, rounding_B, shapes, B, M, L, PB, PL)
        tl.store(label + restart * B + sample, seed_B, mask=inside)
        _sums(gram, cross + restart * M * B, order, seed_B, shapes, B, M, PM, PB, C)
    for step in range(first, last):
        tl.debug_barrier()  # what some threads stored others load
        place = (step % 2) * count + restart  # alternates: other programs still read the last one
        final = tl.load(settled + ((step + 1) % 2) * count + restart)  # the step whose labels stay
        if (step <= final) | (step > ITERATIONS):
            before = (tl.minimum(step - 1, final) % 2) * count + restart
            label_B = tl.load(label + before * B + sample, mask=inside, other=0)
            nearest_B, best_B, own_B, num_empty = _compare(
                cross + before * M * B, shapes, label_B, B, M, SPHERICAL, PM, PB
            )
            changed = tl.sum((inside & (nearest_B != label_B)).to(tl.int32), axis=0)
            if step > ITERATIONS:
                own_B = _distances(own_B, square_B, rounding_B, shapes)
                tl.store(inertia + restart, tl.sum(own_B, axis=0))
                tl.store(result + restart * B + sample, label_B.to(tl.int64), mask=inside)
            elif changed + num_empty == 0:
                final = step - 1
            else:
                if (ITERATIONS - step) % REFILL_EVERY == 0:
                    own_B = _distances(best_B, square_B, rounding_B, shapes)
                    nearest_B = _fill_empty(nearest_B, own_B, shapes, M, PB, PM)
                tl.store(label + place * B + sample, nearest_B, mask=inside)
                _sums(gram, cross + place * M * B, order, nearest_B, shapes, B, M, PM, PB, C)
        tl.store(settled + place, final)


@triton.jit
def _sums(
    gram, out, order, label_B, shapes, B, M: constexpr, PM: constexpr, PB: constexpr, C: constexpr
):
    """The sum of each domain's rows, in these columns: rows by domain, 32 at a time."""
    sample = tl.arange(0, PB)
    tl.store(order + sample, tl.sort(tl.where(shapes, label_B, M) * PB + sample))
    tl.debug_barrier()  # what some threads stored others load
    col = tl.program_id(1) * C + tl.arange(0, C)
    index_M = tl.arange(0, PM)
    sum_MC = tl.zeros((PM, C), tl.float64)
    for start in range(0, B, 32):
        key = tl.load(order + start + tl.arange(0, 32))
        member, row = key // PB, key % PB
        whole = (member < M)[:, None] & (col < B)[None, :]
        tile = tl.load(gram + row[:, None] * B + col[None, :], mask=whole, other=0.0)
        past = tl.minimum(tl.max(member, axis=0) + 1, M)
        for domain in range(tl.min(member, axis=0), past):
            sum_C = tl.sum(tl.where((member == domain)[:, None], tile, 0.0), axis=0)
            sum_MC += tl.where((index_M == domain)[:, None], sum_C[None, :], 0.0)
    inside = (index_M < M)[:, None] & (col < B)[None, :]
    tl.store(out + index_M[:, None] * B + col[None, :], sum_MC, mask=inside)


@triton.jit
def _compare(
    cross, shapes, label_B, B, M: constexpr, SPHERICAL: constexpr, PM: constexpr, PB: constexpr
):
    """The nearest centroid, its score, the score of the own, the number of empty domains."""
    DEEP: constexpr = PM if PM * PB < 16384 else 16384 // PB
    infinity = float("inf")
    sample = tl.arange(0, PB)
    nearest_B = tl.zeros((PB,), tl.int32)
    best_B = tl.full((PB,), infinity, tl.float64)
    own_B = tl.zeros((PB,), tl.float64)
    num_empty = tl.full((), 0, tl.int32)
    for start in range(0, M, DEEP):
        domain = start + tl.arange(0, DEEP)
        whole = (domain < M)[:, None] & (sample < B)[None, :]
        cross_MB = tl.load(cross + domain[:, None] * B + sample[None, :], mask=whole, other=0.0)
        labelled_MB = label_B[None, :] == domain[:, None]
        member_MB = labelled_MB & shapes[None, :]
        count_M = tl.sum(member_MB.to(tl.int32), axis=1)
        share_M = 1.0 / tl.where(count_M > 1, count_M, 1).to(tl.float64)
        cross_MB = cross_MB * share_M[:, None]
        square_M = tl.sum(tl.where(member_MB, cross_MB, 0.0), axis=1) * share_M
        if SPHERICAL:
            norm_M = tl.sqrt(tl.where(square_M > 0, square_M, 0.0))
            score_MB = 1 - 2 * cross_MB / tl.where(norm_M == 0, 1.0, norm_M)[:, None]
        else:
            score_MB = square_M[:, None] - 2 * cross_MB
        score_MB = tl.where((count_M == 0)[:, None], infinity, score_MB)
        num_empty += tl.sum(((count_M == 0) & (domain < M)).to(tl.int32), axis=0)
        least_B = tl.min(score_MB, axis=0)
        nearest_B = tl.where(least_B < best_B, start + tl.argmin(score_MB, axis=0), nearest_B)
        best_B = tl.where(least_B < best_B, least_B, best_B)
        own_B += tl.sum(tl.where(labelled_MB, score_MB, 0.0), axis=0)
    return nearest_B, best_B, own_B, num_empty
