"""From texts to likelihoods to accuracies: the built-in scorer, and lm-evaluation-harness.

acc: the gold answer has the highest log-likelihood; acc_norm: the highest per character of the
choice, the space before it not counted. Ties go to the first. A cloze task (LAMBADA) is right
where every token of the answer was the likeliest. The standard error of a mean over n items is
the sample's standard deviation (n - 1) over sqrt(n). Both scorers give the same numbers.
"""

import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.errors import ConfigError, require
from dograph.eval.tasks import Documents, Item, Task
from dograph.models.loss import PerSampleLoss

END_OF_TEXT = "<|endoftext|>"
SCORERS = ("builtin", "lm-eval")
Report = Callable[[str, int, int], None]  # stage, done, total


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
        """Tokens of both, cut by the harness' rule.

        White space that ends the context opens the continuation instead. The two are encoded
        together and cut where the context alone would end, so a tokenizer that merges across the
        seam gives the merged token to neither or to the continuation.
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
        is_scored_BT = torch.zeros(len(texts), width, dtype=torch.bool)
        targets: list[int] = []
        for b, text in enumerate(texts):
            shown = len(text.ids) - 1
            token_BT[b, :shown] = torch.tensor(text.ids[:-1])
            is_scored_BT[b, shown - text.scored : shown] = True
            targets += text.ids[-text.scored :]
        target_N = torch.tensor(targets, device=device)
        # Logits of the scored tokens alone: those of every token are the largest tensor by far.
        scored = tuple(place_N.to(device) for place_N in is_scored_BT.nonzero(as_tuple=True))
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
        parts = zip(texts, nats_N.cpu().split(sizes), hit_N.cpu().split(sizes), strict=True)
        return [
            Likelihood(float(nats_n.sum()), bool(hit_n.all()), text.truncated)
            for text, nats_n, hit_n in parts
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
    correct, normalised, gold_nats, truncated = [], [], [], 0
    for item in items:
        answer = [next(rest) for _ in item.pairs]
        nats = np.array([one.nats for one in answer])
        gold_nats.append(answer[item.gold].nats)
        truncated += sum(one.truncated for one in answer)
        is_right = answer[0].greedy if task.cloze else nats.argmax() == item.gold
        correct.append(float(is_right))
        if task.normalised:
            normalised.append(float((nats / np.array(item.lengths)).argmax() == item.gold))
    return summary(task, items, correct, normalised, gold_nats, truncated)


def summary(
    task: Task,
    items: Sequence[Item],
    correct: Sequence[float],
    normalised: Sequence[float],
    gold_nats: Sequence[float],
    truncated: int,
    mean: Callable[[Sequence[float]], ItemMean] = ItemMean.of,
) -> TaskScore:
    """Means over items; accuracies by `mean`.

    Bits per byte is the mean over items of -log2 p(gold answer) / its UTF-8 bytes, so that every
    question counts alike. Perplexity is exp(-mean log p(answer)) as in the harness; its standard
    error is perplexity times that of the mean (the harness draws bootstrap samples).
    """
    pairs = zip(items, gold_nats, strict=True)
    bits = [-nats / math.log(2) / item.gold_bytes for item, nats in pairs]
    perplexity = None
    if task.cloze:
        log_p = ItemMean.of(gold_nats)
        value = math.exp(min(-log_p.value, 700.0))
        perplexity = ItemMean(value, None if log_p.se is None else value * log_p.se)
    return TaskScore(
        task=task.name,
        items=len(items),
        acc=mean(correct),
        acc_norm=mean(normalised) if task.normalised else None,
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


def check_with(name: str) -> None:
    """Refuse a scorer that there is not; one that is not installed is missed before any work."""
    if name not in SCORERS:
        raise ConfigError(f'there is no scorer "{name}"; allowed: {", ".join(SCORERS)}')
    if name == "lm-eval":
        require("lm_eval", "eval")


def evaluate_tasks(
    scorer: Scorer, documents: Sequence[Documents], using: str, report: Report
) -> list[TaskScore]:
    """One score a task, in the order given."""
    if using == "lm-eval":
        report("lm-eval", 0, 0)
        truncated = count_truncated(scorer, documents)  # first, for it may refuse
        return harness_scores(documents, harness_samples(scorer, documents), truncated)
    scores = []
    for found in documents:
        items = found.items
        pairs = [pair for item in items for pair in item.pairs]
        likelihoods = scorer.score(pairs, partial(report, found.task.name))
        scores.append(score_task(found.task, items, likelihoods))
    return scores


# The same questions through lm-evaluation-harness, in this process and without the network.
#
# The harness merges what it is given with a task it knows only inside a group: a lone dict with a
# known name would be a new, incomplete task. So all tasks go in one inline group, every member a
# dict, each with its documents in a JSON Lines file and a cache of its own in a temporary folder.


def count_truncated(scorer: Scorer, documents: Sequence[Documents]) -> dict[str, int]:
    """How many texts of each task the harness will cut; what it cannot take is refused here."""
    truncated = {}
    for found in documents:
        texts = scorer.texts([pair for item in found.items for pair in item.pairs])
        if any(text.answer_cut for text in texts):
            raise ConfigError(
                f"{found.task.name} has an answer of more than {scorer.max_length} tokens, and "
                "lm-eval takes none; give a larger data.seq_len, leave the task out, or use "
                "--with builtin"
            )
        truncated[found.task.name] = sum(text.truncated for text in texts)
    return truncated


def harness_samples(
    scorer: Scorer, documents: Sequence[Documents]
) -> dict[str, list[dict[str, Any]]]:
    """What the harness logged of every document, by task, in the order of the documents."""
    lm_eval = require("lm_eval", "eval")
    models = require("lm_eval.models.huggingface", "eval")
    model, split = scorer.model.model, "evaluation"
    half = model.dtype in (torch.bfloat16, torch.float16)
    members: list[dict[str, Any]] = []
    # The harness warns of each text that it cuts; we count them and say so once.
    logger = logging.getLogger("lm_eval")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="dograph-eval-") as folder:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        for found in documents:
            file = Path(folder) / f"{found.task.name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in found.rows), encoding="utf-8")
            cache = str(Path(folder) / "cache")
            members.append(
                {
                    "task": found.task.name,
                    "dataset_path": "json",
                    "dataset_name": None,
                    "dataset_kwargs": {"data_files": {split: str(file)}, "cache_dir": cache},
                    "training_split": None,
                    "validation_split": split,
                    "test_split": None,
                    "num_fewshot": 0,
                }
            )
        wrapped = models.HFLM(
            pretrained=model,
            tokenizer=deepcopy(scorer.encoder.tokenizer),  # it is given a padding token
            backend="causal",
            batch_size=scorer.batch_size,
            max_length=scorer.max_length,
            prefix_token_id=scorer.encoder.prefix_id,
            softmax_dtype="float32" if half else None,
        )
        seeds = ("random", "numpy_random", "torch_random", "fewshot_random")
        result = lm_eval.simple_evaluate(
            model=wrapped,
            tasks=[{"group": "dograph", "task": members}],
            bootstrap_iters=0,  # standard errors of means come from the samples, below
            log_samples=True,
            **{f"{name}_seed": None for name in seeds},
        )
    samples: dict[str, list[dict[str, Any]]] = result["samples"]
    return {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in samples.items()}


def harness_scores(
    documents: Sequence[Documents],
    samples: dict[str, list[dict[str, Any]]],
    truncated: dict[str, int],
) -> list[TaskScore]:
    """Scores from what the harness logged: its accuracies, and its formula of standard errors."""
    mean_stderr = require("lm_eval.api.metrics", "eval").mean_stderr

    def theirs(values: Sequence[float]) -> ItemMean:
        se = mean_stderr(values) if len(values) > 1 else None
        return ItemMean(sum(values) / len(values), se)

    scores = []
    for found in documents:
        task, items, rows = found.task, found.items, samples[found.task.name]
        correct = [float(row["acc"]) for row in rows]
        normalised = [float(row["acc_norm"]) for row in rows] if task.normalised else []
        answers = [row["filtered_resps"] for row in rows]  # of each pair: nats, greedy
        gold = [float(own[item.gold][0]) for own, item in zip(answers, items, strict=True)]
        cut = truncated[task.name]
        scores.append(summary(task, items, correct, normalised, gold, cut, theirs))
    return scores
