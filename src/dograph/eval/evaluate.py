"""What `dograph eval` does: the nine tasks and the loss per source of one model, with provenance.

The model is a run, one of its checkpoints, a folder saved by save_pretrained, or a name of the
hub. A run also has a corpus, so its sources' validation losses are part of the result.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from rich.markup import escape
from rich.table import Table

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.eval.recorded import loss_cells, number_table
from dograph.eval.scores import PromptEncoder, Report, Scorer, average, check_with, evaluate_tasks
from dograph.eval.tasks import TASKS, Documents, parse_limits, pick_tasks, read_folder, read_hub
from dograph.files import sha256_of
from dograph.models.build import require_folder
from dograph.models.loss import PerSampleLoss
from dograph.train.distributed import World, describe_environment, pick_device
from dograph.train.metrics import SUMMARIES, Row, validate, validation_blocks, validation_row
from dograph.train.run_dir import RunDirectory, run_of_model

Precision = Literal["float32", "bfloat16"]
Evaluation = dict[str, Any]  # the content of eval.json
POSITIONS = 2048  # where a model does not say how many it has, as in the harness


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """What to evaluate, and how."""

    benchmarks: Path | None = None  # None: the hub
    tasks: tuple[str, ...] = ()  # none: all nine
    limit: str | None = None
    using: str = "builtin"
    batch_size: int = 32
    device: str = "auto"
    dtype: Precision = "float32"
    max_length: int | None = None


def open_scorer(
    subject: Subject, request: EvalRequest, corpus: Corpus | None, trained_length: int | None
) -> Scorer:
    """A folder saved by save_pretrained, or a name of the hub, ready to score.

    It is shown `max_length` tokens at once; where that is not given, as many as it was trained
    on, for positions beyond are as good as noise; where that is not known, all its positions.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would tear our own progress line
    name, length, device = subject.model, request.max_length, pick_device(request.device)
    if Path(name).is_dir() and not list(Path(name).glob("tokenizer*")):
        raise ConfigError(
            f"{name} has no tokenizer, so it cannot be asked anything; put its tokenizer.json "
            "there. A run has one where its corpus was prepared from text or with --tokenizer"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer of {name} could not be loaded: {error}") from error
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, request.dtype))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} could not be loaded: {error}. Give a run, a folder saved by save_pretrained, "
            "or a Hugging Face name"
        ) from error
    positions = getattr(model.config, "max_position_embeddings", None) or POSITIONS
    if length is not None and not 2 <= length <= positions:
        raise ConfigError(f"data.seq_len={length}, but {name} has {positions} positions")
    end_of_text = corpus.manifest.tokenizer.eot_id if corpus else None
    return Scorer(
        model=PerSampleLoss(model.to(device).eval(), model.config.vocab_size),
        encoder=PromptEncoder.of(tokenizer, end_of_text),
        max_length=length or min(trained_length or positions, positions),
        batch_size=request.batch_size,
    )


def read_documents(request: EvalRequest, report: Report) -> list[Documents]:
    """The documents of every task asked for, each at most as many as its limit."""
    tasks, folder = pick_tasks(request.tasks), request.benchmarks
    limits = parse_limits(request.limit, tasks)
    found = []
    for task in tasks:
        report(f"reading {task.name}", 0, 0)
        documents = read_hub(task) if folder is None else read_folder(folder, task)
        found.append(documents.limited(limits[task.name]))
    return found


def evaluate(
    subject: Subject, request: EvalRequest, corpus: Corpus | None, report: Report
) -> Evaluation:
    """Score the tasks, then the sources of the corpus, where there is one."""
    started = time.monotonic()
    check_with(request.using)
    documents = read_documents(request, report)
    config = None if subject.run is None else subject.run.config()
    report("loading the model", 0, 0)
    scorer = open_scorer(subject, request, corpus, config.data.seq_len if config else None)
    scores = evaluate_tasks(scorer, documents, request.using, report)
    sources: Row = {}
    if config is not None and corpus is not None:
        report("validation loss per source", 0, 0)
        sources = source_losses(scorer, corpus, config)
    notes = [note for found in documents for note in found.notes]
    if cut := ", ".join(f"{score.task} {score.truncated}" for score in scores if score.truncated):
        shown = scorer.max_length
        notes.append(f"texts that did not fit into {shown} tokens and lost their beginning: {cut}")
    tasks = {}
    for score, found in zip(scores, documents, strict=True):
        tasks[score.task] = asdict(score) | {
            "primary": found.task.primary,
            "split": found.split,
            "available": found.available,
            "files": found.files,
        }
        del tasks[score.task]["task"]
    chance = sum(score.chance for score in scores) / len(scores)
    counts = {"chance": chance, "tasks": len(scores), "of": len(TASKS)}
    provenance = _provenance(subject, request, scorer, corpus)
    return {
        "format": "dograph-eval",
        "version": 1,
        "tasks": tasks,
        "average": asdict(average(scores)) | counts,
        "sources": sources,
        "notes": notes,
        "provenance": provenance | {"seconds": round(time.monotonic() - started, 1)},
    }


def source_losses(scorer: Scorer, corpus: Corpus, config: RunConfig) -> Row:
    """Loss, perplexity and bits per byte of every source, on the blocks of the run's validations.

    Named as in metrics.jsonl, with the mean over sources, the natural-weighted one and the worst.
    """
    model = scorer.model
    if model.vocab_size < corpus.vocab_size:
        raise ConfigError(
            f"the model knows {model.vocab_size} tokens, {corpus.directory} has "
            f"{corpus.vocab_size}; is it the corpus that the run was trained on?"
        )
    device = model.model.device
    blocks_of = validation_blocks(corpus, config.data.seq_len, config.eval.max_samples_per_source)
    nats, _ = validate(
        lambda token_BT: model(token_BT.to(device)),
        blocks_of,
        scorer.batch_size,
        World(rank=0, size=1, device=device),
    )
    row = validation_row(0, nats, corpus)
    return {name.removeprefix("valid/"): x for name, x in row.items() if name != "step"}


def _provenance(
    subject: Subject, request: EvalRequest, scorer: Scorer, corpus: Corpus | None
) -> dict[str, Any]:
    weights = sorted(Path(subject.model).glob("*.safetensors"))
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
        "environment": describe_environment(),
        "also": {name: version(name) for name in libraries},
    }


# Tables of `dograph eval`: tasks with their standard errors, and sources.


def task_table(found: Evaluation) -> Table:
    """Accuracies in per cent with standard errors, and what guessing would score."""
    columns = ("task", "n", "acc", "acc_norm", "chance", "bits/B", "ppl")
    table = number_table("downstream tasks", *columns, left=("task",))

    def cell(mean: Mapping[str, Any] | None, shape: str = ".1f", scale: float = 100) -> str:
        if mean is None:
            return ""
        error = "" if mean["se"] is None else f" ± {scale * mean['se']:{shape}}"
        return f"{scale * mean['value']:{shape}}{error}"

    for name, task in found["tasks"].items():
        items, available = task["items"], task["available"]
        table.add_row(
            name,
            str(items) if items == available else f"{items} of {available}",
            cell(task["acc"]),
            cell(task["acc_norm"]),
            f"{100 * task['chance']:.1f}",
            cell(task["bits_per_byte"], ".3f", 1),
            cell(task["perplexity"], ".4g", 1),
            end_section=name == list(found["tasks"])[-1],
        )
    average, num = found["average"], len(found["tasks"])
    tasks = "1 task" if num == 1 else f"{num} tasks"
    table.add_row("average", tasks, "", cell(average), f"{100 * average['chance']:.1f}")
    return table


def source_table(found: Evaluation) -> Table:
    """Validation loss of each source of the run's corpus, and their summaries."""
    columns, sources = ("source", "nats", "ppl", "bits/B"), found["sources"]
    table = number_table("validation loss per source", *columns, left=("source",))
    names = [x.removesuffix("/loss_nats") for x in sources if x.endswith("/loss_nats")]
    names = [name for name in names if name not in SUMMARIES]
    for name in [*names, *SUMMARIES]:
        table.add_row(escape(name), *loss_cells(sources, name), end_section=name == names[-1])
    return table
