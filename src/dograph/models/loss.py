"""Tokens in, one loss a sample out: the module that is trained, compiled and wrapped.

Shapes: B samples, T tokens, V (padded) vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


class PerSampleLoss(nn.Module):
    """A causal LM seen as token_BT -> loss_B, the mean NLL in nats of each sample's own tokens.

    A sample of T tokens has T - 1 predictions. `vocab_size` is the true vocabulary; logits of the
    padding behind it never reach the softmax.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        super().__init__()
        self.model = model
        self.vocab_size = vocab_size

    def forward(self, token_BT: Tensor) -> Tensor:
        logits_BTV = self.model(input_ids=token_BT, use_cache=False).logits.float()
        if logits_BTV.shape[-1] > self.vocab_size:
            logits_BTV[..., self.vocab_size :] = -torch.inf
        # The targets are shifted, not the logits: slicing those would copy the largest tensor.
        target_BT = F.pad(token_BT[:, 1:], (0, 1), value=IGNORED)
        nll_N = F.cross_entropy(
            logits_BTV.flatten(0, 1), target_BT.flatten(), reduction="none", ignore_index=IGNORED
        )
        return nll_N.view_as(target_BT).sum(dim=1) / (token_BT.shape[1] - 1)
