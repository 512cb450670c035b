"""A comparison: plans, then cells through a pool, then what they came to. Resumable throughout.

OUT/ask.json       what was asked; the same command goes on
OUT/plans/         mixtures of the methods that plan, and what they cost
OUT/cells/         one run directory for each method and seed
OUT/compare.json   everything that was found
OUT/methods.csv    one row a method
OUT/cells.csv      one row a cell
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, Say, lay_out, make_plans
from dograph.compare.findings import (
    REPORT,
    CellFindings,
    Contrast,
    Findings,
    MethodFindings,
    as_json,
    find,
)
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, DographError
from dograph.files import write_text
from dograph.mixers.registry import build_mixer
from dograph.plan.jobs import DamagedResultError, Job, JobProgress, Result, read_result
from dograph.plan.lab import forecast_plan
from dograph.plan.pool import JobError, Pool
from dograph.progress import duration
from dograph.stats import METRICS
from dograph.train.assembly import CorpusLab, open_sampler
from dograph.train.forecast import EFFICIENCY, measure_matmul, planned_epochs

METHODS, CELLS = "methods.csv", "cells.csv"
SOURCES_ACROSS = 5  # columns of the table by source that fit beside each other


def run_compare(ask: Ask, pool: Pool, say: Say, *, shares_folder: bool = False) -> Findings:
    """Make what is not there yet; write and return what was found.

    A plan or cell that fails is named in the findings, and all others are made. A folder that is
    shared may hold more than is asked for: only what is asked for is trained and returned, and
    compare.json has every finished cell, so that a look at some rows takes none away.
    """
    corpus = open_corpus(ask)
    whole = ask.join_folder(corpus) if shares_folder else ask.take_folder(corpus)
    plans = make_plans(ask, pool, say)
    cells = lay_out(ask, corpus, plans)
    results, failures = train_cells(cells, corpus, pool)
    findings = everything = find(ask, corpus, cells, results, failures)
    known = []
    for method in whole.methods:
        try:
            method.built()  # a mixer of the user's own may have moved
            known.append(method)
        except ConfigError as error:
            say(f"{method.label} stays in cells/, but is not in {REPORT} this time: {error}")
    if (tuple(known), whole.seeds) != (ask.methods, ask.seeds):
        # Plans on disk are read, none is made; what they say was said when they were made.
        there = [m for m in known if (ask.out / "plans" / f"{m.label}.json").is_file()]
        plans = make_plans(replace(whole, methods=tuple(there)), pool, lambda text: None) | plans
        asked, shown = {cell.label for cell in cells}, []
        for cell in lay_out(replace(whole, methods=tuple(known)), corpus, plans):
            result = None if cell.label in asked else _kept(cell, corpus)
            if result is not None:
                results[cell.label] = result
            if cell.label in asked or result is not None:
                shown.append(cell)
        labels = {cell.method for cell in shown}
        methods = tuple(method for method in known if method.label in labels)
        everything = find(replace(whole, methods=methods), corpus, shown, results, failures)
        if everything.proxy is None and (ask.out / REPORT).is_file():
            # What the proxies of the folder's plans were; what is asked for now may have none.
            proxy = json.loads((ask.out / REPORT).read_text(encoding="utf-8"))["proxy"]
            everything = replace(everything, proxy=proxy)
    write_findings(ask.out, everything)
    return findings


def open_corpus(ask: Ask) -> Corpus:
    """The corpus, on which there is a loss to compare and from which every method can draw."""
    corpus = Corpus(ask.config.data.corpus)
    if not corpus.validation:
        raise ConfigError(
            f"{corpus.directory} has no validation text, so there is no loss to compare; prepare "
            "it with some held out"
        )
    for method in ask.methods:
        if method.is_planned:
            continue
        # A source that is misspelt should not be told by the last cell, days later.
        config = method.config(ask.config)
        mixer = build_mixer(config.mixer.name, config.mixer.options)
        sampler = open_sampler(config, corpus)
        try:
            sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), reason="plan")
            planned_epochs(config, sampler, mixer)  # what is drawn later, too
        except DographError as error:
            raise ConfigError(f"{method.label}: {error}") from error
    return corpus


def train_cells(
    cells: Sequence[Cell],
    corpus: Corpus,
    pool: Pool,
    on_done: Callable[[Cell, Result], None] = lambda cell, result: None,
) -> tuple[dict[str, Result], dict[str, str]]:
    """Make every cell that is not there: results and failures, by label.

    Cells that fail are left out, and the rest go on. `on_done` is told of each that is made now.
    """
    failures = {cell.label: cell.problem for cell in cells if cell.problem}
    todo = {cell.label: cell for cell in cells if not cell.problem}
    kept = {label: _kept(cell, corpus) for label, cell in todo.items()}
    results = {label: result for label, result in kept.items() if result is not None}
    todo = {label: cell for label, cell in todo.items() if label not in results}
    if not todo:
        return results, failures
    done = len(results)
    with JobProgress("cells", total=done + len(todo), cached=done) as progress:

        def on_result(job: Job, result: Result) -> None:
            results[job.label] = result
            progress.on_done(job, result)
            on_done(todo[job.label], result)

        while left := todo.keys() - results.keys() - failures.keys():
            jobs = [Job(label, cell.config) for label, cell in todo.items() if label in left]
            try:
                pool.run(jobs, on_result, progress.on_start, progress.on_death)
            except JobError as error:
                failures[error.job.label] = str(error)
                progress.on_failure(str(error))
    return results, failures


def _kept(cell: Cell, corpus: Corpus) -> Result | None:
    try:
        return read_result(Path(cell.config.run), corpus)
    except DamagedResultError:
        return None  # the pool makes it anew


def forecast_lines(
    ask: Ask,
    corpus: Corpus,
    without: Callable[[list[str]], str] = lambda own: f"leave {', '.join(own)} out of --mixers",
) -> Iterator[str]:
    """What it would cost: cells, FLOPs, a guess of the time; plans by their first proxies.

    `without` tells the user how to do without methods whose plans are refused.
    """
    plans: dict[str, str] = {}
    refused: dict[str, ConfigError] = {}
    for method in ask.methods:  # first: a refusal should not come after half of it
        if method.is_planned:
            assert ask.proxy is not None
            try:
                target = method.config(ask.config)
                plans[method.label] = forecast_plan(target, ask.proxy, lab=ask.lab)
            except ConfigError as error:
                refused[method.label] = error
    if refused:  # all of them at once
        told = "\n".join(f"{label}: {error}" for label, error in refused.items())
        raise ConfigError(f"{told}\nOr {without(list(refused))}")
    cells = lay_out(ask, corpus, {})
    methods, seeds = len(ask.methods), len(ask.seeds)
    listed = ", ".join(map(str, ask.seeds))
    yield f"{len(cells)} cells: {methods} methods x {seeds} seeds ({listed})"
    more = " or more" if ask.budget == "compute" else ""
    number = f"{seeds} plans, each" if ask.replan else "one plan for all seeds"
    for cell in cells[:methods]:
        steps = cell.config.train.steps
        yield f"  {cell.method}: {steps:,} steps{more}, {cell.flops:.3g} FLOPs a run"
        if cell.method in plans:
            yield f"    {number}: {plans[cell.method]}"
    if plans:
        yield "  plans by their first proxies; later ones may depend on what those show"
    flops = sum(cell.flops for cell in cells)
    guess = flops / (EFFICIENCY * measure_matmul(ask.config, 256))
    yield (
        f"in all {flops:.3g} FLOPs without plans: about {duration(guess)} of one worker here, "
        "if its steps reach the usual part of this machine's matmul speed"
    )


def write_findings(out: Path, findings: Findings) -> None:
    """All of it as JSON, a row a method and a row a cell as CSV."""
    write_text(out / CELLS, _csv([_cell_row(cell) for cell in findings.cells]))
    write_text(out / METHODS, _csv([_method_row(method) for method in findings.methods]))
    write_text(out / REPORT, as_json(findings))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns are those of all rows, in the order they come up; None is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell_row(cell: CellFindings) -> dict[str, Any]:
    row = {name: getattr(cell, name) for name in ("label", "method", "seed", "steps", "tokens")}
    row |= {f"loss_{name}": value for name, value in cell.summaries.items()}
    row |= {f"loss/{name}": value for name, value in cell.losses.items()}
    row |= {f"epochs/{name}": value for name, value in cell.epochs.items()}
    return row | _costs(cell) | {"command": cell.command, "error": cell.error}


def _method_row(method: MethodFindings) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": method.label,
        "mixer": method.mixer["name"],
        "seeds": len(method.cells) - len(method.failed),
        "one_plan_for_all_seeds": method.one_plan_for_all_seeds,
        "steps": " ".join(map(str, method.steps)),
    }
    differences = method.differences
    for name in METRICS:
        row[f"loss_{name}"] = method.losses[name].mean if method.losses else None
        if differences is not None:
            row |= _difference_columns(name, differences[name])
    row |= {f"loss/{name}": spread.mean for name, spread in method.sources.items()}
    if differences is not None:
        for name, contrast in differences.sources.items():
            row |= _difference_columns(f"source/{name}", contrast)
    row |= {f"epochs/{name}": value for name, value in method.epochs.items()}
    return row | _costs(method)


def _difference_columns(name: str, contrast: Contrast) -> dict[str, Any]:
    row: dict[str, Any] = {"": contrast.mean}
    for kind in ("interval", "simultaneous", "over_items"):
        ends = getattr(contrast, kind)
        row |= {f"_{kind}_{end}": getattr(ends, end, None) for end in ("low", "high")}
    row |= {f"_{part}": getattr(contrast, part) for part in ("p", "p_holm", "claim")}
    return {f"difference_{name}{column}": value for column, value in row.items()}


def _costs(row: CellFindings | MethodFindings) -> dict[str, Any]:
    costs: dict[str, Any] = {}
    for name, cost in (("flops", row.flops), ("seconds", row.seconds)):
        costs |= {f"{name}_{part}": value for part, value in asdict(cost).items()} if cost else {}
    return costs | {"peak_bytes": row.peak_bytes}


def tables(findings: Findings) -> list[Table]:
    """What a terminal shows: losses, what they cost, and losses by source."""
    return [losses_table(findings), cost_table(findings), *source_tables(findings)]


def losses_table(findings: Findings) -> Table:
    """A row a method: the four figures, and the difference of the mean to the baseline."""
    seeds = len(findings.seeds)
    budget = "training tokens" if findings.budget == "tokens" else "FLOPs"
    table = _table(f"validation loss in nats, mean of {seeds} seeds; equal {budget}")
    for name in ("method", "mean", "difference [95 %]", "text [95 %]", "p", "", "natural", "worst"):
        left = name in ("method", "")
        table.add_column(
            name, justify="left" if left else "right", no_wrap=name != "method", overflow="fold"
        )
    table.add_column("gap", justify="right", no_wrap=True)
    for method in findings.methods:
        figures = [
            f"{method.losses[name].mean:.4f}" if method.losses else "-"
            for name in ("mean", "natural", "worst", "gap")
        ]
        told, differences = [""] * 4, method.differences
        if differences is not None and differences.mean.seeds:
            difference = differences.mean
            interval, text, p_holm = difference.interval, difference.over_items, difference.p_holm
            ends = "" if interval is None else f" {interval.text('+.3f')}"
            told = [
                f"{difference.mean:+.4f}{ends}",
                "" if text is None else text.text("+.3f"),
                "" if p_holm is None else f"{p_holm:.3f}",
                difference.claim if difference.is_claimed else "",
            ]
        table.add_row(_name(method), figures[0], *told, *figures[1:])
    return table


def cost_table(findings: Findings) -> Table:
    """A row a method: steps, FLOPs and time with plans and sketches, memory, repeats."""
    table = _table("what it took, plans and sketches counted (a run's mean; memory: most)")
    for name in ("method", "steps", "FLOPs", "plan", "time", "plan", "memory"):
        table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    table.add_column("most repeated source", justify="left")
    for method in findings.methods:
        flops, seconds, most = method.flops, method.seconds, method.most_epochs
        table.add_row(
            _name(method),
            " ".join(f"{steps:,}" for steps in method.steps),
            f"{flops.total:.3g}",
            f"{flops.plan / flops.total:.0%}" if flops.plan else "",
            duration(seconds.total) if seconds else "",
            duration(seconds.plan) if seconds and seconds.plan else "",
            f"{(method.peak_bytes or 0) / 2**30:.2f} GiB" if seconds else "",
            f"{most.source} {most.epochs:.2f} x" if most else "",
        )
    return table


def source_tables(findings: Findings) -> list[Table]:
    """Methods down, sources across; beside each loss its difference to the baseline."""
    sources = next((list(m.sources) for m in findings.methods if m.sources), [])
    found = []
    for first in range(0, len(sources), SOURCES_ACROSS):
        part = sources[first : first + SOURCES_ACROSS]
        table = _table("loss by source, and its difference (! claimed, by Holm over this table)")
        table.add_column("method", overflow="fold")
        for source in part:
            table.add_column(source, justify="right")
        for method in findings.methods:
            cells = ["-"] * len(part)
            if method.sources:
                cells = [f"{method.sources[source].mean:.4f}" for source in part]
            if method.sources and method.differences is not None:
                own = [method.differences.sources[source] for source in part]
                marks = (f"{one.mean:+.4f}{'!' if one.is_claimed else ''}" for one in own)
                cells = [f"{cell} {mark}" for cell, mark in zip(cells, marks, strict=True)]
            table.add_row(_name(method), *cells)
        found.append(table)
    return found


def _table(title: str) -> Table:
    return Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")


def _name(method: MethodFindings) -> str:
    star = "*" if method.one_plan_for_all_seeds and len(method.cells) > 1 else ""
    failed = len(method.failed)
    return f"{method.label}{star}" + (f" ({failed} failed)" if failed else "")
