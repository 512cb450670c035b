"""From likelihoods to accuracies, with the harness' formulas and its standard errors.

acc: the gold answer has the highest log-likelihood; acc_norm: the highest per character of the
choice, the space before it not counted. Ties go to the first. A cloze task (LAMBADA) is right
where every token of the answer was the likeliest. The standard error of a mean over n items is
the sample's standard deviation (n - 1) over sqrt(n).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dograph.eval.likelihood import Likelihood
from dograph.eval.tasks import Item, Task


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over items and its standard error; None where one item tells nothing of it."""

    value: float
    se: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        x = np.asarray(values, dtype=np.float64)
        se = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None
        return cls(float(x.mean()), se)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """What a model scored on one task."""

    task: str
    items: int
    acc: Estimate
    acc_norm: Estimate | None  # where the harness reports it
    bits_per_byte: Estimate  # of the gold answers
    perplexity: Estimate | None  # of the answers, for LAMBADA
    chance: float  # accuracy of guessing
    truncated: int  # texts that were cut on their left

    @property
    def primary(self) -> Estimate:
        """The paper's choice: normalised accuracy where available."""
        return self.acc if self.acc_norm is None else self.acc_norm

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    return TaskScore(
        task=task.name,
        items=len(items),
        acc=Estimate.of(correct),
        acc_norm=Estimate.of(normalised) if task.normalised else None,
        bits_per_byte=Estimate.of(bits),
        perplexity=_perplexity(gold_nats) if task.cloze else None,
        chance=0.0 if task.cloze else float(np.mean([1 / len(item.pairs) for item in items])),
        truncated=truncated,
    )


def _perplexity(nats: Sequence[float]) -> Estimate:
    mean = Estimate.of(nats)
    value = math.exp(min(-mean.value, 700.0))
    return Estimate(value, None if mean.se is None else value * mean.se)


def average(scores: Sequence[TaskScore]) -> Estimate:
    """The paper's average: every task alike, by normalised accuracy where available.

    Tasks are independent samples of questions, so its standard error is
    sqrt(sum of squared standard errors) / number of tasks. It tells how other questions would
    have moved the average, not how another seed would.
    """
    errors = [score.primary.se for score in scores]
    known = [se for se in errors if se is not None]
    se = math.sqrt(sum(se**2 for se in known)) / len(scores) if len(known) == len(scores) else None
    return Estimate(sum(score.primary.value for score in scores) / len(scores), se)
