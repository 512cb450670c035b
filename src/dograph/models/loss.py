"""Tokens in, one loss a sample out: the module that is trained, compiled and wrapped.

Shapes: B samples, T tokens, V (padded) vocabulary, K sketch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.sketch.head import IGNORED, sketched_cross_entropy
from dograph.sketch.projection import MatrixProjection

# What some models do between the output layer and the loss; a sketch of that layer would miss it.
_AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PerSampleLoss(nn.Module):
    """A causal LM seen as token_BT -> loss_B, the mean NLL in nats of each sample's own tokens.

    A sample of T tokens has T - 1 predictions. `vocab_size` is the true vocabulary; logits of the
    padding behind it never reach the softmax. With `head_projection` set, the output is
    (loss_B, sketch_BK), the sketch being that of the output layer (mode `head`).
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        super().__init__()
        self.model = model
        self.vocab_size = vocab_size
        self.head_projection: MatrixProjection | None = None

    def forward(self, token_BT: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        # The targets are shifted, not the logits: slicing those would copy the largest tensor.
        target_BT = F.pad(token_BT[:, 1:], (0, 1), value=IGNORED)
        if self.head_projection is not None and self.training:
            hidden_BTD = self.model.base_model(token_BT, use_cache=False).last_hidden_state
            return sketched_cross_entropy(
                hidden_BTD,
                self.model.get_output_embeddings().weight,
                target_BT,
                self.head_projection,
                vocab_size=self.vocab_size,
            )
        logits_BTV = self.model(input_ids=token_BT, use_cache=False).logits
        ours = logits_BTV.dtype != torch.float32  # then .float() makes a copy, free to write to
        logits_BTV = logits_BTV.float()
        if logits_BTV.shape[-1] > self.vocab_size:
            padding_V = torch.arange(logits_BTV.shape[-1], device=logits_BTV.device)
            fill = logits_BTV.masked_fill_ if ours else logits_BTV.masked_fill
            logits_BTV = fill(padding_V >= self.vocab_size, -torch.inf)
        nll_N = F.cross_entropy(
            logits_BTV.flatten(0, 1), target_BT.flatten(), reduction="none", ignore_index=IGNORED
        )
        return nll_N.view_as(target_BT).sum(dim=1) / (token_BT.shape[1] - 1)

    def require_plain_head(self) -> None:
        """Refuse a model whose loss is not a cross entropy of its output layer alone."""
        head, config = self.model.get_output_embeddings(), self.model.config
        strange = [n for n in _AFTER_THE_HEAD if getattr(config, n, None) not in (None, 1, 1.0)]
        if strange or getattr(head, "bias", None) is not None:
            raise ConfigError(
                f"{type(self.model).__name__} does more after its output layer than a softmax "
                f"({strange or 'a bias'}), so mode head cannot sketch it; use mode twopass"
            )
