"""The same questions through lm-evaluation-harness, in this process and without the network.

The harness merges what it is given with a task it knows only inside a group: a lone dict with a
known name would be a new, incomplete task. So all tasks go in one inline group, every member a
dict, each with its documents in a JSON Lines file and a cache of its own in a temporary folder.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from dograph.errors import ConfigError, require
from dograph.eval.scores import ItemMean, Likelihood, Scorer, TaskScore, score_task, summary
from dograph.eval.tasks import Documents

GROUP, SPLIT = "dograph", "evaluation"


def harness_scores(scorer: Scorer, documents: Sequence[Documents]) -> list[TaskScore]:
    """The harness' own accuracies and standard errors, task by task."""
    truncated = count_truncated(scorer, documents)  # first, for it may refuse
    return scores_from(documents, harness_samples(scorer, documents), truncated)


def harness_samples(
    scorer: Scorer, documents: Sequence[Documents]
) -> dict[str, list[dict[str, Any]]]:
    """What the harness logged of every document, by task, in the order of the documents."""
    lm_eval = require("lm_eval", "eval")
    models = require("lm_eval.models.huggingface", "eval")
    model = scorer.model.model
    half = model.dtype in (torch.bfloat16, torch.float16)
    with _quiet(), tempfile.TemporaryDirectory(prefix="dograph-eval-") as folder:
        wrapped = models.HFLM(
            pretrained=model,
            tokenizer=deepcopy(scorer.encoder.tokenizer),  # it is given a padding token
            backend="causal",
            batch_size=scorer.batch_size,
            max_length=scorer.max_length,
            prefix_token_id=scorer.encoder.prefix_id,
            softmax_dtype="float32" if half else None,
        )
        result = lm_eval.simple_evaluate(
            model=wrapped,
            tasks=[task_group(documents, Path(folder))],
            bootstrap_iters=0,  # standard errors of means come from the samples, below
            log_samples=True,
            random_seed=None,
            numpy_random_seed=None,
            torch_random_seed=None,
            fewshot_random_seed=None,
        )
    samples: dict[str, list[dict[str, Any]]] = result["samples"]
    return {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in samples.items()}


def task_group(documents: Sequence[Documents], folder: Path) -> dict[str, Any]:
    """The inline group, its documents written under `folder`."""
    members = []
    for found in documents:
        file = folder / f"{found.task.name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in found.rows), encoding="utf-8")
        kwargs = {"data_files": {SPLIT: str(file)}, "cache_dir": str(folder / "cache")}
        members.append(
            {
                "task": found.task.name,
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": kwargs,
                "training_split": None,
                "validation_split": SPLIT,
                "test_split": None,
                "num_fewshot": 0,
            }
        )
    return {"group": GROUP, "task": members}


def scores_from(
    documents: Sequence[Documents],
    samples: dict[str, list[dict[str, Any]]],
    truncated: dict[str, int],
) -> list[TaskScore]:
    """Scores from what the harness logged: its accuracies, and its formula of standard errors."""
    return [_score(x, samples[x.task.name], truncated[x.task.name]) for x in documents]


def _score(found: Documents, rows: list[dict[str, Any]], truncated: int) -> TaskScore:
    mean_stderr = require("lm_eval.api.metrics", "eval").mean_stderr
    task, items = found.task, found.items
    correct = [float(row["acc"]) for row in rows]
    normalised = [float(row["acc_norm"]) for row in rows] if task.normalised else []
    gold = [likelihoods_of(row)[item.gold].nats for row, item in zip(rows, items, strict=True)]

    def theirs(values: list[float]) -> ItemMean:
        se = mean_stderr(values) if len(values) > 1 else None
        return ItemMean(sum(values) / len(values), se)

    return replace(
        summary(task, items, correct, normalised, gold, truncated),
        acc=theirs(correct),
        acc_norm=theirs(normalised) if task.normalised else None,
    )


def likelihoods_of(row: dict[str, Any]) -> list[Likelihood]:
    """What the harness found for each pair of one document."""
    return [Likelihood(float(nats), bool(greedy)) for nats, greedy in row["filtered_resps"]]


def count_truncated(scorer: Scorer, documents: Sequence[Documents]) -> dict[str, int]:
    """How many texts of each task the harness will cut; what it cannot take is refused here."""
    truncated = {}
    for found in documents:
        texts = scorer.texts([pair for item in found.items for pair in item.pairs])
        if any(text.answer_cut for text in texts):
            raise ConfigError(
                f"{found.task.name} has an answer of more than {scorer.max_length} tokens, and "
                "lm-eval takes none; give a larger --max-length, leave the task out, or use "
                "--with builtin"
            )
        truncated[found.task.name] = sum(text.truncated for text in texts)
    return truncated


@contextmanager
def _quiet() -> Iterator[None]:
    """The harness warns of each text that it cuts; we count them and say so once."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


# Score tasks with either scorer; both give the same structure, and the same numbers.


With = Literal["builtin", "lm-eval"]
Report = Callable[[str, int, int], None]  # stage, done, total


def check_with(name: str) -> With:
    """The scorer of that name; one that is not installed is missed before any work is done."""
    for known in get_args(With):
        if name == known:
            if known == "lm-eval":
                require("lm_eval", "eval")
            found: With = known
            return found
    raise ConfigError(f'there is no scorer "{name}"; allowed: {", ".join(get_args(With))}')


def evaluate_tasks(
    scorer: Scorer, documents: Sequence[Documents], using: With, report: Report
) -> list[TaskScore]:
    """One score a task, in the order given."""
    if using == "lm-eval":
        report("lm-eval", 0, 0)
        return harness_scores(scorer, documents)
    scores = []
    for found in documents:

        def shown(done: int, total: int, stage: str = found.task.name) -> None:
            report(stage, done, total)

        items = found.items
        pairs = [pair for item in items for pair in item.pairs]
        scores.append(score_task(found.task, items, scorer.score(pairs, shown)))
    return scores
