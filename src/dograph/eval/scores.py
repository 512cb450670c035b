"""From likelihoods to accuracies, with the harness' formulas and its standard errors.

acc: the gold answer has the highest log-likelihood; acc_norm: the highest per character of the
choice, the space before it not counted. Ties go to the first. A cloze task (LAMBADA) is right
where every token of the answer was the likeliest. The standard error of a mean over n items is
the sample's standard deviation (n - 1) over sqrt(n).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.errors import ConfigError
from dograph.eval.tasks import Item, Task
from dograph.models.loss import PerSampleLoss

# Where a context ends and its continuation begins, in tokens: the harness' rule.


END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """A Hugging Face tokenizer, and the token that stands for an empty context."""

    tokenizer: Any
    prefix_id: int

    @classmethod
    def of(cls, tokenizer: Any, end_of_text: int | None = None) -> "PromptEncoder":
        """The prefix is the tokenizer's start, else its end, else the corpus' end of text.

        A tokenizer that names none of them may still have the token that commonly is one.
        """
        common = tokenizer.get_vocab().get(END_OF_TEXT)
        known = (tokenizer.bos_token_id, tokenizer.eos_token_id, end_of_text, common)
        prefix = next((token for token in known if token is not None), None)
        if prefix is None:
            raise ConfigError(
                "the tokenizer names no start and no end of text; set bos_token or eos_token in "
                "the model folder's tokenizer_config.json"
            )
        return cls(tokenizer, prefix)

    def encode(self, text: str, **options: bool) -> list[int]:
        if not options and text.startswith(self.tokenizer.decode(self.prefix_id)):
            options = {"add_special_tokens": False}  # the text brings its own start
        ids: list[int] = self.tokenizer.encode(text, **options)
        return ids

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both. White space that ends the context opens the continuation instead.

        The two are encoded together and cut where the context alone would end, so a tokenizer
        that merges across the seam gives the merged token to neither or to the continuation.
        """
        if not context:
            ids = self.encode(continuation, add_special_tokens=False)
            return ([self.prefix_id], ids) if ids[0] != self.prefix_id else (ids[:1], ids[1:])
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        first = self.encode(kept)
        whole = self.encode(kept + continuation)
        # Where all of it merged into the context, the continuation is encoded by itself.
        return first, whole[len(first) :] or self.encode(continuation, add_special_tokens=False)


# Log-likelihood of continuations, in batches of like length.


@dataclass(frozen=True, slots=True)
class Likelihood:
    """What a model makes of one continuation."""

    nats: float  # sum over its tokens of log p(token | everything before), natural logarithm
    greedy: bool  # every token was the likeliest
    truncated: bool = False  # the text was cut on its left


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A context and its continuation in tokens; the last token is only ever predicted."""

    ids: list[int]
    scored: int  # how many of the last tokens are scored
    truncated: bool  # the beginning is gone
    answer_cut: bool  # even a part of the continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A model, its tokenizer, and how much of a text it is shown.

    A text of more than `max_length` + 1 tokens loses its beginning, as in the harness: the last
    token is only ever predicted. An answer too long even for that is scored by its last
    `max_length` tokens (the harness stops with an assertion there).
    """

    model: PerSampleLoss
    encoder: PromptEncoder
    max_length: int
    batch_size: int

    def texts(self, pairs: Sequence[tuple[str, str]]) -> list[ScoredText]:
        """Tokens of each (context, continuation), cut to what the model is shown."""
        texts = []
        for pair in pairs:
            context, continuation = self.encoder.pair(*pair)
            whole = context + continuation
            ids = whole[-(self.max_length + 1) :]
            scored = min(len(continuation), len(ids) - 1)
            cut = scored < len(continuation)
            texts.append(ScoredText(ids, scored, len(ids) < len(whole), cut))
        return texts

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

    def _batch(self, texts: list[ScoredText]) -> list[Likelihood]:
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
        # Logits of the scored tokens alone: those of every token are the largest tensor by far.
        scored = (torch.tensor(rows, device=device), torch.tensor(columns, device=device))
        inputs = {"input_ids": token_BT.to(device), "use_cache": False}
        if self.model.has_plain_head:
            last_BTD = self.model.model.base_model(**inputs).last_hidden_state
            logits_NV: Tensor = self.model.head.layer(last_BTD[scored])
        else:
            logits_NV = self.model.model(**inputs).logits[scored]
        if logits_NV.dtype not in (torch.float32, torch.float64):
            logits_NV = logits_NV.float()
        nats_N = -F.cross_entropy(logits_NV, target_N, reduction="none").double()
        hit_N = logits_NV.argmax(dim=-1) == target_N
        sizes = [text.scored for text in texts]
        return [
            Likelihood(float(nats_n.sum()), bool(hit_n.all()), text.truncated)
            for nats_n, hit_n, text in zip(
                nats_N.cpu().split(sizes), hit_N.cpu().split(sizes), texts, strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class ItemMean:
    """A mean over items and its standard error; None where one item tells nothing of it."""

    value: float
    se: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "ItemMean":
        x = np.asarray(values, dtype=np.float64)
        se = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None
        return cls(float(x.mean()), se)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """What a model scored on one task."""

    task: str
    items: int
    acc: ItemMean
    acc_norm: ItemMean | None  # where the harness reports it
    bits_per_byte: ItemMean  # of the gold answers
    perplexity: ItemMean | None  # of the answers, for LAMBADA
    chance: float  # accuracy of guessing
    truncated: int  # texts that were cut on their left

    @property
    def primary(self) -> ItemMean:
        """The paper's choice: normalised accuracy where available."""
        return self.acc if self.acc_norm is None else self.acc_norm


def score_task(task: Task, items: Sequence[Item], likelihoods: Iterable[Likelihood]) -> TaskScore:
    """One likelihood for each pair of each item, in their order."""
    rest = iter(likelihoods)
    answers = [[next(rest) for _ in item.pairs] for item in items]
    correct, normalised, truncated = [], [], 0
    for item, answer in zip(items, answers, strict=True):
        nats = np.array([one.nats for one in answer])
        if task.cloze:
            correct.append(float(answer[0].greedy))
        else:
            correct.append(float(nats.argmax() == item.gold))
            normalised.append(float((nats / np.array(item.lengths)).argmax() == item.gold))
        truncated += sum(one.truncated for one in answer)
    gold = [answer[item.gold].nats for item, answer in zip(items, answers, strict=True)]
    return summary(task, items, correct, normalised, gold, truncated)


def summary(
    task: Task,
    items: Sequence[Item],
    correct: Sequence[float],
    normalised: Sequence[float],
    gold_nats: Sequence[float],
    truncated: int,
) -> TaskScore:
    """Means over items.

    Bits per byte is the mean over items of -log2 p(gold answer) / its UTF-8 bytes, so that every
    question counts alike. Perplexity is exp(-mean log p(answer)) as in the harness; its standard
    error is perplexity times that of the mean (the harness draws bootstrap samples).
    """
    bits = [
        -nats / math.log(2) / item.gold_bytes for item, nats in zip(items, gold_nats, strict=True)
    ]
    perplexity = None
    if task.cloze:
        mean = ItemMean.of(gold_nats)
        value = math.exp(min(-mean.value, 700.0))
        perplexity = ItemMean(value, None if mean.se is None else value * mean.se)
    return TaskScore(
        task=task.name,
        items=len(items),
        acc=ItemMean.of(correct),
        acc_norm=ItemMean.of(normalised) if task.normalised else None,
        bits_per_byte=ItemMean.of(bits),
        perplexity=perplexity,
        chance=0.0 if task.cloze else float(np.mean([1 / len(item.pairs) for item in items])),
        truncated=truncated,
    )


def average(scores: Sequence[TaskScore]) -> ItemMean:
    """The paper's average: every task alike, by normalised accuracy where available.

    Tasks are independent samples of questions, so its standard error is
    sqrt(sum of squared standard errors) / number of tasks. It tells how other questions would
    have moved the average, not how another seed would.
    """
    errors = [score.primary.se for score in scores]
    known = [se for se in errors if se is not None]
    se = math.sqrt(sum(se**2 for se in known)) / len(scores) if len(known) == len(scores) else None
    return ItemMean(sum(score.primary.value for score in scores) / len(scores), se)
