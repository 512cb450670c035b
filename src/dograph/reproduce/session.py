"""An artefact from beginning to end: runs, evaluation, tables, verdicts, files. Resumable.

OUT/ask.json, plans/, cells/, compare.json   the comparison (dograph.compare); by size: OUT/<size>/
OUT/cells/*/eval.json                        downstream: what each model scored
OUT/reproduce.json                           every artefact that was made of these runs, by name
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dograph.compare.arms import Ask, Method
from dograph.compare.cells import Cell, Plans, Say, lay_out, make_plans
from dograph.compare.findings import Findings, as_json, find
from dograph.compare.findings import Outcome as CellOutcome
from dograph.compare.session import REPORT, forecast_lines, open_corpus, train_cells, write_findings
from dograph.config import RunConfig
from dograph.data.corpus import Corpus, blocks_by_source, equal_shares
from dograph.errors import ConfigError
from dograph.eval.evaluate import Request, read_documents
from dograph.eval.gradients import LEAST_ROWS
from dograph.eval.harness import Report, check_with
from dograph.eval.tasks import pick_tasks
from dograph.files import write_text
from dograph.plan.jobs import DamagedResultError, Result, read_result
from dograph.plan.pool import Pool
from dograph.reproduce import paper
from dograph.reproduce.artefacts import ARTEFACTS, Artefact, Kind
from dograph.reproduce.asks import Wanted, differences
from dograph.reproduce.downstream import balance, cost, downstream, evaluate_cells
from dograph.reproduce.losses import model_scale, num_domains, objectives, validation_loss
from dograph.reproduce.seen import clusters, gradient_pca
from dograph.reproduce.verdicts import Outcome, Sheet, Study
from dograph.train.distributed import describe_environment, pick_device

# Runs in a folder that several artefacts share, or that holds more than is asked for now.
#
# Only what is asked for is trained and shown. OUT/compare.json has every finished cell of the
# folder, so that a look at some rows takes none away.


def run_asked(ask: Ask, pool: Pool, say: Say) -> Findings:
    """Make what is asked for and not there yet, and return what that came to."""
    corpus = open_corpus(ask)
    whole = ask.join_folder(corpus)
    whole = replace(whole, methods=tuple(_known(whole.methods, say)))
    plans = make_plans(ask, pool, say)
    cells = lay_out(ask, corpus, plans)
    outcome = train_cells(cells, corpus, pool)
    findings = find(ask, corpus, plans, cells, outcome)
    everything = findings
    if (whole.methods, whole.seeds) != (ask.methods, ask.seeds):
        everything = _everything(whole, corpus, pool, plans, cells, outcome)
    write_findings(ask.out, everything)
    return findings


def _known(methods: Iterable[Method], say: Say) -> Iterator[Method]:
    """Those whose mixers can be built; a mixer of the user's own may have moved since."""
    for method in methods:
        try:
            method.is_planned  # noqa: B018  builds it
        except ConfigError as error:
            say(f"{method.label} stays in cells/, but is not in {REPORT} this time: {error}")
        else:
            yield method


def _everything(
    whole: Ask,
    corpus: Corpus,
    pool: Pool,
    plans: Plans,
    cells: Sequence[Cell],
    outcome: CellOutcome,
) -> Findings:
    """Of what was asked for, and of the other finished cells of the folder."""
    both = Plans(_made_before(whole, pool).made | plans.made, plans.failed)
    asked, laid = {cell.label for cell in cells}, lay_out(whole, corpus, both)
    others = {
        cell.label: result
        for cell in laid
        if cell.label not in asked and (result := _finished(cell, corpus)) is not None
    }
    shown = [cell for cell in laid if cell.label in asked or cell.label in others]
    labels = {cell.method for cell in shown}
    methods = tuple(method for method in whole.methods if method.label in labels)
    results = CellOutcome(outcome.results | others, outcome.failures)
    found = find(replace(whole, methods=methods), corpus, both, shown, results)
    return found | {"proxy": found["proxy"] or _told_proxy(whole.out)}


def _made_before(whole: Ask, pool: Pool) -> Plans:
    """Plans that are on disk: they are read, none is made."""
    there = [
        method
        for method in whole.methods
        if method.is_planned and (whole.out / "plans" / f"{method.label}.json").is_file()
    ]
    return make_plans(replace(whole, methods=tuple(there)), pool, _unheard)


def _unheard(text: str) -> None:
    """What an old plan says against itself was said when it was made."""


def _finished(cell: Cell, corpus: Corpus) -> Result | None:
    try:
        return read_result(Path(cell.config.run), corpus)
    except DamagedResultError:
        return None


def _told_proxy(out: Path) -> Findings | None:
    """What the proxies of the folder's plans were; what is asked for now may have none."""
    file = out / REPORT
    found: Findings | None = json.loads(file.read_text())["proxy"] if file.is_file() else None
    return found


FORMAT, VERSION = "dograph-reproduce", 1
RESULT = "reproduce.json"
MAKERS: dict[Kind, Callable[[Study], Outcome]] = {
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
Record = dict[str, Any]


def check(wanted: Wanted, asks: Mapping[str, Ask], request: Request, report: Report) -> Corpus:
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
        _check_rows(next(iter(asks.values())).config, corpora[0])
    return corpora[0]


def _check_rows(config: RunConfig, corpus: Corpus) -> None:
    """Two sources with rows enough are the least that can be apart."""
    have = blocks_by_source(corpus, "validation", config.data.seq_len)
    rows = equal_shares(have, config.probe.rows)
    if sum(number >= LEAST_ROWS for number in rows.values()) < 2:
        raise ConfigError(
            f"probe.rows={config.probe.rows} on {corpus.directory} would give each source {rows} "
            f"rows, and two sources need {LEAST_ROWS} each to be compared; raise probe.rows, or "
            f"hold out more text (blocks of {config.data.seq_len} tokens: {have})"
        )


def forecast(asks: Mapping[str, Ask], corpus: Corpus) -> Iterator[str]:
    """What it would take: cells, steps, tokens, FLOPs."""
    for size, ask in asks.items():
        name = f"{size}: " if size else ""
        yield f"{name}{ask.out}: {ask.config.tokens:,} tokens a run on {corpus.directory}"
        labels = [method.label for method in ask.methods]
        yield from forecast_lines(ask, corpus, partial(_without, labels))


def _without(labels: Sequence[str], refused: Sequence[str]) -> str:
    others = ",".join(label for label in labels if label not in refused)
    return f"leave {', '.join(refused)} out: --methods {others}"


def train(wanted: Wanted, asks: Mapping[str, Ask], pool: Pool, say: Say) -> Study:
    """Make the runs that are not there yet."""
    findings = {}
    for size, ask in asks.items():
        if size:
            say(f"{size}:")
        findings[size] = run_asked(ask, pool, say)
    return Study(wanted.artefact, wanted.scale, asks, findings)


def finish(study: Study, request: Request, out: Path, report: Report) -> tuple[Outcome, Record]:
    """Evaluate, make the tables and the verdicts, and write them down."""
    if study.artefact.kind == "downstream":
        ask = next(iter(study.asks.values()))
        there = replace(request, device=ask.config.train.device)
        scores = evaluate_cells(study.only, there, Corpus(ask.config.data.corpus), report)
        study = replace(study, scores=scores)
    outcome = MAKERS[study.artefact.kind](study)
    record = _record(study, outcome, request)
    if not write_record(out / RESULT, study.artefact.name, record):
        record["notes"].append(
            f"{out / RESULT} keeps the table made before, which has these rows and more; this one "
            "is printed alone"
        )
    return outcome, record


def _record(study: Study, outcome: Outcome, request: Request) -> Record:
    artefact = study.artefact
    first = next(iter(study.findings.values()))
    asked = next(iter(study.asks.values()))
    return {
        "where": artefact.where,
        "picture_only": artefact.picture,
        "scale": study.scale,
        "command": asked.command,
        "seeds": list(asked.seeds),
        "corpus": first["corpus"],
        "environment": describe_environment(),
        "device": str(pick_device(asked.config.train.device)),
        "config": {size: ask.config.model_dump(mode="json") for size, ask in study.asks.items()},
        "proxy": first["proxy"],
        "mixers": {method.label: dict(method.mixer) for method in asked.methods},
        "comparisons": [str(ask.out / "compare.json") for ask in study.asks.values()],
        "evaluation": _asked(request) if artefact.kind == "downstream" else None,
        "results": dict(outcome.data),
        "verdicts": [verdict.record() for verdict in outcome.verdicts],
        "setup": differences(study),
        "errata": [f"{e.where}: {e.found}" for e in paper.errata(artefact.name)],
        "notes": [*outcome.notes, *_warnings(study)],
        "failures": {k: v for f in study.findings.values() for k, v in f["failures"].items()},
    }


def _asked(request: Request) -> Record:
    folder = None if request.benchmarks is None else str(request.benchmarks)
    return {
        "scorer": request.using,
        "benchmarks": folder,
        "tasks": [task.name for task in pick_tasks(list(request.tasks))],
        "limit": request.limit,
        "dtype": request.dtype,
    }


def _warnings(study: Study) -> Iterator[str]:
    """Of what the comparison itself notes, that which speaks against its numbers."""
    for size, findings in study.findings.items():
        for note in findings["notes"]:
            if note.startswith(("warning", "failed")):
                yield f"{size}: {note}" if size else note


def write_record(file: Path, name: str, record: Record) -> bool:
    """Beside the other artefacts of the same runs; not over a wider table, which stays."""
    there: Record = {}
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


def _is_wider(there: Record, record: Record) -> bool:
    """Whether a stored table has all rows, seeds and sizes of this one and more, made alike."""
    old, new = (
        [set(table.get(part, ())) for part in ("mixers", "seeds", "config")]
        for table in (there, record)
    )
    if old == new or not all(own <= its for own, its in zip(new, old, strict=True)):
        return False
    old_config, config = there.get("config", {}), record.get("config", {})
    return (
        all(old_config[size] == config[size] for size in config)
        and there.get("evaluation") == record.get("evaluation")
        and there.get("scale") == record.get("scale")
    )


# What a terminal shows: tables, what differs, the paper's own errors, verdicts.


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
    console: Console, artefact: Artefact, outcome: Outcome, record: Mapping[str, Any]
) -> None:
    for sheet in outcome.sheets:
        # A title of the table itself would be folded into the table's width.
        console.print(f"{sheet.title}:", markup=False, highlight=False, soft_wrap=True)
        console.print(rich_table(sheet))
    _lines(console, "what differs in set-up:", record["setup"])
    _lines(console, "in the paper itself:", record["errata"])
    _lines(console, "notes:", record["notes"])
    lines = [verdict.line for verdict in outcome.verdicts]
    _lines(console, f"claims of the paper ({artefact.where}):", lines)


def rich_table(sheet: Sheet) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(sheet.columns):
        table.add_column(escape(column), justify="right" if number else "left", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _lines(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(title, markup=False, highlight=False)
    for line in lines:
        console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)
