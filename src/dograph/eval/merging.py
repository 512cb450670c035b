"""Do sources that are apart in gradient space at first merge as training goes on?

From the probes of one run or of several. Figure 1 of the paper and its figure of clusters show
that they do, by eye; here it is the separation of sources (separation.py) at the last probe less
that at the first. With one run its interval is over other rows of the sources, in this run: the
rows are the same at every probe, and errors that probes share cancel. With several runs it is the
t interval over runs, of the differences taken run by run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from dograph.errors import ConfigError, RunError
from dograph.eval.bounded import ANY, SHARE, Range, cut
from dograph.eval.gradients import LEAST_ROWS
from dograph.eval.perception import (
    Estimate,
    Perception,
    ProbeFigures,
    over_rows,
    perception,
)
from dograph.eval.probe import Probe, probed_steps, read_probe
from dograph.stats import Interval, paired_difference

__all__ = [
    "Change",
    "Estimate",
    "Merging",
    "Probe",
    "ProbeFigures",
    "merging",
    "probed_steps",
    "read_probe",
]

Verdict = Literal["sources merge", "sources separate", "no clear change"]


@dataclass(frozen=True, slots=True)
class Change:
    """A separation at the last probe less at the first; means where there are several runs."""

    first: float
    last: float
    difference: float
    interval: Interval | None  # 95 %
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Merging:
    """The probes of one run or of several, step by step."""

    runs: list[Path]
    steps: list[int]
    over: Literal["rows", "runs"]  # what the intervals of figures and changes speak of
    sources: list[str]
    left_out: list[str]  # sources with too few rows
    num_domains: int
    seed: int
    figures: list[ProbeFigures]  # step by step; means where there are several runs
    by_run: list[list[ProbeFigures]]  # run by run, with intervals over rows
    merged: Change  # of the separation of sketches
    merged_directions: Change

    def record(self) -> dict[str, Any]:
        """JSON-ready; what is not finite is null."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def merging(runs: Sequence[Path], num_domains: int = 11, seed: int = 0) -> Merging:
    """Figures of every probe of these runs, and whether their sources merge.

    Several runs are repetitions of one recipe with different seeds: their mean stands for the
    recipe, and its interval speaks of other seeds.
    """
    if num_domains < 1:
        raise ConfigError(f"num_domains must be at least 1, got {num_domains}")
    steps = _common_steps(runs)
    sources, left_out = _common_sources(runs, steps)
    found = [
        [perception(_comparable(run, step)[0], num_domains, seed) for step in steps] for run in runs
    ]
    _check_different(runs, found)
    by_run = [[probe.figures for probe in probes] for probes in found]
    means = [_mean_figures(same_step) for same_step in zip(*by_run, strict=True)]
    return Merging(
        runs=list(runs),
        steps=steps,
        over="rows" if len(runs) == 1 else "runs",
        sources=sources,
        left_out=left_out,
        num_domains=num_domains,
        seed=seed,
        figures=by_run[0] if len(runs) == 1 else means,
        by_run=by_run,
        merged=_change(found, directions=False),
        merged_directions=_change(found, directions=True),
    )


def verdict(interval: Interval | None) -> Verdict:
    """What a change may be called: nothing is claimed unless its interval excludes zero."""
    if interval is None or interval.low <= 0 <= interval.high:
        return "no clear change"
    return "sources merge" if interval.high < 0 else "sources separate"


def _comparable(run: Path, step: int) -> tuple[Probe, list[str]]:
    """A probe without the sources that have too few rows, and their names."""
    whole = read_probe(run, step)
    kept, left_out = whole.keeping(LEAST_ROWS)
    if len(kept.sources) < 2:
        found = {s: whole.source_N.tolist().count(n) for n, s in enumerate(whole.sources)}
        raise RunError(
            f"the probes of {run} cannot compare sources: rows of each are {found}, and two "
            f"sources need {LEAST_ROWS} each. Train with a higher probe.rows, or more validation "
            "text"
        )
    return kept, left_out


def _common_steps(runs: Sequence[Path]) -> list[int]:
    if not runs:
        raise ConfigError("no run was given; give one, or several that differ by their seeds")
    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError(f"a run is given twice in {[str(run) for run in runs]}; give each once")
    steps = {str(run): probed_steps(run) for run in runs}
    if len({tuple(own) for own in steps.values()}) > 1:
        raise ConfigError(
            f"runs must be probed after the same steps, got {steps}; compare runs with the same "
            "train.steps and probe.at, all complete"
        )
    return steps[str(runs[0])]


def _common_sources(runs: Sequence[Path], steps: Sequence[int]) -> tuple[list[str], list[str]]:
    """The sources compared and those left out: the same in every run, as probes keep their rows."""
    named = {str(run): _comparable(run, steps[0]) for run in runs}
    sources = {run: probe.sources for run, (probe, _) in named.items()}
    if len({tuple(own) for own in sources.values()}) > 1:
        raise ConfigError(f"runs must have the same sources, got {sources}")
    probe, left_out = named[str(runs[0])]
    return probe.sources, left_out


def _check_different(runs: Sequence[Path], found: Sequence[Sequence[Perception]]) -> None:
    """A copy of a run would count as a second seed, and narrow the interval."""
    for (run, own), (other, its) in combinations(zip(runs, found, strict=True), 2):
        if len(own) > 1 and own[-1].figures == its[-1].figures:
            raise ConfigError(
                f"{run} and {other} have the same probe of step {own[-1].figures.step}; give runs "
                "with different seeds"
            )


def _mean_figures(same_step: Sequence[ProbeFigures]) -> ProbeFigures:
    """Means over runs with t intervals, which end where NMI and purity do.

    A separation has no such end: being unbiased, it may well be below 0.
    """

    def mean(estimates: Sequence[Estimate], ends: Range = ANY) -> Estimate:
        over_runs = paired_difference([estimate.value for estimate in estimates])
        return Estimate(over_runs.mean, cut(over_runs.interval, ends))

    num = len(same_step)
    return ProbeFigures(
        step=same_step[0].step,
        separation=mean([probe.separation for probe in same_step]),
        separation_directions=mean([probe.separation_directions for probe in same_step]),
        nmi=mean([probe.nmi for probe in same_step], SHARE),
        nmi_by_chance=sum(probe.nmi_by_chance for probe in same_step) / num,
        purity=mean([probe.purity for probe in same_step], SHARE),
        purity_by_chance=sum(probe.purity_by_chance for probe in same_step) / num,
        rows=min(probe.rows for probe in same_step),
    )


def _change(found: Sequence[Sequence[Perception]], *, directions: bool) -> Change:
    pairs = [
        (probes[0].directions, probes[-1].directions)
        if directions
        else (probes[0].whole, probes[-1].whole)
        for probes in found
    ]
    differences = [last.value - first.value for first, last in pairs]
    if len(found[0]) == 1:
        interval = None  # of a single probe there is no change
    elif len(pairs) == 1:
        interval = over_rows(pairs[0][1] - pairs[0][0], found[0][0].source_N).interval
    else:
        interval = paired_difference(differences).interval
    num = len(pairs)
    return Change(
        first=sum(first.value for first, _ in pairs) / num,
        last=sum(last.value for _, last in pairs) / num,
        difference=sum(differences) / num,
        interval=interval,
        verdict=verdict(interval),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
