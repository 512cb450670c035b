"""From run directories and comparisons to everything that a page and its figures show."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dograph import __version__
from dograph.compare.arms import ASK
from dograph.compare.findings import REPORT, Findings
from dograph.errors import RunError
from dograph.eval.evaluate import limited_tasks
from dograph.report.charts import DotChart, DotRow
from dograph.report.comparison import Comparison, group_names, run_names, verdict_of
from dograph.report.domains import Texts
from dograph.report.one_run import RunData, run_data
from dograph.report.series import OpenRun, read_json
from dograph.stats import Estimate, Interval, mean_estimate
from dograph.train.run_dir import RunDirectory

CELLS = "cells"  # runs of a comparison
EVALUATION = "eval.json"  # of a run, by `dograph eval`
NORMAL = 1.96  # standard errors of a 95 % interval
AVERAGE = "average"
POINTS = 2400  # buckets shared by all runs, so that many runs do not make a huge page
LEAST, MOST = 60, 400  # buckets of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """Everything a page shows."""

    title: str
    verdict: str
    made: str
    buckets: int
    runs: list[RunData]
    groups: dict[str, list[str]]  # names of runs that differ only in their seed
    comparisons: list[Comparison]
    tasks: list[DotChart]  # downstream scores
    task_notes: list[str]
    texts: list[str]


@dataclass(slots=True)
class Subjects:
    """The runs and comparisons of a page."""

    runs: list[OpenRun] = field(default_factory=list)
    comparisons: list[Path] = field(default_factory=list)


def open_subjects(paths: Sequence[Path], known: Sequence[OpenRun] = ()) -> Subjects:
    """Each path is a run or a comparison, which may still be running and stands for its runs.

    Runs in `known` are reused, so that their files are not read from the start again.
    """
    subjects, before = Subjects(), {run.path: run for run in known}
    runs: dict[Path, OpenRun] = {}  # a run is shown once, even if its comparison is given too
    for path in paths:
        is_compared = (path / REPORT).is_file()
        if is_compared or (path / ASK).is_file():
            subjects.comparisons += [path] if is_compared else []
            for folder, method in _cells(path):
                run = before.get(folder) or OpenRun(folder, method, path.resolve().name)
                runs[folder.resolve()] = run
        elif is_run(path):
            if path.resolve() not in runs:
                runs[path.resolve()] = before.get(path) or OpenRun(path)
        else:
            raise RunError(
                f"{path} is neither a run (config.yaml) nor a comparison (compare.json); make one "
                "with dograph train run=DIR or dograph compare --out DIR"
            )
    subjects.runs = list(runs.values())
    return subjects


def is_run(path: Path) -> bool:
    return RunDirectory(path).config_file.is_file()


def _cells(path: Path) -> list[tuple[Path, str]]:
    """Run directories of a comparison with their methods, as far as runs have started."""
    if not (path / REPORT).is_file():
        started = sorted(folder for folder in path.glob(f"{CELLS}/*") if is_run(folder))
        return [(folder, folder.name.rpartition("-s")[0]) for folder in started]
    cells = []
    for cell in Findings.read(path).cells:
        places = (Path(cell.run), path / CELLS / cell.label)
        cells += [(place, cell.method) for place in places if is_run(place)][:1]
    return cells


def collect(subjects: Subjects, *, keep: bool = False) -> PageData:
    """Read what is new and put the page together.

    `keep` holds the metrics in memory for the next call: some hundred MB for twenty long runs.
    """
    texts, opened, runs = Texts(), subjects.runs, list[RunData]()
    buckets = min(MOST, max(LEAST, POINTS // max(len(opened), 1)))
    names = run_names([run.path for run in opened])
    methods = [(run.origin, run.label) if run.label and run.origin else None for run in opened]
    groups = group_names([run.as_trained() for run in opened], methods)
    by_group: dict[str, list[str]] = {}
    for run, name, group in zip(opened, names, groups, strict=True):
        by_group.setdefault(group, []).append(name)
        runs.append(run_data(run, name, group, buckets, texts))
        if not keep:
            run.forget()
    folders = [path.resolve().name for path in subjects.comparisons]
    found = [Findings.read(path) for path in subjects.comparisons]
    comparisons = [Comparison(*one) for one in zip(folders, found, strict=True)]
    tasks, task_notes = tasks_of(runs)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = f"run {names[0]}" if len(names) == 1 else f"{len(names)} runs"
    if len(folders) == 1:
        title = f"comparison {folders[0]}"
    return PageData(
        title=title,
        verdict=verdict_of(runs, comparisons),
        made=f"Made {now} by dograph {__version__}. This file needs no network.",
        buckets=buckets,
        runs=runs,
        groups=by_group,
        comparisons=comparisons,
        tasks=tasks,
        task_notes=task_notes,
        texts=texts.all,
    )


def tasks_of(runs: Sequence[RunData]) -> tuple[list[DotChart], list[str]]:
    """Scores of `dograph eval` in per cent, a chart per task, with the score of guessing; notes.

    Intervals are over seeds if a group has several runs, else over the items of a task.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if record := read_json(run.path / EVALUATION):
            record["tasks"][AVERAGE] = record.pop("average") | {"primary": None}
            records.setdefault(run.group, []).append(record)
    every = [record for own in records.values() for record in own]
    names = dict.fromkeys(task for record in every for task in record["tasks"] if task != AVERAGE)
    charts = []
    for task in (*names, AVERAGE) if every else ():
        scores = [record["tasks"][task] for record in every if task in record["tasks"]]
        # As in the paper: the first of the averages, the last of a task's.
        chance = 100 * scores[0 if task == AVERAGE else -1]["chance"]
        rows = []
        for index, (group, own) in enumerate(records.items()):
            score = _score([record["tasks"][task] for record in own if task in record["tasks"]])
            if score is not None:
                low, high = (x and 100 * x for x in (score.low, score.high))
                rows.append(DotRow(group, index, 100 * score.value, low, high))
        note = f"accuracy in %; dashed: chance, {chance:.1f} %" if chance else "accuracy in %"
        charts.append(DotChart(task, note, rows, digits=1, chance=chance))
    notes = list(dict.fromkeys(note for record in every for note in record["notes"]))
    return charts, notes + limited_tasks(every)


def _score(tasks: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """The primary metric as in the paper (acc_norm if the task has it), with its interval."""
    scores = [task[task["primary"]] if task["primary"] else task for task in tasks]
    if len(scores) > 1:
        return mean_estimate([score["value"] for score in scores])
    if not scores:
        return None
    value, error = scores[0]["value"], scores[0]["se"]
    if error is None or not math.isfinite(error):
        return Estimate(value)
    return Estimate(value, Interval(value - NORMAL * error, value + NORMAL * error))
