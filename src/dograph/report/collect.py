"""From run directories and comparisons to everything a page shows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from dograph import __version__
from dograph.errors import RunError
from dograph.report.benchmarking import bench_of, benchmarks_of
from dograph.report.comparison import Trained, from_findings, from_runs, read_findings, scales_of
from dograph.report.content import Comparison, PageData, RunData
from dograph.report.examples import Texts
from dograph.report.grouping import group_names, groups_of, run_names
from dograph.report.one_run import OpenRun, parameters_of, run_data
from dograph.report.reading import (
    ASKED,
    BENCH,
    CELLS,
    COMPARISON,
    ENVIRONMENT,
    is_run,
    read_json,
)
from dograph.report.thinning import SMOOTHED_SHARE
from dograph.report.verdict import verdict_of

POINTS = 2400  # buckets shared out among the runs, so that many runs make no huge page
LEAST, MOST = 60, 400  # buckets of a curve


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
        is_compared = (path / COMPARISON).is_file()
        if is_compared or (path / ASKED).is_file():
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


def _cells(path: Path) -> list[tuple[Path, str]]:
    """Run directories of a comparison and their methods; those that never began are left out."""
    if not (path / COMPARISON).is_file():
        begun = sorted(folder for folder in path.glob(f"{CELLS}/*") if is_run(folder))
        return [(folder, folder.name.rpartition("-s")[0]) for folder in begun]
    cells = []
    for cell in read_findings(path)["cells"]:
        places = (Path(cell["run"]), path / CELLS / cell["label"])
        cells += [(place, cell["method"]) for place in places if is_run(place)][:1]
    return cells


def collect(subjects: Subjects, *, keep: bool = False) -> PageData:
    """Read whatever is new, and put the page together.

    `keep` holds on to what was read, for the next look; twenty long runs are some hundred MB.
    """
    texts, opened = Texts(), subjects.runs
    names = run_names([run.path for run in opened])
    methods = [(run.origin, run.label) if run.label and run.origin else None for run in opened]
    groups = group_names([run.as_trained() for run in opened], methods)
    runs = []
    for run, name, group in zip(opened, names, groups, strict=True):
        runs.append(run_data(run, name, group, subjects.buckets, texts))
        if not keep:
            run.forget()
    runs = beside_plain(runs, opened)
    comparisons = _comparisons(subjects, runs)
    return PageData(
        title=_title(subjects, names),
        verdict=verdict_of(runs, comparisons),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        program=f"dograph {__version__}",
        how=_how(subjects.buckets, runs),
        runs=runs,
        groups=groups_of(runs),
        comparisons=comparisons,
        scales=scales_of(comparisons),
        benchmarks=benchmarks_of(
            [(run.path, group) for run, group in zip(opened, groups, strict=True)]
        ),
        benches=[bench_of(path) for path in subjects.benches],
        texts=texts.found,
    )


def _title(subjects: Subjects, names: Sequence[str]) -> str:
    if len(subjects.comparisons) == 1:
        return f"comparison {subjects.comparisons[0].resolve().name}"
    return f"run {names[0]}" if len(names) == 1 else f"{len(names)} runs"


def _comparisons(subjects: Subjects, runs: Sequence[RunData]) -> list[Comparison]:
    found = []
    for path in subjects.comparisons:
        findings = read_findings(path)
        cells = [run.path for run in subjects.runs if path.resolve() in run.path.resolve().parents]
        sizes = (parameters_of(cell) for cell in cells)
        found.append(from_findings(findings, path.resolve().name, next(filter(None, sizes), None)))
    loose = [
        Trained(run, opened.as_trained(), parameters_of(opened.path))
        for run, opened in zip(runs, subjects.runs, strict=True)
        if opened.label is None
    ]
    return found + from_runs(loose)


def beside_plain(runs: Sequence[RunData], opened: Sequence[OpenRun]) -> list[RunData]:
    """Set every run beside the plain ones of the same shape on the page, where there are any."""
    shapes = [_shape(run) for run in opened]
    plain: dict[str, list[float]] = {}
    for shape, run in zip(shapes, runs, strict=True):
        if run.cost.step_ms and not _sees_samples(run):
            plain.setdefault(shape, []).append(run.cost.step_ms)
    found = []
    for shape, run in zip(shapes, runs, strict=True):
        cost = run.cost
        if not _sees_samples(run) and cost.step_ms:
            cost = replace(cost, plain="plain")
        elif shape in plain and cost.step_ms:
            num, usual = len(plain[shape]), median(plain[shape])
            told = "beside the plain run" if num == 1 else f"beside the median of {num} plain runs"
            cost = replace(cost, plain=told, over_plain=cost.step_ms / usual)
        found.append(replace(run, cost=cost))
    return found


def _sees_samples(run: RunData) -> bool:
    return any(part.name in ("sketch", "weigh") for part in run.cost.parts)


def _shape(run: OpenRun) -> str:
    config = run.config.model_dump(mode="json")
    train = {k: v for k, v in config["train"].items() if k != "steps"}
    machine = read_json(run.path / ENVIRONMENT).get("gpus")
    return json.dumps([config["model"], config["data"]["seq_len"], train, machine], sort_keys=True)


def _how(buckets: int, runs: Sequence[RunData]) -> list[str]:
    longest = max((run.steps for run in runs), default=0)
    told = []
    if longest > 2 * buckets + 2:
        told.append(
            f"Curves of more than {2 * buckets + 2} points are drawn by the first and last point "
            f"and the least and largest of each of {buckets} stretches: no spike is lost, and "
            "every point drawn was measured. The files of the run have all of them."
        )
    told.append(
        f"The bold line is a running mean over a {SMOOTHED_SHARE}th of the points, taken over all "
        "of them before any are left out, narrower at the beginning, and at the end the straight "
        "line through the last ones; the faint line is as measured."
    )
    told.append(
        "Intervals are 95 %. Of one run's losses: over validation blocks, taken as independent, "
        "so over other text for this run. Shaded, and of several seeds: Student's t over seeds."
    )
    return told
