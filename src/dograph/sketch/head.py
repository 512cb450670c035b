"""A cross entropy that also returns sketches, for any trainer.

    loss_B, sketch_BK = sketched_cross_entropy(hidden_BTD, weight_VD, target_BT)

replaces the output layer and its loss. The sketch is that of the output layer's weight gradient. It
is known before any backward, and so are the weights: the backward is an ordinary one. This works
with DDP, activation checkpointing and compile, and with FSDP2 if it is called inside the forward of
the sharded module, which has the whole weight. Logits are computed for a chunk of tokens at a time
and never held together; the backward computes them again for the weight gradient.

Shapes: B samples, T tokens, D width, V vocabulary, q x p a sketch, K = q p.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dograph.config import DEFAULT_DIM
from dograph.errors import ConfigError
from dograph.sketch.projection import Bank, MatrixProjection, Projection

IGNORED = -100
_CHUNK = 1 << 25  # logits computed at once


def sketched_cross_entropy(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    target_BT: Tensor,
    projection: MatrixProjection | None = None,
    *,
    vocab_size: int | None = None,
    ignore_index: int = IGNORED,
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the sketch of its gradient with respect to `weight_VD`.

    A sample's loss is the mean NLL over its targets that are not `ignore_index` (-100 as in
    PyTorch; nanoGPT has -1); without any, loss and sketch are 0. `target_BT` is already shifted.
    Rows of the weight from `vocab_size` on are padding, left out of the softmax; a target among
    them, or outside the vocabulary, is refused. Without a `projection` (see `head_projection`) each
    call draws that of seed 0. The sketch has no gradient. A sharded weight is refused: a softmax
    needs all of it.
    """
    for name, value in (("hidden", hidden_BTD), ("weight", weight_VD), ("target", target_BT)):
        if isinstance(value, DTensor):
            raise ConfigError(
                f"{name} is a DTensor of shape {tuple(value.shape)}, placed "
                f"{tuple(value.placements)}; sketched_cross_entropy needs plain tensors. Give "
                f"{name}.full_tensor(), call it inside the forward of a module under FSDP2, which "
                "gathers its weights, or use DDP"
            )
    if hidden_BTD.shape[:2] != target_BT.shape or hidden_BTD.shape[2] != weight_VD.shape[1]:
        raise ConfigError(
            f"shapes do not match: hidden {tuple(hidden_BTD.shape)}, weight "
            f"{tuple(weight_VD.shape)}, target {tuple(target_BT.shape)}; they must be (B, T, D), "
            "(V, D), (B, T)"
        )
    if projection is None:
        projection = head_projection(weight_VD)
    vocab_size = weight_VD.shape[0] if vocab_size is None else vocab_size
    if not 1 <= vocab_size <= weight_VD.shape[0]:
        raise ConfigError(
            f"vocab_size={vocab_size} for a weight of {weight_VD.shape[0]} rows; it must be from 1 "
            "to the number of rows. Give the vocabulary without its padding, or leave it out"
        )
    ignored_BT = target_BT == ignore_index
    known_BT = target_BT.masked_fill(ignored_BT, 0)
    _require_known(known_BT, vocab_size, ignore_index)
    loss_B, sketch_Bqp = _SketchedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        *(hidden_BTD, weight_VD, known_BT, ~ignored_BT),
        *(projection.row_Rq, projection.col_Cp, vocab_size),
    )
    return loss_B, projection.slot(sketch_Bqp)


def _require_known(target_BT: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Refuse targets outside the vocabulary; on a GPU without a wait for it, as PyTorch does."""
    outside_BT = (target_BT < 0) | (target_BT >= vocab_size)
    if target_BT.device.type != "cpu" or torch.compiler.is_compiling():
        message = f"a target is neither in 0..{vocab_size - 1} nor ignore_index={ignore_index}"
        torch._assert_async(~outside_BT.any(), message)
    elif outside_BT.any():
        raise ConfigError(
            f"targets (labels) have {target_BT[outside_BT].unique().tolist()[:5]}, which are "
            f"neither in 0..{vocab_size - 1} nor ignore_index={ignore_index}; map them into the "
            "vocabulary, or give the value of targets that do not count as ignore_index (nanoGPT "
            "has -1; labels of a Trainer must have -100)"
        )


def head_projection(
    weight_VD: Tensor, projection: Projection | None = None, *, step: int = 0
) -> MatrixProjection:
    """The projection of the output layer, for `sketched_cross_entropy`."""
    bank = Bank(projection or Projection(dim=DEFAULT_DIM), weight_VD.dtype, weight_VD.device)
    bank.add_matrix("head", (weight_VD.shape[0], weight_VD.shape[1]), wide=True)
    bank.draw(step)
    return bank.matrix("head")


class _SketchedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_BTD: Tensor,
        weight_VD: Tensor,
        target_BT: Tensor,
        valid_BT: Tensor,
        row_Vq: Tensor,
        col_Dp: Tensor,
        vocab_size: int,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden_BTD.dtype, torch.float32)
        valid_BT = valid_BT.to(wide)
        share_BT = valid_BT / valid_BT.sum(dim=1, keepdim=True).clamp_min(1)
        loss_B = hidden_BTD.new_zeros(len(hidden_BTD), dtype=wide)
        sketch_Bqp = loss_B.new_zeros(len(hidden_BTD), row_Vq.shape[1], col_Dp.shape[1])
        grads, norms = [], []
        weight_VD = weight_VD.to(hidden_BTD.dtype)
        for part in _parts(hidden_BTD, weight_VD):
            hidden, target, share = hidden_BTD[:, part], target_BT[:, part], share_BT[:, part]
            error, norm, nll = _error(hidden, weight_VD, target, vocab_size, None)
            error = (error * share.unsqueeze(-1)).to(hidden.dtype)
            loss_B = loss_B + (nll * share).sum(dim=1)
            error_Btq = (error @ row_Vq.to(error.dtype)).to(wide)
            hidden_Btp = (hidden @ col_Dp.to(hidden.dtype)).to(wide)
            sketch_Bqp = sketch_Bqp + torch.bmm(error_Btq.mT, hidden_Btp)
            grads.append(error @ weight_VD)
            norms.append(norm)
        ctx.save_for_backward(
            hidden_BTD, weight_VD, target_BT, share_BT, torch.cat(norms, 1), torch.cat(grads, 1)
        )
        ctx.vocab_size = vocab_size
        ctx.mark_non_differentiable(sketch_Bqp)
        return loss_B, sketch_Bqp

    @staticmethod
    def backward(ctx: Any, grad_B: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_BTD, weight_VD, target_BT, share_BT, norm_BT, grad_BTD = ctx.saved_tensors
        grad_hidden = grad_BTD * grad_B[:, None, None].to(grad_BTD.dtype)
        grad_weight = torch.zeros_like(weight_VD, dtype=share_BT.dtype)
        scale_BT = share_BT * grad_B[:, None].to(share_BT.dtype)
        for part in _parts(hidden_BTD, weight_VD):
            hidden, target = hidden_BTD[:, part], target_BT[:, part]
            error, _, _ = _error(hidden, weight_VD, target, ctx.vocab_size, norm_BT[:, part])
            error = (error * scale_BT[:, part].unsqueeze(-1)).to(hidden.dtype)
            grad_weight += error.flatten(0, 1).T @ hidden.flatten(0, 1)
        return grad_hidden, grad_weight, None, None, None, None, None


def _parts(hidden_BTD: Tensor, weight_VD: Tensor) -> list[slice]:
    """Slices of tokens whose logits fit into a chunk."""
    num_samples, num_tokens, _ = hidden_BTD.shape
    length = max(1, _CHUNK // (num_samples * weight_VD.shape[0]))
    return [slice(start, min(start + length, num_tokens)) for start in range(0, num_tokens, length)]


def _error(
    hidden_BtD: Tensor, weight_VD: Tensor, target_Bt: Tensor, vocab: int, norm_Bt: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax - onehot, the log-normaliser and the NLL of each token."""
    logits_BtV = hidden_BtD @ weight_VD.T
    logits_BtV = logits_BtV.to(torch.promote_types(logits_BtV.dtype, torch.float32))
    if vocab < weight_VD.shape[0]:
        padding_V = torch.arange(weight_VD.shape[0], device=weight_VD.device) >= vocab
        logits_BtV = logits_BtV.masked_fill(padding_V, -torch.inf)
    if norm_Bt is None:
        norm_Bt = torch.logsumexp(logits_BtV, dim=-1)
    target_Bt1 = target_Bt.unsqueeze(-1)
    nll_Bt = norm_Bt - logits_BtV.gather(-1, target_Bt1).squeeze(-1)
    error_BtV = (logits_BtV - norm_Bt.unsqueeze(-1)).exp()
    one = error_BtV.new_full((), -1.0).expand(target_Bt1.shape)
    return error_BtV.scatter_add(-1, target_Bt1, one), norm_Bt, nll_Bt
