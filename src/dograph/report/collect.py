"""From run directories and comparisons to everything that a page and its figures show."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dograph import __version__
from dograph.compare.arms import ASK, typed
from dograph.compare.findings import REPORT, Findings, MethodFindings
from dograph.errors import DographError, RunError
from dograph.eval.evaluate import checked_result, limited_tasks
from dograph.progress import counted
from dograph.records import DAMAGE, Skipped, read_record
from dograph.report.charts import Entry, PageTable, TableCell
from dograph.report.one_run import RunData, run_data
from dograph.report.series import OpenRun
from dograph.stats import ABOVE_ZERO, PER_CENT, Estimate, Interval, mean_estimate
from dograph.train.run_dir import EVAL, RunDirectory

CELLS = "cells"  # runs of a comparison
NORMAL = 1.96  # standard errors of a 95 % interval
AVERAGE = "average"
POINTS = 2400  # buckets shared by all runs, so that many runs do not make a huge page
LEAST, MOST = 60, 400  # buckets of a curve
# Settings that may differ between runs of a group: the seed, and those that change no number.
_FREE: Any = {"train": {"device"}} | dict.fromkeys(
    ("seed", "run", "log", "checkpoint", "probe"), True
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `dograph compare`."""

    title: str
    findings: Findings

    @property
    def methods(self) -> list[MethodFindings]:
        """Methods that have losses; the notes name those that failed."""
        known = (method for method in self.findings.methods if method.sources)
        return [m for m in known if all(math.isfinite(one.mean) for one in m.sources.values())]

    @property
    def claim(self) -> str:
        """Which methods are lower than the baseline, which higher, and which are neither."""
        baseline, groups = self.findings.baseline, dict[str, list[str]]()
        found = {m.label: own for m in self.methods if (own := m.difference("mean"))}
        if not found:
            return f"No method can be compared with {baseline}."
        for label, own in found.items():
            groups.setdefault(own.claim, []).append(label)

        def mean(label: str) -> float:
            return found[label].mean

        def difference(label: str) -> str:
            own = found[label].estimate
            seeds = f"{own.num} seed{'s' if own.num > 1 else ''}"
            return f"{own.text('+.4f', ' ')} nats vs. {baseline}, {seeds}"

        best, has_lower, sentences = min(found, key=mean), "lower" in groups, list[str]()
        for claim, largest in (("lower", min), ("higher", max)):
            if claimed := groups.pop(claim, []):
                top = largest(claimed, key=mean)
                sentences.append(
                    f"{claim.capitalize()} mean loss than {baseline}: {', '.join(claimed)}. "
                    f"Largest difference: {top}, {difference(top)}."
                )
        is_all = not sentences and len(groups) == 1  # then methods need not be named
        for claim, unclaimed in groups.items():
            lead = "No significant difference" if claim == "unclear" else "No claim"
            reason = claim.removeprefix("unclear").removeprefix("no claim")
            which = "" if is_all else f" for {', '.join(unclaimed)}"
            sentences.append(f"{lead}{which}{reason}.")
        if not has_lower:
            lead = f"No mean loss is below that of {baseline}; the closest is"
            lead = "The lowest mean loss is that of" if mean(best) < 0 else lead
            sentences.append(f"{lead} {best}: {difference(best)}.")
        return " ".join(sentences)


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
    tasks: PageTable | None  # downstream scores
    task_notes: list[str]
    damage: list[str]  # runs and files that could not be read

    @property
    def steps(self) -> int:
        """Of the longest run: all charts have the same range of steps."""
        return max((run.steps for run in self.runs), default=0)


@dataclass(slots=True)
class Subjects:
    """The runs and comparisons of a page."""

    runs: list[OpenRun] = field(default_factory=list)
    comparisons: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what could not be read, and why


def open_subjects(paths: Sequence[Path], known: Sequence[OpenRun] = ()) -> Subjects:
    """Each path is a run or a comparison, which may still be running and stands for its runs.

    Runs in `known` are reused, so that their files are not read from the start again.
    """
    subjects, before = Subjects(), {run.path: run for run in known}
    runs: dict[Path, OpenRun] = {}  # a run is shown once, even if its comparison is given too

    def add(folder: Path, method: tuple[str, str] | None = None) -> None:
        try:
            runs[folder.resolve()] = before.get(folder) or OpenRun(folder, method)
        except DographError as error:
            subjects.left_out.append(f"{folder} is left out: {error}")

    for path in paths:
        is_compared = (path / REPORT).is_file()
        if is_compared or (path / ASK).is_file():
            subjects.comparisons += [path] if is_compared else []
            for folder, method in _cells(path):
                add(folder, (path.resolve().name, method))
        elif is_run(path):
            if path.resolve() not in runs:
                add(path)
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
    try:
        findings = Findings.read(path)
    except RunError:  # it is running, or the file is damaged, which `collect` says
        started = sorted(folder for folder in path.glob(f"{CELLS}/*") if is_run(folder))
        return [(folder, folder.name.rpartition("-s")[0]) for folder in started]
    cells = []
    for cell in findings.cells:
        places = (Path(cell.run), path / CELLS / cell.label)
        cells += [(place, cell.method) for place in places if is_run(place)][:1]
    return cells


def collect(subjects: Subjects, *, keep: bool = False) -> PageData:
    """Read what is new and put the page together.

    `keep` holds the metrics in memory for the next call: some hundred MB for twenty long runs.
    """
    opened, runs = subjects.runs, list[RunData]()
    left_out = list(subjects.left_out)
    buckets = min(MOST, max(LEAST, POINTS // max(len(opened), 1)))
    parts, names = [run.path.resolve().parts for run in opened], list[str]()
    # The names of folders, with as many parent folders as make them unique.
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            break
    groups, by_group = group_names(opened), dict[str, list[str]]()
    with counted("{done}/{total} runs", len(opened)) as display:
        for run, name, group in zip(opened, names, groups, strict=True):

            def show(share: float, name: str = name) -> None:
                display.update(len(runs), f"reading {name}: {share:.0%}")

            try:
                run.read(show)
                runs.append(run_data(run, name, group, buckets))
                by_group.setdefault(group, []).append(name)
            except (DographError, OSError, *DAMAGE) as error:  # the others have their page
                left_out.append(f"{run.path} is left out, a file of it is damaged: {error!r}")
            if not keep:
                run.forget()
    comparisons = list[Comparison]()
    for path in subjects.comparisons:
        try:
            comparisons.append(Comparison(path.resolve().name, Findings.read(path)))
        except RunError as error:
            left_out.append(str(error))
    if left_out and not runs:
        raise RunError(left_out[0])
    tasks, task_notes = tasks_of(runs, skipped := Skipped())
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = f"run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs"
    if len(comparisons) == 1:
        title = f"comparison {comparisons[0].title}"
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
        damage=left_out + skipped.warnings(),
    )


def tasks_of(runs: Sequence[RunData], skipped: Skipped) -> tuple[PageTable | None, list[str]]:
    """Scores of `dograph eval` in per cent by method and task, and of guessing; notes.

    Intervals are over seeds if a group has several runs, else over the items of a task.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if record := read_record(run.path / EVAL, checked_result, skipped):
            record["tasks"][AVERAGE] = record["average"] | {"primary": None}
            records.setdefault(run.group, []).append(record)
    if not records:
        return None, []
    every = [record for own in records.values() for record in own]
    names = dict.fromkeys(task for record in every for task in record["tasks"] if task != AVERAGE)
    columns = [*names, AVERAGE]

    def scores(task: str, own: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [record["tasks"][task] for record in own if task in record["tasks"]]

    def row(name: str, estimates: Iterable[Estimate | None]) -> list[Entry]:
        return [name, *(TableCell(one, "fixed", 1) for one in estimates)]

    # As in the paper: the first of the averages, the last of a task's.
    chance = [scores(task, every)[0 if task == AVERAGE else -1]["chance"] for task in columns]
    rows = [row(name, (_score(scores(x, own)) for x in columns)) for name, own in records.items()]
    rows.append(row("chance", (Estimate(100 * one) for one in chance)))
    notes = list(dict.fromkeys(note for record in every for note in record["notes"]))
    table = PageTable("downstream tasks", ["method", *columns], rows, summaries=1)
    return table, notes + limited_tasks(every)


def _score(tasks: Sequence[Mapping[str, Any]]) -> Estimate | None:
    """The primary metric as in the paper (acc_norm if the task has it), with its interval."""
    scores = [task[task["primary"]] if task["primary"] else task for task in tasks]
    value_N = [100 * score["value"] for score in scores]
    if len(scores) != 1 or scores[0]["se"] is None:
        return mean_estimate(value_N).within(PER_CENT) if scores else None
    (value,), reach = value_N, 100 * NORMAL * scores[0]["se"]
    return Estimate(value, Interval(value - reach, value + reach)).within(PER_CENT)


def verdict_of(runs: Sequence[RunData], comparisons: Sequence[Comparison]) -> str:
    """The result in one or two sentences: that of the first comparison, or of the runs."""
    if comparisons:
        return comparisons[0].claim
    if not runs:
        return "There are no runs yet."
    if len(runs) == 1:
        return _single_verdict(runs[0])
    losses = {run.name: run.losses["mean"] for run in runs if "mean" in run.losses}
    if not losses:
        return f"{len(runs)} runs, none of them validated yet."
    if (corpora := len({run.config.data.corpus for run in runs})) > 1:
        return f"{len(runs)} runs on {corpora} corpora, so their losses cannot be compared."
    unfinished = sum(not run.is_complete for run in runs)
    if len(losses) == len(runs) and not unfinished and len({run.group for run in runs}) == 1:
        over_seeds = mean_estimate([nats.value for nats in losses.values()])
        mean = over_seeds.within(ABOVE_ZERO).text(".4f", " ")
        seeds = f"{len(runs)} seeds of {runs[0].group}"
        return f"{seeds}: mean validation loss {mean} nats (95 % interval over seeds)."
    best = min(losses, key=lambda name: losses[name].value)
    why = f"{unfinished} not complete" if unfinished else "They were selected by hand"
    return (
        f"{len(runs)} runs; the lowest mean validation loss is that of {best}: "
        f"{losses[best].text('.4f', ' ')} nats. {why}, so no claim is made."
    )


def _single_verdict(run: RunData) -> str:
    progress = f"Complete after {run.steps:,} steps"
    if not run.is_complete:
        progress = f"{run.steps:,} of {run.config.batches.steps:,} steps done"
    loss = "no validation loss yet"
    if mean := run.losses.get("mean"):
        after = f" after step {run.validated:,}" if run.validated < run.steps else ""
        loss = f"mean validation loss {mean.text('.4f', ' ')} nats{after}"
    parts = [f"{progress}: {loss}"]
    if nmi := run.curves.get("domains/nmi"):
        last = (nmi.raw or nmi).y[-1]
        parts.append(f"agreement of domains and sources {last:.2f} (NMI, at most 1)")
    if count := len(run.warnings):
        parts.append(f"{count} warning{'s' if count > 1 else ''}")
    return "; ".join(parts) + "."


def group_names(runs: Sequence[OpenRun]) -> list[str]:
    """The same name for runs that differ only in their seed, different names for others.

    A method of a comparison is named by its label, with the comparison before it if another run has
    this name too. Other runs are named by their mixer and the settings that differ from other runs
    of this mixer.
    """
    flat = [dict(typed(run.as_trained().model_dump(mode="json", exclude=_FREE))) for run in runs]
    pairs = list(zip(flat, (run.method for run in runs), strict=True))
    named = list[tuple[str, tuple[str, str] | None]]()
    for own, method in pairs:
        name = method[1] if method else own["mixer.name"]
        if method is None:  # named by its differences to runs outside comparisons
            others = [o for o, compared in pairs if not compared and o["mixer.name"] == name]
            different = [key for key in sorted(own) if len({o.get(key) for o in others}) > 1]
            parts = [f"{key.removeprefix('mixer.')}={own[key]}" for key in different]
            name = " ".join([name, *parts])
        named.append((name, method))
    owners = Counter(name for name, _ in set(named))
    return [f"{m[0]}: {name}" if m and owners[name] > 1 else name for name, m in named]
