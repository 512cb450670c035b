"""Triton: the Gram of a batch in float64, and the space that K-means works in.

The twin is `_in_order_of_value` and `_space` of dograph.domains.kmeans. Float64 is fast enough
without tensor cores: the Gram is a sum of outer products, split along K over the whole GPU.

Shapes: B samples, K sketch, N parts of K, X numbers in a row; P and PB are powers of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import Sorted, Space, launch, power_of_two, warps_for

_PARTS = 128  # about as many programs as a GPU has multiprocessors


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
        (len(part_NX),),
        *(point_BK, part_NX, size, width),
        CHUNK=chunk,
        RATIO=ratio,
        PB=side,
        warps=warps_for(side),
    )
    result_X = part_NX.new_empty(2 * size * size + 3 * size)
    order_B = torch.empty(size, dtype=torch.int64, device=point_BK.device)
    launch(
        _space,
        (1,),
        *(part_NX.sum(dim=0), result_X, order_B, size),
        SPHERICAL=normalise,
        SAME=same,
        PB=side,
        ROWS=min(side, 32),
        warps=warps_for(side),
    )
    square = size * size
    raw_X, gram_X, row_X = result_X.split((square, square, 3 * size))
    weight_B, finite_B, rounding_B = row_X.view(3, size)
    space = Space(gram_X.view(size, size), weight_B, rounding_B, normalise)
    return Sorted(order_B, raw_X.view(size, size), finite_B, space)


@triton.jit
def _outer_products(point, part, B, K, CHUNK: constexpr, RATIO: constexpr, PB: constexpr):
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
    total, result, order, B, SPHERICAL: constexpr, SAME: constexpr, PB: constexpr, ROWS: constexpr
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
