"""An artefact from beginning to end: runs, evaluation, tables, verdicts, files. Resumable.

OUT/ask.json, plans/, cells/, compare.json   the comparison (dograph.compare); by size: OUT/<size>/
OUT/cells/*/eval.json                        downstream: what each model scored
OUT/reproduce.json                           every artefact that was made of these runs, by name
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dograph.compare.arms import Ask
from dograph.compare.cells import Say
from dograph.compare.findings import REPORT, CorpusFacts, as_json
from dograph.compare.session import forecast_lines, open_corpus, run_compare
from dograph.config import RunConfig, resolve_config
from dograph.data.corpus import Corpus, blocks_by_source, equal_shares
from dograph.errors import ConfigError
from dograph.eval.evaluate import EvalRequest, read_documents
from dograph.eval.gradients import LEAST_ROWS
from dograph.eval.scores import Report, check_with
from dograph.eval.tasks import pick_tasks
from dograph.files import plain, write_text
from dograph.models.presets import PRESETS
from dograph.plan.pool import Pool
from dograph.reproduce import paper
from dograph.reproduce.artefacts import ABOUT, ARTEFACTS, Artefact, Scale, Wanted
from dograph.reproduce.downstream import cost, downstream, evaluate_cells
from dograph.reproduce.losses import balance, model_scale, num_domains, objectives, validation_loss
from dograph.reproduce.seen import clusters, gradient_pca
from dograph.reproduce.verdicts import Reproduction, Study
from dograph.train.distributed import describe_environment, pick_device

FORMAT, VERSION = "dograph-reproduce", 1
RESULT = "reproduce.json"
MAKERS: dict[str, Callable[[Study], Reproduction]] = {
    "downstream": downstream,
    "validation-loss": validation_loss,
    "objectives": objectives,
    "num-domains": num_domains,
    "model-scale": model_scale,
    "gradient-pca": gradient_pca,
    "clusters": clusters,
    "cost": cost,
    "balance": balance,
}


def check(wanted: Wanted, asks: Mapping[str, Ask], request: EvalRequest, report: Report) -> Corpus:
    """Refuse before hours of training what could not be finished after them."""
    corpora = [open_corpus(ask) for ask in asks.values()]
    if wanted.artefact.kind == "downstream":
        if corpora[0].manifest.tokenizer.file is None:
            raise ConfigError(
                f"{corpora[0].directory} has no tokenizer, so its models could not be asked "
                "anything; prepare it with --tokenizer"
            )
        check_with(request.using)
        read_documents(request, report)
    if wanted.artefact.is_probed:
        config = next(iter(asks.values())).config
        have = blocks_by_source(corpora[0], "validation", config.data.seq_len)
        rows = equal_shares(have, config.probe.rows)
        # Two sources with rows enough are the least that can be apart.
        if sum(number >= LEAST_ROWS for number in rows.values()) < 2:
            raise ConfigError(
                f"probe.rows={config.probe.rows} on {corpora[0].directory} would give each source "
                f"{rows} rows, and two sources need {LEAST_ROWS} each to be compared; raise "
                "probe.rows, or hold out more text (blocks of "
                f"{config.data.seq_len} tokens: {have})"
            )
    return corpora[0]


def forecast(asks: Mapping[str, Ask], corpus: Corpus) -> Iterator[str]:
    """What it would take: cells, steps, tokens, FLOPs."""
    for size, ask in asks.items():
        name = f"{size}: " if size else ""
        yield f"{name}{ask.out}: {ask.config.tokens:,} tokens a run on {corpus.directory}"
        labels = [method.label for method in ask.methods]

        def without(refused: list[str], labels: list[str] = labels) -> str:
            others = ",".join(label for label in labels if label not in refused)
            return f"leave {', '.join(refused)} out: --methods {others}"

        yield from forecast_lines(ask, corpus, without)


def train(wanted: Wanted, asks: Mapping[str, Ask], pool: Pool, say: Say) -> Study:
    """Make the runs that are not there yet; tables of the same runs share their folder."""
    findings = {}
    for size, ask in asks.items():
        if size:
            say(f"{size}:")
        findings[size] = run_compare(ask, pool, say, shares_folder=True)
    return Study(wanted.artefact, wanted.scale, asks, findings)


# Settings that change numbers are listed, but for those that have a line of their own.
_PARTS = ("data", "model", "sketch", "optim", "train", "eval")
_TOLD = {
    *("data.corpus", "data.seq_len", "data.warn_epochs", "model.preset", "sketch.dim"),
    *("sketch.projection", "train.steps", "train.batch_size", "train.device"),
    *("train.micro_batch_size", "train.activation_checkpointing", "eval.every"),
}


def differences(study: Study) -> list[str]:
    """What differs between these runs and the paper's, a line each, from the settings."""
    artefact, ask = study.artefact, next(iter(study.asks.values()))
    ours, theirs = ask.config, resolve_config(artefact.preset, [])
    if artefact.sizes:
        models = ", ".join(_model(one.config) for one in study.asks.values())
        lines = [f"models: {models}; the paper: GPT-2 sizes that its figure does not name"]
    else:
        same = ours.model.preset == theirs.model.preset
        lines = [f"model: {_beside(_model(ours), None if same else _model(theirs))}"]
    runs = [
        f"{config.train.steps:,} steps of {config.train.batch_size} x {config.data.seq_len} = "
        f"{_short(config.tokens)} tokens"
        for config in (ours, theirs)
    ]
    lines.append(f"a run: {_beside(runs[0], None if runs[0] == runs[1] else runs[1])}")
    corpus = next(iter(study.findings.values())).corpus
    part = "20 % of " if artefact.is_probed else ""
    lines.append(
        f"corpus: {corpus.folder}, {_short(sum(corpus.tokens.values()))} tokens of "
        f"{len(corpus.tokens)} sources; paper: {part}{ABOUT[artefact.data]}. Unless it is the "
        "same text, levels do not compare; differences between methods are what to look at"
    )
    here, there = (config.model_dump(mode="json") for config in (ours, theirs))
    changed = []
    for name in (f"{part}.{name}" for part in _PARTS for name in here[part]):
        part, _, own = name.partition(".")
        pair = here[part][own], there[part][own]
        if name not in _TOLD and pair[0] != pair[1]:
            told = [f"{value:g}" if isinstance(value, float) else str(value) for value in pair]
            changed.append(f"{name} {told[0]} (the paper's preset {told[1]})")
    if changed:
        lines.append(f"settings: {', '.join(changed)}")
    numbers = ", ".join(map(str, ask.seeds))
    lines.append(f"seeds: {len(ask.seeds)} ({numbers}); the paper does not say how many it has")
    lines.append(
        "sampling: every source alike but for natural and for methods that plan; the paper says "
        "no more of it than Uniform, and its baselines' code draws like this"
    )
    if ask.proxy is not None:
        model, steps = ask.proxy.model, ask.proxy.train.steps
        lines.append(
            f"plans: proxies are {model.preset or model.path} of {steps:,} steps; the paper does "
            "not say what its were, and one plan serves all seeds"
        )
    if any(method.is_sketched for method in ask.methods):
        lines.append(
            f"sketches: {ours.sketch.dim:,} numbers, {ours.sketch.projection} by layer;"
            " the paper's dense Gaussian of 5,000 columns would fill terabytes"
        )
    if artefact.picture:
        lines.append(
            f"the paper prints a picture only ({artefact.where}): there are no numbers to "
            "set beside ours but those of its text"
        )
    return lines


def _beside(ours: str, theirs: str | None) -> str:
    return f"{ours}, as in the paper" if theirs is None else f"{ours}; paper: {theirs}"


def _model(config: RunConfig) -> str:
    preset = config.model.preset
    if preset is None:
        return str(config.model.path)
    return f"{preset} ({PRESETS[preset].layers} layers, {PRESETS[preset].width} wide)"


def _short(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactRecord:
    """What reproduce.json keeps of an artefact."""

    where: str  # in the paper
    picture_only: bool
    scale: Scale
    command: str | None
    seeds: list[int]
    corpus: CorpusFacts
    environment: dict[str, Any]
    device: str
    config: dict[str, dict[str, Any]]  # by model size
    proxy: dict[str, Any] | None
    mixers: dict[str, dict[str, Any]]  # by method
    comparisons: list[str]
    evaluation: dict[str, Any] | None  # what was asked of the models
    results: Mapping[str, Any]
    verdicts: list[dict[str, Any]]
    setup: list[str]  # what differs from the paper's
    errata: list[str]
    notes: list[str]
    failures: dict[str, str]


def finish(
    study: Study, request: EvalRequest, out: Path, report: Report
) -> tuple[Reproduction, ArtefactRecord]:
    """Evaluate, make the tables and the verdicts, and write them down."""
    artefact, ask = study.artefact, next(iter(study.asks.values()))
    evaluation: dict[str, Any] | None = None
    if artefact.kind == "downstream":
        there = replace(request, device=ask.config.train.device)
        scores = evaluate_cells(study.only, there, Corpus(ask.config.data.corpus), report)
        study = replace(study, scores=scores)
        evaluation = {
            "scorer": request.using,
            "benchmarks": None if request.benchmarks is None else str(request.benchmarks),
            "tasks": [task.name for task in pick_tasks(list(request.tasks))],
            "limit": request.limit,
            "dtype": request.dtype,
        }
    outcome, first = MAKERS[artefact.kind](study), next(iter(study.findings.values()))
    # Of what the comparison itself notes, that which speaks against its numbers.
    warnings = [
        f"{size}: {note}" if size else note
        for size, findings in study.findings.items()
        for note in findings.notes
        if note.startswith(("warning", "failed"))
    ]
    record = ArtefactRecord(
        where=artefact.where,
        picture_only=artefact.picture,
        scale=study.scale,
        command=ask.command,
        seeds=list(ask.seeds),
        corpus=first.corpus,
        environment=describe_environment(),
        device=str(pick_device(ask.config.train.device)),
        config={size: own.config.model_dump(mode="json") for size, own in study.asks.items()},
        proxy=first.proxy,
        mixers={method.label: dict(method.mixer) for method in ask.methods},
        comparisons=[str(own.out / REPORT) for own in study.asks.values()],
        evaluation=evaluation,
        results=outcome.data,
        verdicts=[claim.record() for claim in outcome.verdicts],
        setup=differences(study),
        errata=[f"{e.where}: {e.found}" for e in paper.errata(artefact.name)],
        notes=[*outcome.notes, *warnings],
        failures={k: v for f in study.findings.values() for k, v in f.failures.items()},
    )
    if not write_record(out / RESULT, artefact.name, plain(record)):
        kept = (
            f"{out / RESULT} keeps the table made before, which has these rows and more; this one "
            "is printed alone"
        )
        record = replace(record, notes=[*record.notes, kept])
    return outcome, record


def write_record(file: Path, name: str, record: Mapping[str, Any]) -> bool:
    """Beside the other artefacts of the same runs; not over a wider table, which stays."""
    there: dict[str, Any] = {}
    if file.is_file():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            there = found["artefacts"] if found["format"] == FORMAT else {}
            if name in there and _is_wider(there[name], record):
                return False
        except (ValueError, KeyError, TypeError):
            there = {}  # what a reader could not use either
    content = {"format": FORMAT, "version": VERSION, "artefacts": there | {name: record}}
    write_text(file, as_json(content))
    return True


def _is_wider(there: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether a stored table has all rows, seeds and sizes of this one and more, made alike."""
    old, new = (
        [set(table.get(part, ())) for part in ("mixers", "seeds", "config")]
        for table in (there, record)
    )
    if old == new or not all(own <= its for own, its in zip(new, old, strict=True)):
        return False
    config: Mapping[str, Any] = record.get("config", {})
    return all(there["config"][size] == config[size] for size in config) and all(
        there.get(part) == record.get(part) for part in ("evaluation", "scale")
    )


def print_list(console: Console) -> None:
    """Every name with its line."""
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("in the paper", overflow="fold")
    for artefact in ARTEFACTS.values():
        table.add_row(artefact.name, artefact.line, artefact.where)
    console.print(table, highlight=False)
    console.print("one of them: dograph reproduce NAME --dry-run", highlight=False)


def print_outcome(
    console: Console, artefact: Artefact, outcome: Reproduction, record: ArtefactRecord
) -> None:
    """Tables, what differs, the paper's own errors, notes, verdicts."""
    for sheet in outcome.sheets:
        # A title of the table itself would be folded into the table's width.
        console.print(f"{sheet.title}:", markup=False, highlight=False, soft_wrap=True)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for number, column in enumerate(sheet.columns):
            table.add_column(escape(column), justify="right" if number else "left", overflow="fold")
        for row in sheet.rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    lists: dict[str, Sequence[str]] = {
        "what differs in set-up:": record.setup,
        "in the paper itself:": record.errata,
        "notes:": record.notes,
        f"claims of the paper ({artefact.where}):": [claim.line for claim in outcome.verdicts],
    }
    for title, lines in lists.items():
        if lines:
            console.print(title, markup=False, highlight=False)
        for line in lines:
            console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)
