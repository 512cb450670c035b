"""The module that is trained: tokens in, one loss per sample out.

Shapes: B samples, T tokens, D width, V (padded) vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.kernels import usable
from dograph.sketch.cover import blocks_of
from dograph.sketch.gradients import HALF, undisturbed
from dograph.sketch.head import IGNORED
from dograph.sketch.rules import replaced_forward, tapped_rule


class PerSampleLoss(nn.Module):
    """A causal LM as token_BT -> loss_B, the mean NLL in nats of each sample's tokens.

    A sample of T tokens has T - 1 predictions. `vocab_size` is the vocabulary without padding;
    logits of the padding are masked before the softmax.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        super().__init__()
        self.model = model
        self.vocab_size = vocab_size
        self.has_plain_head = logits_are_of_the_head(model)
        head = model.get_output_embeddings() if self.has_plain_head else nn.Identity()
        self.head = HeadLoss(head, vocab_size)

    def forward(self, token_BT: Tensor, per_token: bool = False) -> Tensor:
        """loss_B; with `per_token` the NLL of each prediction: nll_BT, 0 at the last token."""
        # Targets are shifted, not logits: slicing logits would copy the largest tensor.
        target_BT = F.pad(token_BT[:, 1:], (0, 1), value=IGNORED)
        if self.has_plain_head:
            last_BT = self.model.base_model(input_ids=token_BT, use_cache=False).last_hidden_state
        else:
            last_BT = self.model(input_ids=token_BT, use_cache=False).logits
        loss: Tensor = self.head(last_BT, target_BT, per_token=per_token)
        return loss

    def require_plain_head(self) -> None:
        """Refuse a model whose loss is not a cross entropy of its output layer alone."""
        if not self.has_plain_head:
            raise ConfigError(
                f"{type(self.model).__name__}: its logits are not the output of a linear layer on "
                "its last hidden state (a soft cap or a factor comes after it, say), which mode "
                "head needs; use mode full or twopass"
            )


class HeadLoss(nn.Module):
    """The output layer and the cross entropy: (hidden_BTD, target_BT) -> loss_B."""

    def __init__(self, layer: nn.Module, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self._layer = (layer,)  # in a tuple, so that its parameters are not registered here too

    @property
    def layer(self) -> nn.Module:
        return self._layer[0]

    def forward(self, hidden_BTD: Tensor, target_BT: Tensor, per_token: bool = False) -> Tensor:
        logits_NV, target_N = self.layer(hidden_BTD).flatten(0, 1), target_BT.flatten()
        if usable(logits_NV) and logits_NV.dtype in (*HALF, torch.float32):
            from dograph.kernels.cross_entropy import CrossEntropy

            given = (logits_NV.contiguous(), target_N, self.vocab_size, tapped_rule(self.layer))
            nll_N: Tensor = CrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
        else:
            ours = logits_NV.dtype != torch.float32  # then .float() makes a copy that we may change
            logits_NV = logits_NV.float()
            if logits_NV.shape[-1] > self.vocab_size:
                padding_V = torch.arange(logits_NV.shape[-1], device=logits_NV.device)
                fill = logits_NV.masked_fill_ if ours else logits_NV.masked_fill
                logits_NV = fill(padding_V >= self.vocab_size, -torch.inf)
            nll_N = F.cross_entropy(logits_NV, target_N, reduction="none", ignore_index=IGNORED)
        nll_BT = nll_N.view_as(target_BT)
        return nll_BT if per_token else mean_over_predictions(nll_BT)


def mean_over_predictions(nll_BT: Tensor) -> Tensor:
    """The mean over a sample's T - 1 predictions; the value of its last token is 0."""
    return nll_BT.sum(dim=1) / (nll_BT.shape[1] - 1)


def logits_are_of_the_head(model: Any) -> bool:
    """Whether a Hugging Face model's logits are its linear output layer of the last hidden state.

    Found by running two tokens with the layer replaced: the model must give it the last hidden
    state and return its output as it is. Casts to float32 do not count, soft caps and factors do.
    On the meta device, where models are built for names and shapes, there is nothing to run.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.weight.is_meta:
        return isinstance(head, nn.Linear)
    inputs: list[Tensor] = []
    token_BT = torch.arange(2, device=head.weight.device)[None]
    logits_BTV = torch.zeros(1, 2, head.out_features, device=head.weight.device)

    def replaced(hidden_BTD: Tensor) -> Tensor:
        inputs.append(hidden_BTD)
        return logits_BTV

    try:
        with undisturbed(model), torch.no_grad():
            last = model.eval().base_model(input_ids=token_BT, use_cache=False)
            with replaced_forward(head, replaced):
                returned = model(input_ids=token_BT, use_cache=False)
    except (RuntimeError, TypeError, ValueError):
        return False  # it needs a GPU or other arguments, say; its own logits are always right
    if len(inputs) != 1 or not is_as_returned(returned, logits_BTV):
        return False
    last_BTD = getattr(last, "last_hidden_state", None)
    if last_BTD is None or last_BTD.shape != inputs[0].shape:
        return False
    # Not torch.equal: sums over experts need not have the same order twice on a GPU.
    finite_BTD = last_BTD.nan_to_num(0.0, 0.0, 0.0)  # damaged weights are told of in training
    least = 1e-3 * finite_BTD.abs().amax().item()
    return torch.allclose(inputs[0], last_BTD, rtol=0, atol=least, equal_nan=True)


def is_as_returned(outputs: Any, logits: Tensor | None) -> bool:
    """Whether a model's logits are the very tensor that its output layer returned, unchanged."""
    if logits is None:
        return False
    # The version counts changes in place; torch.compile has none.
    in_place = not torch.compiler.is_compiling() and logits._version > 0
    return getattr(outputs, "logits", None) is logits and not in_place


# torch.compile by region: every block, the norms outside them, and on a CPU the loss.
#
# All blocks have the same code, so it is compiled once: seconds instead of a minute for the whole
# model, and steps are as fast (docs/cost.md). Sketch modes that split the model do so between
# regions.


_SHAPES = 16  # graphs of one region: training and validation, with taps or without, last batches


def compile_regions(model: PerSampleLoss) -> None:
    """Compile the model's regions in place; module structure and names do not change."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SHAPES)
    for region in regions(model):
        # Static graphs: a dynamic one would be slower for the shape of training batches.
        region.forward = torch.compile(region.forward, dynamic=False)


def regions(model: PerSampleLoss) -> Iterator[nn.Module]:
    """The compiled modules: blocks, other layers with parameters, the head if it has no kernel."""
    stack, blocks = blocks_of(model.model)
    parent = model.model.get_submodule(stack.rpartition(".")[0])
    yield from blocks
    for child in parent.children():
        is_other = child is not blocks and not isinstance(child, nn.Embedding)
        if is_other and next(child.parameters(), None) is not None:
            yield child
    if not usable(next(model.parameters())):
        yield model.head
