"""lm-evaluation-harness on the documents of a scorer, offline and in this process."""

import json
import logging
import math
import tempfile
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch


def harness_log(scorer, documents):
    """What lm-evaluation-harness logs of every document, by task.

    The harness combines a dict with a task of the same name only inside a group: alone, the dict
    would define a new, incomplete task. So all tasks are in one group, each with its documents in a
    JSON Lines file and a cache of its own in a temporary folder.
    """
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    model, split = scorer.model.model, "evaluation"
    half = model.dtype in (torch.bfloat16, torch.float16)
    members = []
    # The harness warns of each text that it cuts; ours are counted and reported once.
    logger = logging.getLogger("lm_eval")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="dograph-eval-") as folder:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        for one in documents:
            file = Path(folder) / f"{one.task.name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in one.rows), encoding="utf-8")
            cache = str(Path(folder) / "cache")
            members.append(
                {
                    "task": one.task.name,
                    "dataset_path": "json",
                    "dataset_name": None,
                    "dataset_kwargs": {"data_files": {split: str(file)}, "cache_dir": cache},
                    "training_split": None,
                    "validation_split": split,
                    "test_split": None,
                    "num_fewshot": 0,
                }
            )
        wrapped = HFLM(
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
    log = result["samples"]
    return {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in log.items()}


def harness_scores(documents, log):
    """By task: the mean over its items and its standard error, by the name of the metric."""
    from lm_eval.api.metrics import mean_stderr

    scores = {}
    for one in documents:
        rows, items = log[one.task.name], one.items
        names = ["acc"] + (["acc_norm"] if one.task.metric == "acc_norm" else [])
        values = {name: [float(row[name]) for row in rows] for name in names}
        nats = [
            float(row["filtered_resps"][item.gold][0])
            for row, item in zip(rows, items, strict=True)
        ]
        values["bits_per_byte"] = [
            -own / math.log(2) / item.gold_bytes for own, item in zip(nats, items, strict=True)
        ]
        own = {name: (float(np.mean(each)), mean_stderr(each)) for name, each in values.items()}
        if one.task.cloze:  # the harness uses a bootstrap for this standard error
            value = math.exp(min(-float(np.mean(nats)), 700.0))
            own["perplexity"] = (value, value * mean_stderr(nats))
        scores[one.task.name] = own
    return scores
