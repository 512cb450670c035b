"""From run directories and comparisons to everything that a page and its figures are made of."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from dograph import __version__
from dograph.compare.arms import ASK
from dograph.compare.findings import REPORT, Findings
from dograph.errors import ConfigError, RunError
from dograph.report.charts import DotChart, DotRow, PageTable, PageText, Shown, TableCell
from dograph.report.comparison import (
    Comparison,
    Points,
    from_findings,
    from_runs,
    group_names,
    run_names,
    scales_of,
    verdict_of,
)
from dograph.report.domains import CorpusText, Texts
from dograph.report.one_run import ENVIRONMENT, OpenRun, RunData, run_data
from dograph.report.series import SMOOTHED_SHARE, Columns, read_json
from dograph.stats import Estimate, Interval, mean_estimate
from dograph.train.run_dir import RunDirectory

CELLS = "cells"  # runs of a comparison
EVALUATION = "eval.json"  # of a run: `dograph eval`
BENCH = "bench.json"  # `dograph bench`
NORMAL = 1.96
AVERAGE = "average"
POINTS = 2400  # buckets shared out among the runs, so that many runs make no huge page
LEAST, MOST = 60, 400  # buckets of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """Everything a page shows."""

    title: str
    verdict: str
    made: str
    program: str
    how: list[str]  # how curves were thinned and smoothed, and what intervals are
    runs: list[RunData]
    groups: dict[str, list[str]]  # names of runs that differ in their seed alone
    comparisons: list[Comparison]
    scales: list[tuple[str, Points]]  # mean loss of methods by number of parameters
    tasks: list[DotChart]  # downstream scores
    task_notes: list[str]
    benches: list[Shown]
    texts: list[CorpusText]


def tasks_of(runs: Sequence[RunData]) -> tuple[list[DotChart], list[str]]:
    """Scores of `dograph eval` by task and group in per cent, with what guessing scores; notes.

    Over seeds where a group has several, else over the tasks' items.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if record := read_json(run.path / EVALUATION):
            record["tasks"][AVERAGE] = record.pop("average") | {"primary": None}
            found.setdefault(run.group, []).append(record)
    every = [record for own in found.values() for record in own]
    notes = list(dict.fromkeys(note for record in every for note in record["notes"]))
    tasks = dict.fromkeys(task for record in every for task in record["tasks"] if task != AVERAGE)
    charts = []
    for task in (*tasks, AVERAGE) if every else ():
        told = [record["tasks"][task] for record in every if task in record["tasks"]]
        # As in the paper: of the average the first, of a task whichever came last.
        chance = 100 * told[0 if task == AVERAGE else -1]["chance"]
        rows = []
        for index, (group, own) in enumerate(found.items()):
            score = _score([record["tasks"][task] for record in own if task in record["tasks"]])
            if score is not None:
                low, high = (x and 100 * x for x in (score.low, score.high))
                rows.append(DotRow(group, index, 100 * score.value, low, high))
        note = f"accuracy in %, dashed: chance, {chance:.1f} %" if chance else "accuracy in %"
        charts.append(DotChart(task, note, rows, digits=1, chance=chance))
    return charts, notes + items_asked(every)


def items_asked(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line where some task was not asked in full (`--limit`): few items tell little."""
    short: dict[str, str] = {}
    for record in records:
        for name, task in record["tasks"].items():
            if "available" in task and task["items"] < task["available"]:
                short.setdefault(name, f"{name} {task['items']:,} of {task['available']:,}")
    return [f"items asked, of those there are: {', '.join(short.values())}"] if short else []


def _score(tasks: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """acc_norm where the task has one, as in the paper, with 1.96 standard errors of its items."""
    own = [task[task["primary"]] if task["primary"] else task for task in tasks]
    if len(own) > 1:
        return mean_estimate([score["value"] for score in own])
    if not own:
        return None
    value, error = own[0]["value"], own[0]["se"]
    is_known = error is not None and math.isfinite(error)
    ends = Interval(value - NORMAL * error, value + NORMAL * error) if is_known else None
    return Estimate(value, ends)


def bench_of(path: Path) -> list[Shown]:
    """The arms of one bench.json that were measured."""
    rows: list[Any] = []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        options, device = found["options"], found["device"]["name"]
        shape = f"{options['batch']} x {options['seq_len']}, {options['dtype']}"
        for name, arm in found["arms"].items():
            if "ms" not in arm:
                continue
            ms, ratio = arm["ms"]["median"], arm.get("ratio")
            plain, floor = arm.get("plain_ms"), arm.get("floor_ms")
            over = ratio and Estimate(ratio["median"], Interval(ratio["low"], ratio["high"]))
            rows.append(
                [
                    name,
                    TableCell(ms, digits=1),
                    TableCell.of(over, "fixed", 3),
                    TableCell(ms - plain["median"] if plain else None, digits=1),
                    TableCell(floor["total"] if floor else None, digits=1),
                    TableCell(arm.get("floor_ratio") or None, "fixed", 3),
                    TableCell(arm.get("peak_bytes") or 0, "bytes"),
                ]
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--bench {path} is no file of `dograph bench`; make one with: dograph bench"
        ) from error
    title = f"{options['model']}, {shape}, {device}"
    heads = ["arm", "ms", "over plain", "extra ms", "floor ms", "floor, over plain", "memory"]
    table = PageTable(f"bench {title}", heads, rows)
    return [PageText(f"Bench: {title}", "heading"), table]


@dataclass(slots=True)
class Subjects:
    """What a page is of: runs, and the comparisons that some of them belong to."""

    runs: list[OpenRun] = field(default_factory=list)
    comparisons: list[Path] = field(default_factory=list)
    benches: list[Path] = field(default_factory=list)

    @property
    def buckets(self) -> int:
        return min(MOST, max(LEAST, POINTS // max(len(self.runs), 1)))


def open_subjects(
    paths: Sequence[Path], benches: Sequence[Path] = (), known: Sequence[OpenRun] = ()
) -> Subjects:
    """A folder is a run, or a comparison, perhaps still on its way, that stands for its runs.

    Runs that are `known` are not opened anew, so that what was read of them is not read again.
    """
    found, before = Subjects(benches=list(benches)), {run.path: run for run in known}
    runs: dict[Path, OpenRun] = {}  # given twice, or with the comparison it is of, a run is one
    for path in paths:
        is_compared = (path / REPORT).is_file()
        if is_compared or (path / ASK).is_file():
            found.comparisons += [path] if is_compared else []
            for folder, method in _cells(path):
                run = before.get(folder) or OpenRun(folder, method, path.resolve().name)
                runs[folder.resolve()] = run
        elif is_run(path):
            if path.resolve() not in runs:
                runs[path.resolve()] = before.get(path) or OpenRun(path)
        else:
            raise RunError(
                f"{path} is neither a run (config.yaml) nor a comparison (compare.json). Runs: "
                "dograph train run=DIR; comparisons: dograph compare --out DIR"
            )
        if (path / BENCH).is_file():
            found.benches.append(path / BENCH)
    found.runs = list(runs.values())
    return found


def is_run(path: Path) -> bool:
    return RunDirectory(path).config_file.is_file()


def _cells(path: Path) -> list[tuple[Path, str]]:
    """Run directories of a comparison and their methods; those that never began are left out."""
    if not (path / REPORT).is_file():
        begun = sorted(folder for folder in path.glob(f"{CELLS}/*") if is_run(folder))
        return [(folder, folder.name.rpartition("-s")[0]) for folder in begun]
    cells = []
    for cell in Findings.read(path).cells:
        places = (Path(cell.run), path / CELLS / cell.label)
        cells += [(place, cell.method) for place in places if is_run(place)][:1]
    return cells


def collect(subjects: Subjects, *, keep: bool = False) -> PageData:
    """Read whatever is new, and put the page together.

    `keep` holds on to what was read, for the next look; twenty long runs are some hundred MB.
    """
    texts, opened, runs = Texts(), subjects.runs, list[RunData]()
    names = run_names([run.path for run in opened])
    methods = [(run.origin, run.label) if run.label and run.origin else None for run in opened]
    groups = group_names([run.as_trained() for run in opened], methods)
    by_group: dict[str, list[str]] = {}
    for run, name, group in zip(opened, names, groups, strict=True):
        by_group.setdefault(group, []).append(name)
        runs.append(run_data(run, name, group, subjects.buckets, texts))
        if not keep:
            run.columns = Columns(run.columns.path)  # the next look reads from the start
    runs = beside_plain(runs)
    comparisons = []
    for path in subjects.comparisons:
        own = [run for run in runs if path.resolve() in run.path.resolve().parents]
        size = next((run.parameters for run in own if run.parameters), None)
        comparisons.append(from_findings(Findings.read(path), path.resolve().name, size))
    comparisons += from_runs(runs)
    tasks, task_notes = tasks_of(runs)
    title = f"run {names[0]}" if len(names) == 1 else f"{len(names)} runs"
    if len(subjects.comparisons) == 1:
        title = f"comparison {subjects.comparisons[0].resolve().name}"
    return PageData(
        title=title,
        verdict=verdict_of(runs, comparisons),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        program=f"dograph {__version__}",
        how=_how(subjects.buckets, runs),
        runs=runs,
        groups=by_group,
        comparisons=comparisons,
        scales=scales_of(comparisons),
        tasks=tasks,
        task_notes=task_notes,
        benches=[block for path in subjects.benches for block in bench_of(path)],
        texts=texts.found,
    )


def beside_plain(runs: Sequence[RunData]) -> list[RunData]:
    """Set every run beside the plain ones of the same shape on the page, where there are any."""
    shapes, plain = [], dict[str, list[float]]()
    for run in runs:
        config = run.config.model_dump(mode="json")
        train = {k: v for k, v in config["train"].items() if k != "steps"}
        machine = read_json(run.path / ENVIRONMENT).get("gpus")
        parts = [config["model"], config["data"]["seq_len"], train, machine]
        shapes.append(json.dumps(parts, sort_keys=True))
        if run.cost.step_ms and run.cost.is_plain:
            plain.setdefault(shapes[-1], []).append(run.cost.step_ms)
    found = []
    for shape, run in zip(shapes, runs, strict=True):
        cost = run.cost
        if cost.step_ms and cost.is_plain:
            cost = replace(cost, plain="plain")
        elif cost.step_ms and shape in plain:
            num, usual = len(plain[shape]), median(plain[shape])
            told = "beside the plain run" if num == 1 else f"beside the median of {num} plain runs"
            cost = replace(cost, plain=told, over_plain=cost.step_ms / usual)
        found.append(replace(run, cost=cost))
    return found


def _how(buckets: int, runs: Sequence[RunData]) -> list[str]:
    longest = max((run.steps for run in runs), default=0)
    told = [
        f"The bold line is a running mean over a {SMOOTHED_SHARE}th of the points, taken over all "
        "of them before any are left out, narrower at the beginning, and at the end the straight "
        "line through the last ones; the faint line is as measured.",
        "Intervals are 95 %. Of one run's losses: over validation blocks, taken as independent, "
        "so over other text for this run. Shaded, and of several seeds: Student's t over seeds.",
    ]
    if longest <= 2 * buckets + 2:
        return told
    thinned = (
        f"Curves of more than {2 * buckets + 2} points are drawn by the first and last point "
        f"and the least and largest of each of {buckets} stretches: no spike is lost, and "
        "every point drawn was measured. The files of the run have all of them."
    )
    return [thinned, *told]
