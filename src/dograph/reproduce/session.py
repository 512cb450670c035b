"""An artefact from start to end: runs, evaluation, tables, verdicts, files. Resumable.

OUT/ask.json, plans/, cells/, compare.json   the comparison (dograph.compare); by size: OUT/<size>/
OUT/cells/*/eval.json                        downstream: the scores of each model
OUT/reproduce.json                           every artefact made of these runs, by name
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dograph.compare.arms import Ask, typed
from dograph.compare.cells import Say
from dograph.compare.findings import REPORT, Findings
from dograph.compare.session import open_corpus, run_compare
from dograph.config import resolve_config
from dograph.data.corpus import Corpus, blocks_by_source, equal_shares
from dograph.errors import ConfigError
from dograph.eval import evaluate
from dograph.eval.gradients import LEAST_ROWS
from dograph.eval.scores import Report
from dograph.eval.tasks import pick_tasks
from dograph.files import plain, sha256_of, write_json
from dograph.plan.pool import Pool
from dograph.records import read_record
from dograph.reproduce import outcomes, seen
from dograph.reproduce.artefacts import DATASETS, Artefact, Wanted
from dograph.reproduce.verdicts import Reproduction, Study
from dograph.train.distributed import describe_environment, pick_device

FORMAT, VERSION = "dograph-reproduce", 1
RESULT = "reproduce.json"
MAKERS: dict[str, Callable[[Study], Reproduction]] = {
    "downstream": outcomes.downstream,
    "validation-loss": outcomes.validation_loss,
    "objectives": outcomes.objectives,
    "num-domains": outcomes.num_domains,
    "gradient-pca": seen.gradient_pca,
    "clusters": seen.clusters,
    "cost": outcomes.cost,
}


def check(wanted: Wanted, ask: Ask, request: evaluate.EvalRequest, report: Report) -> Corpus:
    """Refuse before training whatever would fail after hours of it."""
    corpus = open_corpus(ask)
    if wanted.artefact.kind == "downstream":
        if corpus.manifest.tokenizer.file is None:
            raise ConfigError(
                f"{corpus.directory} has no tokenizer, so its models cannot answer questions; "
                "prepare it with --tokenizer"
            )
        evaluate.read_documents(request, report)
    if wanted.artefact.is_probed:
        config = ask.config
        blocks = blocks_by_source(corpus, "validation", config.data.seq_len)
        rows = equal_shares(blocks, config.probe.rows)
        if sum(number >= LEAST_ROWS for number in rows.values()) < 2:
            raise ConfigError(
                f"probe.rows={config.probe.rows} on {corpus.directory} would give each source "
                f"{rows} rows, and two sources need {LEAST_ROWS} each to be compared; raise "
                "probe.rows, or hold out more text (blocks of "
                f"{config.data.seq_len} tokens: {blocks})"
            )
    return corpus


def train(wanted: Wanted, asks: Mapping[str, Ask], pool: Pool, say: Say) -> dict[str, Study]:
    """Train the missing runs, by size; artefacts with the same runs share their folder."""
    studies = {}
    for size, ask in asks.items():
        if size:
            say(f"{size}:")
        findings = run_compare(ask, pool, say, shares_folder=True)
        studies[size] = Study(wanted.artefact, wanted.scale, ask, findings)
    return studies


def evaluate_cells(
    findings: Findings, request: evaluate.EvalRequest, corpus: Corpus, report: Report
) -> dict[str, Mapping[str, Any]]:
    """The content of eval.json of every finished cell; a stored result of this request is kept."""
    scores: dict[str, Mapping[str, Any]] = {}
    cells = findings.finished
    for count, cell in enumerate(cells, start=1):
        subject = evaluate.find_subject(cell.run)
        file = subject.result_file
        assert file is not None, "a cell is a run, which keeps its result"
        seq_len = findings.config["data"]["seq_len"]
        stored = stored_scores(file, request, seq_len, Path(subject.model))
        if stored is None:
            report(f"scoring {cell.label}", count, len(cells))  # one line per model, not per task
            stored = evaluate.evaluate(subject, request, corpus, lambda stage, done, total: None)
            write_json(file, stored)
        scores[cell.label] = stored
    return scores


def stored_scores(
    file: Path, request: evaluate.EvalRequest, seq_len: int, model: Path
) -> Mapping[str, Any] | None:
    """A complete result of the same request and the same weights, else None.

    Batch size and device may differ. Without a `max_length` in the request, a run sees as many
    tokens as it was trained on. A cell that was trained again has other weights than the result.
    """
    stored: Mapping[str, Any] | None = read_record(file, evaluate.checked_result)
    if stored is None:
        return None
    provenance = stored["provenance"]
    asked = _scoring(request) | {"max_length": request.max_length or seq_len}
    made = {name: provenance.get(name) for name in asked} | {"tasks": list(stored["tasks"])}
    if made != asked:
        return None
    # Digests last: they read the whole model.
    digests = {file.name: sha256_of(file) for file in sorted(model.glob("*.safetensors"))}
    return stored if provenance["weights"] == (digests or None) else None


def _scoring(request: evaluate.EvalRequest) -> dict[str, Any]:
    """What decides the scores of a model, under the names of eval.json."""
    return {
        "scorer": request.using,
        "benchmarks": None if request.benchmarks is None else str(request.benchmarks),
        "tasks": [task.name for task in pick_tasks(list(request.tasks))],
        "limit": request.limit,
        "dtype": request.dtype,
    }


# Settings that change numbers are listed, except those that have a line of their own.
_PARTS = {"data", "model", "sketch", "optim", "train", "eval"}
_NOT_LISTED = {
    *("data.corpus", "data.warn_epochs", "train.device", "eval.every"),
    *("train.micro_batch_size", "train.activation_checkpointing"),
}


def setup_differences(study: Study) -> Iterator[str]:
    """What differs between these runs and the paper's, one line each.

    What differs in every run (sampling, the sketch, pictures): docs/reproduce.md.
    """
    artefact, ask = study.artefact, study.ask
    ours, theirs = ask.config, resolve_config(f"paper-{artefact.model}", [])
    dumps = (config.model_dump(mode="json", include=_PARTS) for config in (ours, theirs))
    here, there = (dict(typed(values)) for values in dumps)
    not_listed = _NOT_LISTED | ({"model.preset"} if artefact.sizes else set())
    if changed := [
        f"{name} {value} (paper's preset: {there.get(name)})"
        for name, value in here.items()
        if name not in not_listed and value != there.get(name)
    ]:
        yield f"settings: {', '.join(changed)}"
    yield f"a run: {ours.tokens:,} tokens; paper: {theirs.tokens:,}"
    corpus = study.findings.corpus
    part = "20 % of " if artefact.is_probed else ""
    yield (
        f"corpus: {corpus.folder}, {sum(corpus.tokens.values()):,} tokens of {len(corpus.tokens)} "
        f"sources; paper: {part}{DATASETS[artefact.data].about}. Unless it is the same text, "
        "compare only differences between methods, not levels"
    )
    seeds = ", ".join(map(str, ask.seeds))
    yield f"seeds: {len(ask.seeds)} ({seeds}); the paper does not say how many it has"
    if ask.proxy is not None:
        proxy, steps = ask.proxy.model.preset or ask.proxy.model.path, ask.proxy.train.steps
        yield (
            f"plans: proxies are {proxy} of {steps:,} steps, with one plan for all seeds; the "
            "paper does not describe its proxies"
        )


def finish(
    studies: Mapping[str, Study], request: evaluate.EvalRequest, out: Path, report: Report
) -> Reproduction:
    """Evaluate, make the tables and the verdicts, and write reproduce.json."""
    study = next(iter(studies.values()))  # others differ only in the model
    artefact, ask, findings = study.artefact, study.ask, study.findings
    evaluation: dict[str, Any] | None = None
    if artefact.kind == "downstream":
        request = replace(request, device=ask.config.train.device)
        scores = evaluate_cells(findings, request, Corpus(ask.config.data.corpus), report)
        study = replace(study, scores=scores)
        evaluation = _scoring(request)
    outcome = outcomes.model_scale(studies) if artefact.sizes else MAKERS[artefact.kind](study)
    notes, failures = list(outcome.notes), dict[str, str]()
    for size, own in studies.items():
        kept = [n for n in own.findings.notes if n.startswith(("warning", "failed", "plan of"))]
        notes += [f"{size}: {note}" if size else note for note in kept]
        failures |= {str(Path(size, cell)): why for cell, why in own.findings.failures.items()}
    setup = list(setup_differences(study))
    outcome = replace(outcome, setup=setup, notes=notes, failures=failures)
    record = {
        "where": artefact.where,
        "picture_only": artefact.where.startswith("fig:"),
        "scale": study.scale,
        "command": ask.command,
        "seeds": ask.seeds,
        "corpus": findings.corpus,
        "environment": describe_environment(),
        "device": str(pick_device(ask.config.train.device)),
        "config": {size: own.ask.config.model_dump(mode="json") for size, own in studies.items()},
        "proxy": findings.proxy,
        "mixers": {method.label: method.mixer for method in ask.methods},
        "comparisons": [str(own.ask.out / REPORT) for own in studies.values()],
        "evaluation": evaluation,
        "results": outcome.data,
        "verdicts": [claim.record() for claim in outcome.verdicts],
        "setup": outcome.setup,
        "notes": outcome.notes,
        "failures": outcome.failures,
    }
    write_record(out / RESULT, artefact.name, record)
    return outcome


def write_record(file: Path, name: str, record: Mapping[str, Any]) -> None:
    """Put it beside the other artefacts of the same runs, in place of an earlier one of its name.

    A file that cannot be read is written anew.
    """
    content: dict[str, Any] = read_record(file, dict) or {}
    stored = content.get("artefacts") if content.get("format") == FORMAT else None
    artefacts = stored if isinstance(stored, dict) else {}
    own = {"format": FORMAT, "version": VERSION, "artefacts": artefacts | {name: record}}
    write_json(file, plain(own))


def print_outcome(console: Console, artefact: Artefact, outcome: Reproduction) -> None:
    """Tables, differences in set-up, notes, verdicts."""
    for table in outcome.tables:
        console.print(table)
    lists: dict[str, Sequence[str]] = {
        "differences to the paper's set-up:": outcome.setup,
        "notes:": outcome.notes,
        f"claims of the paper ({artefact.where}; its inconsistencies: docs/reproduce.md):": [
            claim.line for claim in outcome.verdicts
        ],
    }
    for title, lines in lists.items():
        if lines:
            text = "\n- ".join([title, *lines])
            console.print(text, markup=False, highlight=False, soft_wrap=True)
