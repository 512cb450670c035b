"""Log-likelihood of continuations, in batches of like length.

Shapes: B texts of a batch, T tokens, D width, V vocabulary, N scored tokens of the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.eval.encoding import Encoder
from dograph.models.loss import PerSampleLoss


@dataclass(frozen=True, slots=True)
class Likelihood:
    """What a model makes of one continuation."""

    nats: float  # sum over its tokens of log p(token | everything before), natural logarithm
    greedy: bool  # every token was the likeliest
    truncated: bool = False  # the text was cut on its left


@dataclass(frozen=True, slots=True)
class Text:
    """A context and its continuation in tokens; the last token is only ever predicted."""

    ids: list[int]
    scored: int  # how many of the last tokens are scored
    truncated: bool  # the beginning is gone
    answer_cut: bool  # even a part of the continuation

    @classmethod
    def cut(cls, context: list[int], continuation: list[int], max_length: int) -> "Text":
        whole = context + continuation
        ids = whole[-(max_length + 1) :]
        scored = min(len(continuation), len(ids) - 1)
        return cls(ids, scored, len(ids) < len(whole), scored < len(continuation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A model, its tokenizer, and how much of a text it is shown.

    A text of more than `max_length` + 1 tokens loses its beginning, as in the harness: the last
    token is only ever predicted. An answer too long even for that is scored by its last
    `max_length` tokens (the harness stops with an assertion there).
    """

    model: PerSampleLoss
    encoder: Encoder
    max_length: int
    batch_size: int

    def texts(self, pairs: Sequence[tuple[str, str]]) -> list[Text]:
        """Tokens of each (context, continuation), cut to what the model is shown."""
        return [Text.cut(*self.encoder.pair(*pair), self.max_length) for pair in pairs]

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[tuple[str, str]], report: Callable[[int, int], None]
    ) -> list[Likelihood]:
        """One result a (context, continuation), in the order given; longest texts run first."""
        texts = self.texts(pairs)
        order = sorted(range(len(texts)), key=lambda k: (-len(texts[k].ids), texts[k].ids))
        found: dict[int, Likelihood] = {}
        for first in range(0, len(order), self.batch_size):
            chunk = order[first : first + self.batch_size]
            found |= zip(chunk, self._batch([texts[k] for k in chunk]), strict=True)
            report(len(found), len(texts))
        return [found[k] for k in range(len(texts))]

    def _batch(self, texts: list[Text]) -> list[Likelihood]:
        """Right-padded: attention is causal, so what follows a text cannot change it."""
        device, width = self.model.model.device, max(len(text.ids) for text in texts) - 1
        token_BT = torch.zeros(len(texts), width, dtype=torch.long)
        rows: list[int] = []
        columns: list[int] = []
        targets: list[int] = []
        for b, text in enumerate(texts):
            shown = len(text.ids) - 1
            token_BT[b, :shown] = torch.tensor(text.ids[:-1])
            rows += [b] * text.scored
            columns += range(shown - text.scored, shown)
            targets += text.ids[-text.scored :]
        target_N = torch.tensor(targets, device=device)
        logits_NV = self._logits(token_BT.to(device), torch.tensor(rows), torch.tensor(columns))
        nats_N = -F.cross_entropy(logits_NV, target_N, reduction="none").double()
        hit_N = logits_NV.argmax(dim=-1) == target_N
        sizes = [text.scored for text in texts]
        return [
            Likelihood(float(nats_n.sum()), bool(hit_n.all()), text.truncated)
            for nats_n, hit_n, text in zip(
                nats_N.cpu().split(sizes), hit_N.cpu().split(sizes), texts, strict=True
            )
        ]

    def _logits(self, token_BT: Tensor, row_N: Tensor, column_N: Tensor) -> Tensor:
        """Logits of the scored tokens alone: those of every token are the largest tensor by far."""
        model = self.model.model
        row_N, column_N = row_N.to(token_BT.device), column_N.to(token_BT.device)
        if self.model.has_plain_head:
            last_BTD = model.base_model(input_ids=token_BT, use_cache=False).last_hidden_state
            logits_NV: Tensor = self.model.head.layer(last_BTD[row_N, column_N])
        else:
            logits_NV = model(input_ids=token_BT, use_cache=False).logits[row_N, column_N]
        exact = logits_NV.dtype in (torch.float32, torch.float64)
        return logits_NV if exact else logits_NV.float()
