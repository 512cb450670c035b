"""Triton: the cross entropy of each token, and its gradient with a projection of it.

The twin is `F.cross_entropy`. Logits are the largest tensor of a step: the forward reads them once,
and the backward reads them once and writes their gradient once. While the gradient is in registers
it is also hashed into a few columns, so the sketch of the output layer reads no large tensor.

Shapes: N tokens, V vocabulary with its padding, q columns of a hash.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from dograph.kernels import launch, power_of_two

_BLOCK = 4096  # logits of one token that are read at once, by four warps
_ERRORS, _COLUMNS = 2048, 128  # that are written at once; columns of a block without a hash


def nll_by_kernel(logits_NV: Tensor, target_N: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The NLL of each target (0 below 0, infinite outside the vocabulary) and log normaliser."""
    nll_N = torch.empty(len(target_N), device=target_N.device)
    norm_N = torch.empty_like(nll_N)
    size = logits_NV.shape[1]
    launch(
        _nll,
        (len(target_N),),
        *(logits_NV, target_N, nll_N, norm_N, size, vocab_size),
        BLOCK=min(_BLOCK, power_of_two(size, 16)),
        warps=4,
    )
    return nll_N, norm_N


def error_by_kernel(
    logits_NV: Tensor,
    target_N: Tensor,
    norm_N: Tensor,
    grad_N: Tensor,
    vocab_size: int,
    hashing: tuple[Tensor, int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gradient grad * (softmax - onehot), and its hash with these signs and columns, if given.

    Both are in the logits' dtype; the hash is `hashed` of dograph.sketch.rules.
    """
    (num_tokens, size), error_NV = logits_NV.shape, torch.empty_like(logits_NV)
    sign_V, columns = hashing or (target_N, _COLUMNS)
    hash_Nq = logits_NV.new_empty(num_tokens if hashing else 1, columns)
    padded = power_of_two(columns, 16)
    launch(
        _error,
        (num_tokens,),
        *(logits_NV, target_N, norm_N, grad_N, error_NV, sign_V, hash_Nq),
        *(size, vocab_size, columns),
        HASHES=hashing is not None,
        ROWS=max(_ERRORS // padded, 1),
        Q=padded,
        warps=8,
    )
    return error_NV, hash_Nq if hashing else None


@triton.jit
def _nll(logits, target, nll, norm, V, vocab, BLOCK: constexpr):
    token = tl.program_id(0).to(tl.int64)
    wanted = tl.load(target + token)
    logits += token * V
    # The lowest float32: from -inf a block of masked logits would make NaN.
    largest = tl.full((), -3.4028234663852886e38, tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, vocab, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(logits + place, mask=place < vocab, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(value, axis=0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(value - higher), axis=0)
        largest = higher
    log_total = largest + tl.log(total)
    known = (wanted >= 0) & (wanted < vocab)
    own = tl.load(logits + wanted, mask=known, other=-float("inf")).to(tl.float32)
    tl.store(norm + token, log_total)
    tl.store(nll + token, tl.where(wanted < 0, 0.0, log_total - own))


@triton.jit
def _error(
    logits,
    target,
    norm,
    grad,
    error,
    sign,
    result,
    V,
    vocab,
    width,
    HASHES: constexpr,
    ROWS: constexpr,
    Q: constexpr,
):
    """One token; the vocabulary as rows of `width` columns, which a hash adds up."""
    token = tl.program_id(0).to(tl.int64)
    wanted = tl.load(target + token)
    log_total = tl.load(norm + token)
    scale = tl.where(wanted < 0, 0.0, tl.load(grad + token))
    column = tl.arange(0, Q)
    within = tl.arange(0, ROWS)[:, None] * width + column[None, :]
    total = tl.zeros((ROWS, Q), tl.float32)
    for start in range(0, V, ROWS * width):
        place = start + within
        here = (place < V) & (column < width)[None, :]
        value = tl.load(logits + token * V + place, mask=here, other=-float("inf"))
        share = tl.where(place < vocab, tl.exp(value.to(tl.float32) - log_total), 0.0)
        share = tl.where(place == wanted, share - 1.0, share)
        narrow = (share * scale).to(error.dtype.element_ty)
        tl.store(error + token * V + place, narrow, mask=here)
        if HASHES:
            total += narrow.to(tl.float32) * tl.load(sign + place, mask=here, other=0)
    if HASHES:
        sums = tl.sum(total, axis=0).to(result.dtype.element_ty)
        tl.store(result + token * width + column, sums, mask=column < width)


class CrossEntropy(torch.autograd.Function):
    """logits_NV, target_N -> nll_N; the backward also gives `rule` the hash of its gradient."""

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
        rule = ctx.rule
        hashing = rule.output_hash if rule is not None and rule.listening else None
        known = (norm_N, grad_N.contiguous(), ctx.vocab_size, hashing)
        error_NV, hash_Nq = error_by_kernel(logits_NV, target_N, *known)
        if hash_Nq is not None:
            rule.product = (error_NV.data_ptr(), hash_Nq)
        return error_NV, None, None, None
