"""The same questions through lm-evaluation-harness, in this process and without the network.

The harness merges what it is given with a task it knows only inside a group: a lone dict with a
known name would be a new, incomplete task. So all tasks go in one inline group, every member a
dict, each with its documents in a JSON Lines file and a cache of its own in a temporary folder.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch

from dograph.errors import ConfigError, require
from dograph.eval.scores import ItemMean, Likelihood, Scorer, TaskScore, score_task, summary
from dograph.eval.tasks import Documents

GROUP, SPLIT = "dograph", "evaluation"


def harness_samples(
    scorer: Scorer, documents: Sequence[Documents]
) -> dict[str, list[dict[str, Any]]]:
    """What the harness logged of every document, by task, in the order of the documents."""
    lm_eval = require("lm_eval", "eval")
    models = require("lm_eval.models.huggingface", "eval")
    model = scorer.model.model
    half = model.dtype in (torch.bfloat16, torch.float16)
    members: list[dict[str, Any]] = []
    # The harness warns of each text that it cuts; we count them and say so once.
    logger = logging.getLogger("lm_eval")
    level = logger.level
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="dograph-eval-") as folder:
        logger.setLevel(logging.ERROR)
        stack.callback(logger.setLevel, level)
        for found in documents:
            file = Path(folder) / f"{found.task.name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in found.rows), encoding="utf-8")
            cache = str(Path(folder) / "cache")
            members.append(
                {
                    "task": found.task.name,
                    "dataset_path": "json",
                    "dataset_name": None,
                    "dataset_kwargs": {"data_files": {SPLIT: str(file)}, "cache_dir": cache},
                    "training_split": None,
                    "validation_split": SPLIT,
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
        result = lm_eval.simple_evaluate(
            model=wrapped,
            tasks=[{"group": GROUP, "task": members}],
            bootstrap_iters=0,  # standard errors of means come from the samples, below
            log_samples=True,
            random_seed=None,
            numpy_random_seed=None,
            torch_random_seed=None,
            fewshot_random_seed=None,
        )
    samples: dict[str, list[dict[str, Any]]] = result["samples"]
    return {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in samples.items()}


def scores_from(
    documents: Sequence[Documents],
    samples: dict[str, list[dict[str, Any]]],
    truncated: dict[str, int],
) -> list[TaskScore]:
    """Scores from what the harness logged: its accuracies, and its formula of standard errors."""
    mean_stderr = require("lm_eval.api.metrics", "eval").mean_stderr

    def theirs(values: list[float]) -> ItemMean:
        se = mean_stderr(values) if len(values) > 1 else None
        return ItemMean(sum(values) / len(values), se)

    scores = []
    for found in documents:
        task, items, rows = found.task, found.items, samples[found.task.name]
        correct = [float(row["acc"]) for row in rows]
        normalised = [float(row["acc_norm"]) for row in rows] if task.normalised else []
        gold = [likelihoods_of(row)[item.gold].nats for row, item in zip(rows, items, strict=True)]
        score = summary(task, items, correct, normalised, gold, truncated[task.name])
        acc_norm = theirs(normalised) if task.normalised else None
        scores.append(replace(score, acc=theirs(correct), acc_norm=acc_norm))
    return scores


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


# Score tasks with either scorer; both give the same structure, and the same numbers.


With = Literal["builtin", "lm-eval"]
Report = Callable[[str, int, int], None]  # stage, done, total


def check_with(name: str) -> With:
    """The scorer of that name; one that is not installed is missed before any work is done."""
    if name not in get_args(With):
        raise ConfigError(f'there is no scorer "{name}"; allowed: {", ".join(get_args(With))}')
    if name == "lm-eval":
        require("lm_eval", "eval")
    return cast(With, name)


def evaluate_tasks(
    scorer: Scorer, documents: Sequence[Documents], using: With, report: Report
) -> list[TaskScore]:
    """One score a task, in the order given."""
    if using == "lm-eval":
        report("lm-eval", 0, 0)
        truncated = count_truncated(scorer, documents)  # first, for it may refuse
        return scores_from(documents, harness_samples(scorer, documents), truncated)
    scores = []
    for found in documents:

        def shown(done: int, total: int, stage: str = found.task.name) -> None:
            report(stage, done, total)

        items = found.items
        pairs = [pair for item in items for pair in item.pairs]
        scores.append(score_task(found.task, items, scorer.score(pairs, shown)))
    return scores
