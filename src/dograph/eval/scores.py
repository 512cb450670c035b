"""From texts to log-likelihoods to accuracies: the built-in scorer, and lm-evaluation-harness.

acc: the gold answer has the highest log-likelihood; acc_norm: the highest per character of the
choice, not counting the space before it. Ties go to the first. A cloze task (LAMBADA) is right if
every token of the answer has the highest probability. The standard error of a mean over n items is
the sample standard deviation (n - 1) over sqrt(n). Both scorers give the same numbers.
"""

import json
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dograph.errors import ConfigError, require
from dograph.eval.tasks import Documents, Item, Row, Task
from dograph.models.loss import PerSampleLoss

END_OF_TEXT = "<|endoftext|>"
SCORERS = ("builtin", "lm-eval")
Report = Callable[[str, int, int], None]  # stage, done, total


class PromptEncoder:
    """A Hugging Face tokenizer, and the token that stands for an empty context."""

    def __init__(self, tokenizer: Any, end_of_text: int | None = None) -> None:
        """The prefix is the BOS token, else the EOS token, else the corpus' end of text.

        A tokenizer without any of them may still have a token called <|endoftext|>.
        """
        named = tokenizer.get_vocab().get(END_OF_TEXT)
        known = (tokenizer.bos_token_id, tokenizer.eos_token_id, end_of_text, named)
        prefix_id: int | None = next((prefix for prefix in known if prefix is not None), None)
        if prefix_id is None:
            raise ConfigError(
                "the tokenizer has no BOS and no EOS token; set bos_token or eos_token in the "
                "model folder's tokenizer_config.json"
            )
        self.tokenizer, self.prefix_id = tokenizer, prefix_id

    def encode(self, text: str, **options: bool) -> list[int]:
        if not options and text.startswith(self.tokenizer.decode(self.prefix_id)):
            options = {"add_special_tokens": False}  # the text starts with the prefix already
        ids: list[int] = self.tokenizer.encode(text, **options)
        return ids

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both, split as in the harness.

        White space at the end of the context moves to the continuation. The two are encoded
        together and split where the context alone would end, so a token merged across the
        boundary belongs to the continuation or is lost.
        """
        if not context:
            ids = self.encode(continuation, add_special_tokens=False)
            return ([self.prefix_id], ids) if ids[0] != self.prefix_id else (ids[:1], ids[1:])
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        first = self.encode(kept)
        whole = self.encode(kept + continuation)
        # If everything merged into the context, the continuation is encoded by itself.
        return first, whole[len(first) :] or self.encode(continuation, add_special_tokens=False)


class Likelihood(NamedTuple):
    nats: float  # sum over its tokens of log p(token | everything before), natural logarithm
    greedy: bool  # every token had the highest probability


class ScoredText(NamedTuple):
    """A context and its continuation in tokens; the last token is predicted but never an input."""

    ids: list[int]
    scored: int  # how many of the last tokens are scored
    truncated: bool  # the beginning was cut off
    answer_cut: bool  # even a part of the continuation was cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A model, its tokenizer, and how many tokens the model is given at once.

    A text of more than `max_length` + 1 tokens loses its beginning, as in the harness: the last
    token is never an input. An answer too long even for that is scored by its last `max_length`
    tokens (the harness fails with an assertion).
    """

    model: PerSampleLoss
    encoder: PromptEncoder
    max_length: int
    batch_size: int

    def texts(self, items: Sequence[Item]) -> list[ScoredText]:
        """Tokens of every (context, continuation) of the items, cut to what the model is given."""
        texts = []
        for pair in (pair for item in items for pair in item.pairs):
            context, continuation = self.encoder.pair(*pair)
            whole = context + continuation
            ids = whole[-(self.max_length + 1) :]
            scored = min(len(continuation), len(ids) - 1)
            cut = scored < len(continuation)
            texts.append(ScoredText(ids, scored, len(ids) < len(whole), cut))
        return texts

    @torch.inference_mode()
    def score(
        self, texts: Sequence[ScoredText], report: Callable[[int, int], None]
    ) -> list[Likelihood]:
        """One result for each text, in the order given; the longest texts run first."""
        order = sorted(range(len(texts)), key=lambda k: (-len(texts[k].ids), texts[k].ids))
        scored: dict[int, Likelihood] = {}
        for first in range(0, len(order), self.batch_size):
            chunk = order[first : first + self.batch_size]
            scored |= zip(chunk, self._batch([texts[k] for k in chunk]), strict=True)
            report(len(scored), len(texts))
        return [scored[k] for k in range(len(texts))]

    def _batch(self, texts: list[ScoredText]) -> list[Likelihood]:
        """Padded on the right: attention is causal, so padding cannot change what precedes it."""
        device, sizes = self.model.model.device, [text.scored for text in texts]
        token_BT = pad_sequence([torch.tensor(text.ids) for text in texts], batch_first=True)
        end_B1 = torch.tensor([len(text.ids) for text in texts])[:, None]
        start_B1, place_T = end_B1 - torch.tensor(sizes)[:, None], torch.arange(token_BT.shape[1])
        is_scored_BT = (start_B1 <= place_T) & (place_T < end_B1)
        target_N = token_BT[is_scored_BT].to(device)
        # Logits of scored tokens only: those of every token would be the largest tensor by far.
        places = is_scored_BT[:, 1:].nonzero(as_tuple=True)  # of the inputs that predict them
        scored = tuple(place_N.to(device) for place_N in places)
        inputs = {"input_ids": token_BT[:, :-1].to(device), "use_cache": False}
        if self.model.has_plain_head:
            last_BTD = self.model.model.base_model(**inputs).last_hidden_state
            logits_NV: Tensor = self.model.head.layer(last_BTD[scored])
        else:
            logits_NV = self.model.model(**inputs).logits[scored]
        if logits_NV.dtype not in (torch.float32, torch.float64):
            logits_NV = logits_NV.float()
        nats_N = -F.cross_entropy(logits_NV, target_N, reduction="none").double()
        hit_N = logits_NV.argmax(dim=-1) == target_N
        parts = zip(nats_N.cpu().split(sizes), hit_N.cpu().split(sizes), strict=True)
        return [Likelihood(float(nats_n.sum()), bool(hit_n.all())) for nats_n, hit_n in parts]


@dataclass(frozen=True, slots=True)
class ItemMean:
    """A mean over items and its standard error; None if there is only one item."""

    value: float
    se: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "ItemMean":
        mean, root = float(np.mean(values, dtype=np.float64)), math.sqrt(len(values))
        std = float(np.std(values, ddof=1, dtype=np.float64)) if len(values) > 1 else None
        return cls(mean, None if std is None else std / root)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    task: str
    items: int
    acc: ItemMean
    acc_norm: ItemMean | None  # if the harness reports it
    bits_per_byte: ItemMean  # of the gold answers
    perplexity: ItemMean | None  # of the answers, for LAMBADA
    chance: float  # accuracy of guessing
    truncated: int  # texts whose beginning was cut off

    @property
    def primary(self) -> ItemMean:
        """The metric of the paper's average: acc_norm if there is one, else acc."""
        return self.acc if self.acc_norm is None else self.acc_norm


def log_likelihoods(task: Task, items: Sequence[Item], likelihoods: list[Likelihood]) -> list[Row]:
    """What the harness logs of each item: its accuracies, and the likelihoods of its pairs."""
    rest, rows = iter(likelihoods), list[Row]()
    for item in items:
        answers = [next(rest) for _ in item.pairs]
        nats = np.array([answer.nats for answer in answers])
        is_right = answers[0].greedy if task.cloze else nats.argmax() == item.gold
        rows.append({"acc": is_right, "filtered_resps": answers})
        if task.metric == "acc_norm":
            rows[-1]["acc_norm"] = (nats / np.array(item.lengths)).argmax() == item.gold
    return rows


def score_task(task: Task, items: Sequence[Item], rows: Sequence[Row], truncated: int) -> TaskScore:
    """Means over items of the harness' log, or of ours in its form.

    Bits per byte is the mean over items of -log2 p(gold answer) / its UTF-8 bytes, so every
    question has the same weight. Perplexity is exp(-mean log p(answer)) as in the harness; its
    standard error is perplexity times that of the mean (the harness uses a bootstrap).
    """
    logged = zip(rows, items, strict=True)
    gold_nats = [float(row["filtered_resps"][item.gold][0]) for row, item in logged]
    pairs = zip(items, gold_nats, strict=True)
    bits = [-nats / math.log(2) / item.gold_bytes for item, nats in pairs]
    perplexity = None
    if task.cloze:
        log_p = ItemMean.of(gold_nats)
        value = math.exp(min(-log_p.value, 700.0))
        perplexity = ItemMean(value, None if log_p.se is None else value * log_p.se)
    names = {"acc", task.metric}
    means = {name: ItemMean.of([float(row[name]) for row in rows]) for name in names}
    return TaskScore(
        task=task.name,
        items=len(items),
        acc=means["acc"],
        acc_norm=means.get("acc_norm"),
        bits_per_byte=ItemMean.of(bits),
        perplexity=perplexity,
        chance=0.0 if task.cloze else float(np.mean([1 / len(item.pairs) for item in items])),
        truncated=truncated,
    )


def average(scores: Sequence[TaskScore]) -> ItemMean:
    """The paper's average: every task has the same weight, by acc_norm if there is one.

    Tasks are independent samples of questions, so its standard error is
    sqrt(sum of squared standard errors) / number of tasks. It says how other questions would
    have changed the average, not how another seed would.
    """
    known = [score.primary.se for score in scores if score.primary.se is not None]
    se = math.sqrt(sum(se**2 for se in known)) / len(scores) if len(known) == len(scores) else None
    return ItemMean(sum(score.primary.value for score in scores) / len(scores), se)


def evaluate_tasks(
    scorer: Scorer, documents: Sequence[Documents], using: str, report: Report
) -> list[TaskScore]:
    """One score for each task, in the order given."""
    logged: dict[str, list[Row]] = {}
    if using == "lm-eval":
        report("lm-eval", 0, 0)
        logged = harness_log(scorer, documents)
    scores = []
    for one in documents:
        task, items = one.task, one.items
        texts = scorer.texts(items)
        if using != "lm-eval":
            likelihoods = scorer.score(texts, partial(report, task.name))
            logged[task.name] = log_likelihoods(task, items, likelihoods)
        truncated = sum(text.truncated for text in texts)
        scores.append(score_task(task, items, logged[task.name], truncated))
    return scores


def harness_log(scorer: Scorer, documents: Sequence[Documents]) -> dict[str, list[Row]]:
    """What lm-evaluation-harness logs of every document, by task; offline, in this process.

    The harness combines a dict with a task of the same name only inside a group: alone, the dict
    would define a new, incomplete task. So all tasks are in one group, each with its documents in a
    JSON Lines file and a cache of its own in a temporary folder.
    """
    for one in documents:
        if any(text.answer_cut for text in scorer.texts(one.items)):
            raise ConfigError(
                f"{one.task.name} has an answer of more than {scorer.max_length} tokens, which "
                "lm-eval cannot score; give a larger data.seq_len, leave the task out, or use "
                "--with builtin"
            )
    lm_eval = require("lm_eval", "eval")
    models = require("lm_eval.models.huggingface", "eval")
    model, split = scorer.model.model, "evaluation"
    half = model.dtype in (torch.bfloat16, torch.float16)
    source = {"dataset_path": "json", "dataset_name": None, "num_fewshot": 0}
    source |= {"training_split": None, "validation_split": split, "test_split": None}
    members: list[dict[str, Any]] = []
    # The harness warns of each text that it cuts; ours are counted and reported once.
    logger = logging.getLogger("lm_eval")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="dograph-eval-") as folder:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        for one in documents:
            file = Path(folder) / f"{one.task.name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in one.rows), encoding="utf-8")
            files = {"data_files": {split: str(file)}, "cache_dir": str(Path(folder) / "cache")}
            members.append({"task": one.task.name, "dataset_kwargs": files, **source})
        wrapped = models.HFLM(
            pretrained=model,
            tokenizer=deepcopy(scorer.encoder.tokenizer),  # the harness sets its padding token
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
            bootstrap_iters=0,  # standard errors of means are computed from the log
            log_samples=True,
            **{f"{name}_seed": None for name in seeds},
        )
    log: dict[str, list[Row]] = result["samples"]
    return {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in log.items()}
