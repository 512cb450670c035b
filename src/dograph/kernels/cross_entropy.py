"""Triton: the cross entropy of each token, and its gradient with a projection of it.

The twin is `F.cross_entropy`. Logits are the largest tensor of a step: the forward reads them once,
and the backward reads them once and writes their gradient once. While the gradient is in registers
it is also multiplied by a random matrix, so the sketch of the output layer reads no large tensor.

Shapes: N tokens, V vocabulary with its padding, q columns of the projection, C chunks of V.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dograph.kernels import launch, power_of_two

_BLOCK = 4096  # logits of one token that are read at once
_ROWS, _COLUMNS = 128, 128  # of a tile of the gradient
_WIDEST = 256  # columns of a projection that fit beside a tile
_CHUNKS = 4  # of the vocabulary, so that a batch gives every multiprocessor some tiles


def nll_by_kernel(logits_NV: Tensor, target_N: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The NLL of each target and the log of its normaliser; a target below 0 has NLL 0."""
    nll_N = torch.empty(len(target_N), device=target_N.device)
    norm_N = torch.empty_like(nll_N)
    size = logits_NV.shape[1]
    launch(
        _nll,
        (len(target_N),),
        *(logits_NV, target_N, nll_N, norm_N, size, vocab_size),
        BLOCK=min(_BLOCK, power_of_two(size, 16)),
        warps=8,
    )
    return nll_N, norm_N


def error_by_kernel(
    logits_NV: Tensor,
    target_N: Tensor,
    norm_N: Tensor,
    grad_N: Tensor,
    vocab_size: int,
    side_Vq: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Grad * (softmax - onehot), in the logits' dtype; and its product with `side_Vq`, if given."""
    (num_tokens, size), wide = logits_NV.shape, 0 if side_Vq is None else side_Vq.shape[1]
    error_NV = torch.empty_like(logits_NV)
    chunk = triton.cdiv(triton.cdiv(size, _CHUNKS), _COLUMNS) * _COLUMNS
    part_CNq = norm_N.new_empty(triton.cdiv(size, chunk), num_tokens, max(wide, 1))
    launch(
        _error,
        (triton.cdiv(num_tokens, _ROWS), len(part_CNq)),
        *(logits_NV, target_N, norm_N, grad_N, error_NV),
        *(logits_NV if side_Vq is None else side_Vq, part_CNq),
        *(num_tokens, size, vocab_size, max(wide, 1)),
        PROJECTS=side_Vq is not None,
        CHUNK=chunk,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        Q=power_of_two(wide, 16),
        warps=8,
    )
    return error_NV, None if side_Vq is None else part_CNq.sum(dim=0).to(logits_NV.dtype)


def can_project(logits_NV: Tensor, side_Vq: Tensor) -> bool:
    """Whether `error_by_kernel` takes this projection: tensor cores multiply half precision."""
    half = logits_NV.dtype in (torch.bfloat16, torch.float16)
    return half and side_Vq.dtype == logits_NV.dtype and side_Vq.shape[1] <= _WIDEST


@triton.jit
def _nll(logits, target, nll, norm, V, vocab, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    wanted = tl.load(target + token)
    logits += token * V
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, vocab, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(logits + place, mask=place < vocab, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(value, axis=0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(value - higher), axis=0)
        largest = higher
    log_total = largest + tl.log(total)
    own = tl.load(logits + tl.maximum(wanted, 0)).to(tl.float32)
    tl.store(norm + token, log_total)
    tl.store(nll + token, tl.where(wanted < 0, 0.0, log_total - own))


@triton.jit
def _error(
    logits,
    target,
    norm,
    grad,
    error,
    side,
    part,
    N,
    V,
    vocab,
    width,
    PROJECTS: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    Q: tl.constexpr,
):
    """A tile of tokens and one chunk of the vocabulary; parts of the product are added later."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = token < N
    wanted = tl.load(target + token, mask=inside, other=-1)
    log_total = tl.load(norm + token, mask=inside, other=0.0)
    scale = tl.load(grad + token, mask=inside & (wanted >= 0), other=0.0)
    row = token.to(tl.int64)[:, None] * V
    column = tl.arange(0, Q)
    product = tl.zeros((ROWS, Q), tl.float32)
    for step in range(0, CHUNK, COLUMNS):
        place = tl.program_id(1) * CHUNK + step + tl.arange(0, COLUMNS)
        here = inside[:, None] & (place < V)[None, :]
        value = tl.load(logits + row + place[None, :], mask=here, other=-float("inf"))
        share = tl.exp(value.to(tl.float32) - log_total[:, None])
        share = tl.where((place < vocab)[None, :], share, 0.0)
        share = tl.where(place[None, :] == wanted[:, None], share - 1.0, share)
        narrow = (share * scale[:, None]).to(error.dtype.element_ty)
        tl.store(error + row + place[None, :], narrow, mask=here)
        if PROJECTS:
            known = (place < V)[:, None] & (column < width)[None, :]
            sides = tl.load(side + place[:, None] * width + column[None, :], mask=known, other=0.0)
            product = tl.dot(narrow, sides, product)
    if PROJECTS:
        start = (tl.program_id(1).to(tl.int64) * N + token.to(tl.int64)) * width
        whole = inside[:, None] & (column < width)[None, :]
        tl.store(part + start[:, None] + column[None, :], product, mask=whole)


class CrossEntropy(torch.autograd.Function):
    """logits_NV, target_N -> nll_N; the backward also gives `rule` its projected gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, target_N: Tensor, vocab_size: int, rule: Any
    ) -> Tensor:
        nll_N, norm_N = nll_by_kernel(logits_NV, target_N, vocab_size)
        ctx.save_for_backward(logits_NV, target_N, norm_N)
        ctx.vocab_size, ctx.rule = vocab_size, rule
        return nll_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        logits_NV, target_N, norm_N = ctx.saved_tensors
        rule, side_Vq = ctx.rule, None
        if rule is not None and rule.listening and rule.output_side is not None:
            side_Vq = rule.output_side if can_project(logits_NV, rule.output_side) else None
        known = (norm_N, grad_N.contiguous(), ctx.vocab_size, side_Vq)
        error_NV, product_Nq = error_by_kernel(logits_NV, target_N, *known)
        if product_Nq is not None:
            rule.product = (error_NV.data_ptr(), product_Nq)
        return error_NV, None, None, None
