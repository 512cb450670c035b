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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dograph.compare.arms import Ask, Method
from dograph.compare.cells import Cell, Plans, Say, lay_out, make_plans
from dograph.compare.findings import Findings, Outcome, as_json, find
from dograph.config import RunConfig
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

# What a comparison writes: all of it as JSON, a row a method and a row a cell as CSV.


REPORT, METHODS, CELLS = "compare.json", "methods.csv", "cells.csv"


def write_findings(out: Path, findings: Findings) -> None:
    write_text(out / CELLS, as_csv(cell_rows(findings)))
    write_text(out / METHODS, as_csv(method_rows(findings)))
    write_text(out / REPORT, as_json(findings))


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Columns are those of all rows, in the order they come up."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cell_rows(findings: Findings) -> list[dict[str, Any]]:
    return [_cell_row(cell) for cell in findings["cells"]]


def method_rows(findings: Findings) -> list[dict[str, Any]]:
    return [_method_row(method) for method in findings["methods"]]


def _cell_row(cell: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: cell[name] for name in ("label", "method", "seed", "steps", "tokens")}
    row |= {f"loss_{name}": value for name, value in cell.get("summaries", {}).items()}
    row |= {f"loss/{name}": value for name, value in cell.get("losses", {}).items()}
    row |= {f"epochs/{name}": value for name, value in cell.get("epochs", {}).items()}
    return row | _costs(cell) | {"command": cell["command"], "error": cell["error"] or ""}


def _method_row(method: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": method["label"],
        "mixer": method["mixer"]["name"],
        "seeds": len(method["cells"]) - len(method["failed"]),
        "one_plan_for_all_seeds": method["one_plan_for_all_seeds"],
        "steps": " ".join(map(str, method["steps"])),
    }
    for name in METRICS:
        row[f"loss_{name}"] = method.get("losses", {}).get(name, {}).get("mean", "")
        row |= _difference(name, method.get("differences", {}).get(name))
    for name, spread in method.get("sources", {}).items():
        row[f"loss/{name}"] = spread["mean"]
    for name, told in method.get("differences", {}).get("sources", {}).items():
        row |= _difference(f"source/{name}", told)
    row |= {f"epochs/{name}": value for name, value in method.get("epochs", {}).items()}
    return row | _costs(method)


def _difference(name: str, told: Mapping[str, Any] | None) -> dict[str, Any]:
    if told is None:
        return {}
    row = {f"difference_{name}": told["mean"]}
    for kind in ("interval", "simultaneous", "over_items"):
        for end in ("low", "high"):
            row[f"difference_{name}_{kind}_{end}"] = (told[kind] or {}).get(end, "")
    row[f"difference_{name}_p"] = "" if told["p"] is None else told["p"]
    row[f"difference_{name}_p_holm"] = "" if told["p_holm"] is None else told["p_holm"]
    row[f"difference_{name}_claim"] = told["claim"]
    return row


def _costs(row: Mapping[str, Any]) -> dict[str, Any]:
    costs = {f"flops_{part}": value for part, value in row["flops"].items()}
    costs |= {f"seconds_{part}": value for part, value in row.get("seconds", {}).items()}
    return costs | {"peak_bytes": row.get("peak_bytes", "")}


def run_compare(ask: Ask, pool: Pool, say: Say) -> dict[str, Any]:
    """Make what is not there yet; write and return what was found.

    A plan or cell that fails is named in the findings, and all others are made.
    """
    corpus = open_corpus(ask)
    ask.take_folder(corpus)
    plans = make_plans(ask, pool, say)
    cells = lay_out(ask, corpus, plans)
    outcome = train_cells(cells, corpus, pool)
    findings = find(ask, corpus, plans, cells, outcome)
    write_findings(ask.out, findings)
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
        if not method.is_planned:
            _check_drawn(method, method.config(ask.config), corpus)
    return corpus


def _check_drawn(method: Method, config: RunConfig, corpus: Corpus) -> None:
    """A source that is misspelt should not be told by the last cell, days later."""
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    sampler = open_sampler(config, corpus)
    try:
        sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), reason="plan")
        planned_epochs(config, sampler, mixer)  # what is drawn later, too
    except DographError as error:
        raise ConfigError(f"{method.label}: {error}") from error


def train_cells(cells: Sequence[Cell], corpus: Corpus, pool: Pool) -> Outcome:
    """Make every cell that is not there; those that fail are left out, and the rest go on."""
    outcome = Outcome({}, {cell.label: cell.problem for cell in cells if cell.problem})
    todo = []
    for cell in cells:
        if cell.problem:
            continue
        result = _kept(cell, corpus)
        if result is None:
            todo.append(cell)
        else:
            outcome.results[cell.label] = result
    if not todo:
        return outcome
    done = len(outcome.results)
    with JobProgress("cells", total=done + len(todo), cached=done) as progress:

        def on_done(job: Job, result: Result) -> None:
            outcome.results[job.label] = result
            progress.on_done(job, result)

        while todo:
            try:
                jobs = [cell.job for cell in todo]
                pool.run(jobs, on_done, progress.on_start, progress.on_death)
            except JobError as error:
                outcome.failures[error.job.label] = str(error)
                progress.on_failure(str(error))
            ended = outcome.results.keys() | outcome.failures.keys()
            todo = [cell for cell in todo if cell.label not in ended]
    return outcome


def _kept(cell: Cell, corpus: Corpus) -> Result | None:
    try:
        return read_result(Path(cell.config.run), corpus)
    except DamagedResultError:
        return None  # the pool makes it anew


# What a comparison would cost, before it is started.


Without = Callable[[Sequence[str]], str]


def leave_out(labels: Sequence[str]) -> str:
    """How a comparison goes without some methods."""
    return f"leave {', '.join(labels)} out of --mixers"


def forecast_lines(ask: Ask, corpus: Corpus, without: Without = leave_out) -> Iterator[str]:
    """Cells, FLOPs and a guess of the time; plans by what their first proxies would cost.

    `without` tells the user how to do without methods whose plans are refused.
    """
    plans = _forecast_plans(ask, without)  # first: a refusal should not come after half of it
    cells = lay_out(ask, corpus, Plans({}, {}))
    methods, seeds = len(ask.methods), len(ask.seeds)
    listed = ", ".join(map(str, ask.seeds))
    yield f"{len(cells)} cells: {methods} methods x {seeds} seeds ({listed})"
    for method in ask.methods:
        own = next(cell for cell in cells if cell.method == method.label)
        steps = own.config.train.steps
        more = " or more" if ask.budget == "compute" else ""
        yield f"  {method.label}: {steps:,} steps{more}, {own.flops:.3g} FLOPs a run"
        if method.is_planned:
            number = f"{seeds} plans, each" if ask.replan else "one plan for all seeds"
            yield f"    {number}: {plans[method.label]}"
    if any(method.is_planned for method in ask.methods):
        yield "  plans by their first proxies; later ones may depend on what those show"
    flops = sum(cell.flops for cell in cells)
    speed = EFFICIENCY * measure_matmul(ask.config, 256)
    guess = flops / speed
    yield (
        f"in all {flops:.3g} FLOPs without plans: about {duration(guess)} of one worker here, "
        "if its steps reach the usual part of this machine's matmul speed"
    )


def _forecast_plans(ask: Ask, without: Without) -> dict[str, str]:
    """What each plan would cost; all that are refused are told at once."""
    plans: dict[str, str] = {}
    refused: dict[str, ConfigError] = {}
    for method in ask.methods:
        if method.is_planned:
            assert ask.proxy is not None
            try:
                target = method.config(ask.config)
                plans[method.label] = forecast_plan(target, ask.proxy, lab=ask.lab)
            except ConfigError as error:
                refused[method.label] = error
    if refused:
        told = "\n".join(f"{label}: {error}" for label, error in refused.items())
        raise ConfigError(f"{told}\nOr {without(list(refused))}")
    return plans
