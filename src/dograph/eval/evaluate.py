"""What `dograph eval` does: the nine tasks on one model, with provenance.

The model is a run, one of its checkpoints, a folder saved by save_pretrained, or a Hugging Face
name.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, require
from dograph.eval.recorded import number_table
from dograph.eval.scores import SCORERS, PromptEncoder, Report, Scorer, average, evaluate_tasks
from dograph.eval.tasks import TASKS, Documents, pick_tasks, read_task
from dograph.files import sha256_of
from dograph.models.build import require_folder
from dograph.models.loss import PerSampleLoss
from dograph.train.distributed import describe_environment, pick_device
from dograph.train.run_dir import EVAL, RunDirectory, run_of_model

POSITIONS = 2048  # for models that do not state how many they have, as in the harness


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to evaluate: its folder or name, and the run that trained it, if any."""

    model: str
    run: RunDirectory | None
    step: int | None

    @property
    def result_file(self) -> Path | None:
        """Where a run keeps the result: eval.json for its last model, else named by the step."""
        if self.run is None:
            return None
        is_last = (self.run.path / "model").resolve() == Path(self.model).resolve()
        return self.run.path / (EVAL if is_last else f"eval-step-{self.step}.json")


def find_subject(name: str) -> Subject:
    """A run stands for its last model; a checkpoint's model belongs to its run."""
    folder = Path(name)
    if (folder / "config.yaml").is_file():
        folder = folder / "model"
        if not folder.is_dir():
            raise ConfigError(
                f"the run {name} is not complete; give one of its checkpoints: "
                f"{name}/checkpoints/step-.../model"
            )
    elif not folder.is_dir():
        require_folder(name)
        return Subject(name, None, None)
    elif not (folder / "config.json").is_file():
        raise ConfigError(
            f"{name} is neither a run nor a model: it has no config.yaml and no config.json. Give "
            "a run, a folder saved by save_pretrained, or a Hugging Face name"
        )
    run, step = run_of_model(folder) or (None, None)
    return Subject(str(folder), run, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    benchmarks: Path | None = None  # None: the hub
    tasks: tuple[str, ...] = ()  # empty: all nine
    limit: int | None = None  # items of each task
    using: str = "builtin"
    batch_size: int = 32
    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_length: int | None = None


def open_scorer(
    subject: Subject, request: EvalRequest, corpus: Corpus | None, trained_length: int | None
) -> Scorer:
    """Load the model and its tokenizer.

    The model is given `max_length` tokens at once; by default as many as it was trained on, since
    later positions are untrained; if that is not known, all its positions.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would break our own progress line
    name, length, device = subject.model, request.max_length, pick_device(request.device)
    if Path(name).is_dir() and not list(Path(name).glob("tokenizer*")):
        raise ConfigError(
            f"{name} has no tokenizer, so prompts cannot be encoded; put its tokenizer.json there. "
            "A run has one if its corpus was prepared from text or with --tokenizer"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, request.dtype))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} or its tokenizer could not be loaded: {error}. Give a run, a folder saved by "
            "save_pretrained, or a Hugging Face name"
        ) from error
    positions = getattr(model.config, "max_position_embeddings", None) or POSITIONS
    if length is not None and not 2 <= length <= positions:
        raise ConfigError(
            f"data.seq_len={length}, but {name} has {positions} positions; give 2 to {positions}"
        )
    return Scorer(
        model=PerSampleLoss(model.to(device).eval(), model.config.vocab_size),
        encoder=PromptEncoder(tokenizer, corpus.manifest.tokenizer.eot_id if corpus else None),
        max_length=length or min(trained_length or positions, positions),
        batch_size=request.batch_size,
    )


def read_documents(request: EvalRequest, report: Report) -> list[Documents]:
    """The documents of every requested task, up to its limit, if the scorer is there at all."""
    if request.using not in SCORERS:
        allowed = ", ".join(SCORERS)
        raise ConfigError(f'there is no scorer "{request.using}"; allowed: {allowed}')
    if request.using == "lm-eval":
        require("lm_eval", "eval")
    documents = []
    for task in pick_tasks(request.tasks):
        report(f"reading {task.name}", 0, 0)
        documents.append(read_task(task, request.benchmarks).limited(request.limit))
    return documents


def evaluate(
    subject: Subject, request: EvalRequest, corpus: Corpus | None, report: Report
) -> dict[str, Any]:
    """The content of eval.json."""
    started = time.monotonic()
    documents = read_documents(request, report)
    config = None if subject.run is None else subject.run.config()
    report("loading the model", 0, 0)
    scorer = open_scorer(subject, request, corpus, config.data.seq_len if config else None)
    scores = evaluate_tasks(scorer, documents, request.using, report)
    notes = [note for one in documents for note in one.notes]
    if cut := ", ".join(f"{score.task} {score.truncated}" for score in scores if score.truncated):
        length = scorer.max_length
        notes.append(f"texts that did not fit into {length} tokens and lost their beginning: {cut}")
    tasks = {}
    for score, one in zip(scores, documents, strict=True):
        values = asdict(score) | {"primary": one.task.metric, "split": one.split}
        values |= {"available": one.available, "files": one.files}
        tasks[values.pop("task")] = values
    chance = sum(score.chance for score in scores) / len(scores)
    weights = sorted(Path(subject.model).glob("*.safetensors"))
    libraries = ["lm_eval"] if request.using == "lm-eval" else []
    libraries += ["datasets"] if libraries or request.benchmarks is None else []
    return {
        "format": "dograph-eval",
        "version": 1,
        "tasks": tasks,
        "average": asdict(average(scores))
        | {"chance": chance, "tasks": len(scores), "of": len(TASKS)},
        "notes": notes,
        "provenance": {
            "scorer": request.using,
            "model": subject.model,
            "step": subject.step,
            "weights": {file.name: sha256_of(file) for file in weights},
            "benchmarks": None if request.benchmarks is None else str(request.benchmarks),
            "limit": request.limit,
            "max_length": scorer.max_length,
            "batch_size": request.batch_size,
            "dtype": request.dtype,
            "device": str(scorer.model.model.device),
            "corpus": None if corpus is None else corpus.digest,
            "environment": describe_environment(),
            "also": {name: version(name) for name in libraries},
            "seconds": round(time.monotonic() - started, 1),
        },
    }


def checked_result(values: dict[str, Any]) -> dict[str, Any]:
    """The content of eval.json as it was read, after checks that tables can be made of it."""
    if values["format"] != "dograph-eval":
        raise ValueError("not a result of dograph eval")
    average = {"average": values["average"] | {"primary": None, "items": 0}}
    for name, task in (values["tasks"] | average).items():
        mean = task[task["primary"]] if task["primary"] else task
        error = 0.0 if mean["se"] is None else mean["se"]
        if not math.isfinite(task["chance"] + task["items"] + mean["value"] + error):
            raise ValueError(f"a score of {name} is not a number")
    if not all(isinstance(note, str) for note in values["notes"] + limited_tasks([values])):
        raise ValueError("its notes are not texts")
    dict(values["provenance"]["weights"] or {})
    return values


def limited_tasks(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line if some task was not evaluated in full (`--limit`)."""
    limited: dict[str, str] = {}
    for record in records:
        for name, task in record["tasks"].items():
            if "available" in task and task["items"] < task["available"]:
                limited.setdefault(name, f"{name} {task['items']:,} of {task['available']:,}")
    return [f"not all items were scored: {', '.join(limited.values())}"] if limited else []


def task_table(result: Mapping[str, Any]) -> Table:
    """Accuracies in per cent with standard errors, and the accuracy of guessing."""
    columns = ("task", "n", "acc", "acc_norm", "chance", "bits/B", "ppl")
    table = number_table("downstream tasks", *columns, left=("task",))

    def cell(mean: Mapping[str, Any] | None, shape: str = ".1f", scale: float = 100) -> str:
        if mean is None:
            return ""
        error = "" if mean["se"] is None else f" ± {scale * mean['se']:{shape}}"
        return f"{scale * mean['value']:{shape}}{error}"

    for name, task in result["tasks"].items():
        items, available = task["items"], task["available"]
        number = str(items) if items == available else f"{items} of {available}"
        accuracies = [cell(task["acc"]), cell(task["acc_norm"]), f"{100 * task['chance']:.1f}"]
        others = [cell(task["bits_per_byte"], ".3f", 1), cell(task["perplexity"], ".4g", 1)]
        table.add_row(name, number, *accuracies, *others)
    table.add_section()
    average, num = result["average"], len(result["tasks"])
    tasks = "1 task" if num == 1 else f"{num} tasks"
    table.add_row("average", tasks, "", cell(average), f"{100 * average['chance']:.1f}")
    return table
