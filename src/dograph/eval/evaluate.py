"""What `dograph eval` does: the nine tasks and the loss per source of one model, with provenance.

The model is a run, one of its checkpoints, a folder saved by save_pretrained, or a name of the
hub. A run also has a corpus, so its sources' validation losses are part of the result.
"""

import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.eval.benchmarks_evaluate import Report, check_with, evaluate_tasks
from dograph.eval.documents import (
    Documents,
    parse_limits,
    read_folder,
    read_hub,
)
from dograph.eval.likelihood import Scorer
from dograph.eval.scores import Estimate, TaskScore, average
from dograph.eval.subject import Precision, open_scorer
from dograph.eval.tasks import TASKS, pick_tasks
from dograph.files import sha256_of
from dograph.models.build import require_folder
from dograph.models.loss import PerSampleLoss
from dograph.train.distributed import pick_device
from dograph.train.environment import describe_environment
from dograph.train.metrics import Row, validation_row
from dograph.train.run_dir import RunDirectory, run_of_model
from dograph.train.validation import validate, validation_blocks


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is evaluated: where it lies, and the run that made it, if one did."""

    model: str
    run: RunDirectory | None
    step: int | None

    @property
    def result_file(self) -> Path | None:
        """Where a run keeps the result: eval.json of its last model, else with the step."""
        if self.run is None:
            return None
        is_last = (self.run.path / "model").resolve() == Path(self.model).resolve()
        return self.run.path / ("eval.json" if is_last else f"eval-step-{self.step}.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to evaluate, and how."""

    benchmarks: Path | None = None  # None: the hub
    tasks: tuple[str, ...] = ()  # none: all nine
    limit: str | None = None
    using: str = "builtin"
    batch_size: int = 32
    device: str = "auto"
    dtype: Precision = "float32"
    max_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was found."""

    scores: list[TaskScore]
    average: Estimate
    chance: float  # of the average
    sources: Row  # as in metrics.jsonl; empty where the model has no corpus
    notes: list[str]
    record: dict[str, Any]  # all of it with provenance, for eval.json


def find_subject(name: str) -> Subject:
    """A run stands for its last model; a checkpoint's model knows its run."""
    folder = Path(name)
    if (folder / "config.yaml").is_file():
        folder = folder / "model"
        if not folder.is_dir():
            raise ConfigError(
                f"{name} is a run that is not complete; name one of its checkpoints: "
                f"{name}/checkpoints/step-.../model"
            )
    elif not folder.is_dir():
        require_folder(name)
        return Subject(name, None, None)
    elif not (folder / "config.json").is_file():
        raise ConfigError(
            f"{name} has neither config.yaml nor config.json: it is no run and no model. Give a "
            "run, a folder saved by save_pretrained, or a Hugging Face name"
        )
    run, step = run_of_model(folder) or (None, None)
    return Subject(str(folder), run, step)


def evaluate(
    subject: Subject, request: Request, corpus: Corpus | None, report: Report
) -> Evaluation:
    """Score the tasks, then the sources of the corpus, where there is one."""
    started = time.monotonic()
    using, documents = check_with(request.using), read_documents(request, report)
    config = None if subject.run is None else subject.run.config()
    device = pick_device(request.device)
    report("loading the model", 0, 0)
    scorer = open_scorer(
        subject.model,
        device=device,
        dtype=request.dtype,
        batch_size=request.batch_size,
        max_length=request.max_length,
        trained_length=config.data.seq_len if config else None,
        end_of_text=corpus.manifest.tokenizer.eot_id if corpus else None,
    )
    scores = evaluate_tasks(scorer, documents, using, report)
    sources: Row = {}
    if config is not None and corpus is not None:
        report("validation loss per source", 0, 0)
        sources = source_losses(scorer.model, corpus, config, device, request.batch_size)
    return _evaluation(
        scores,
        documents,
        sources,
        _provenance(subject, request, scorer, corpus)
        | {"seconds": round(time.monotonic() - started, 1)},
    )


def read_documents(request: Request, report: Report) -> list[Documents]:
    """The documents of every task asked for, each at most as many as its limit."""
    tasks = pick_tasks(list(request.tasks))
    limits = parse_limits(request.limit, tasks)
    found = []
    for task in tasks:
        report(f"reading {task.name}", 0, 0)
        folder = request.benchmarks
        documents = read_hub(task) if folder is None else read_folder(folder, task)
        found.append(documents.limited(limits[task.name]))
    return found


def source_losses(
    model: PerSampleLoss, corpus: Corpus, config: RunConfig, device: torch.device, batch_size: int
) -> Row:
    """Loss, perplexity and bits per byte of every source, on the blocks of the run's validations.

    Named as in metrics.jsonl, with the mean over sources, the natural-weighted one and the worst.
    """
    if model.vocab_size < corpus.vocab_size:
        raise ConfigError(
            f"the model knows {model.vocab_size} tokens, {corpus.directory} has "
            f"{corpus.vocab_size}; is it the corpus that the run was trained on?"
        )
    blocks_of = {
        source: validation_blocks(corpus, source, config.data.seq_len, config.eval.max_blocks)
        for source in corpus.sources
    }
    nats = validate(
        lambda token_BT: model(token_BT.to(device)),
        blocks_of,
        micro_batch_size=batch_size,
        rank=0,
        world_size=1,
        total=lambda sums: sums,
    )
    tokens, sizes = corpus.tokens_by_source("train"), corpus.bytes_per_token("validation")
    row = validation_row(0, nats, tokens, sizes)
    return {name.removeprefix("valid/"): x for name, x in row.items() if name != "step"}


def _evaluation(
    scores: list[TaskScore], documents: list[Documents], sources: Row, provenance: dict[str, Any]
) -> Evaluation:
    notes = [note for found in documents for note in found.notes]
    cut = ", ".join(f"{score.task} {score.truncated}" for score in scores if score.truncated)
    if cut:
        shown = provenance["max_length"]
        notes.append(f"texts that did not fit into {shown} tokens and lost their beginning: {cut}")
    overall, chance = average(scores), sum(score.chance for score in scores) / len(scores)
    tasks = {x.task: _task_record(x, y) for x, y in zip(scores, documents, strict=True)}
    record = {
        "format": "dograph-eval",
        "version": 1,
        "tasks": tasks,
        "average": {**asdict(overall), "chance": chance, "tasks": len(scores), "of": len(TASKS)},
        "sources": sources,
        "notes": notes,
        "provenance": provenance,
    }
    return Evaluation(
        scores=scores, average=overall, chance=chance, sources=sources, notes=notes, record=record
    )


def _task_record(score: TaskScore, found: Documents) -> dict[str, Any]:
    own = score.as_dict()
    del own["task"]
    return own | {
        "primary": found.task.primary,
        "split": found.split,
        "available": found.available,
        "files": found.files,
    }


def _provenance(
    subject: Subject, request: Request, scorer: Scorer, corpus: Corpus | None
) -> dict[str, Any]:
    folder = Path(subject.model)
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    environment = describe_environment()
    libraries = ["lm_eval", "datasets"] if request.using == "lm-eval" else []
    libraries += ["datasets"] if request.benchmarks is None and not libraries else []
    return {
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
        "environment": environment,
        "also": {name: version(name) for name in libraries},
    }
