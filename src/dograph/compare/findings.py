"""From finished cells to the content of compare.json: typed records of cells and methods.

Shapes: N seeds, S sources, n blocks of a source, M methods, R resamples.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from dograph import stats
from dograph.compare.arms import Ask, ComparedMethod
from dograph.compare.cells import Cell, Planned
from dograph.data.corpus import Corpus
from dograph.errors import RunError
from dograph.eval.recorded import read_validation
from dograph.plan.jobs import Result
from dograph.records import Skipped, finite, read_record
from dograph.stats import LEAST_SEEDS, METRICS, Estimate, Interval
from dograph.train.distributed import describe_environment
from dograph.train.run_dir import RunDirectory

FORMAT, VERSION = "dograph-compare", 1
REPORT = "compare.json"

# A number that is not finite is null on disk and NaN here.
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


@dataclass(frozen=True, slots=True)
class RunCost:
    """FLOPs or seconds of a run; a method's cost is the mean over its runs."""

    train: float
    plan: float
    total: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over the seeds of a method."""

    mean: Number
    deviation: Number | None  # sample standard deviation; None for one seed
    seeds: int


@dataclass(frozen=True, slots=True)
class MostEpochs:
    """The source that a method repeats most."""

    source: str
    epochs: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """Method minus baseline for one metric, over seeds and over validation text."""

    mean: Number
    seeds: int
    interval: Interval | None
    simultaneous: Interval | None
    p: float | None
    p_holm: float | None
    over_items: Interval | None
    claim: str

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.mean, self.interval, self.seeds, self.simultaneous, self.p)

    @property
    def is_claimed(self) -> bool:
        return self.claim in ("lower", "higher")


@dataclass(frozen=True, slots=True)
class Contrasts:
    """Method minus baseline for every source and for the four summaries."""

    sources: dict[str, Contrast]
    mean: Contrast
    natural: Contrast
    worst: Contrast
    gap: Contrast

    def __getitem__(self, name: str) -> Contrast:
        """Of a summary or of a source; no source has the name of a summary."""
        contrast: Contrast = getattr(self, name) if name in METRICS else self.sources[name]
        return contrast


@dataclass(frozen=True, slots=True)
class EqualTime:
    """A method beside the baseline, trained for as long as the method takes."""

    ratio: Estimate  # time of a step over that of a step of the baseline
    time: Number  # of the whole run with its plan, over that of a run of the baseline
    differences: dict[str, Contrast]  # by summary; none beyond the longest run of the baseline
    worth: float | None  # steps in which the baseline reaches the method's loss, over its own
    most: float  # longest run of the baseline, over its own steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFindings:
    """One run; fields with a default are known only if it finished."""

    label: str
    method: str
    seed: int
    run: str
    command: str  # trains it again
    steps: int
    tokens: int
    flops: RunCost
    error: str | None
    seconds: RunCost | None = None
    peak_bytes: int | None = None
    losses: dict[str, Number] = field(default_factory=dict)  # by source, nats
    summaries: dict[str, Number] = field(default_factory=dict)  # by metric
    epochs: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[int, dict[str, Number]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFindings:
    """The runs of one method; fields with a default are known only if one finished."""

    label: str
    mixer: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)  # settings that only this method has
    cells: list[str]
    failed: list[str]
    plans: list[Planned]
    one_plan_for_all_seeds: bool
    steps: list[int]
    tokens: list[int]
    flops: RunCost
    needs: list[str] = field(default_factory=list)  # besides text; older files do not say
    seconds: RunCost | None = None
    peak_bytes: int | None = None
    losses: dict[str, Spread] = field(default_factory=dict)  # by metric
    sources: dict[str, Spread] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)
    most_epochs: MostEpochs | None = None
    differences: Contrasts | None = None  # None for the baseline
    equal_time: EqualTime | None = None  # with --match time, for all but the baseline

    def difference(self, name: str) -> Contrast | None:
        """To the baseline, in a summary or a source; None if no pair of runs has a finite one."""
        own = self.differences and self.differences[name]
        return own if own and own.seeds and math.isfinite(own.mean) else None


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    folder: str
    digest: str
    tokens: dict[str, int]  # by source


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The content of compare.json."""

    format: str
    version: int
    command: str | None
    budget: str
    baseline: str
    seeds: list[int]
    replan: bool
    config: dict[str, Any]
    proxy: dict[str, Any] | None
    corpus: CorpusFacts
    environment: dict[str, Any]
    methods: list[MethodFindings]
    cells: list[CellFindings]
    failures: dict[str, str]
    notes: list[str]

    @property
    def labels(self) -> list[str]:
        return [method.label for method in self.methods]

    @property
    def finished(self) -> list[CellFindings]:
        return [cell for cell in self.cells if cell.error is None]

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> "Findings":
        return TypeAdapter(cls).validate_python(values)

    @classmethod
    def read(cls, folder: Path) -> "Findings":
        """The findings in a folder; a damaged file is an error."""
        skipped = Skipped()
        findings = read_record(folder / REPORT, lambda own: cls.of_json(finite(own)), skipped)
        if findings is None:
            why = "".join(f" ({text})" for text in skipped.warnings())
            raise RunError(
                f"{folder} has no {REPORT} that can be read{why}; the command that made the "
                "comparison writes it again, without training"
            )
        return findings


@dataclass(frozen=True, slots=True)
class RunLosses:
    """Losses of one run: by source, their summaries, and by block (predictions, losses)."""

    losses: Mapping[str, float]
    summaries: Mapping[str, float]
    blocks: Mapping[str, tuple[np.ndarray, np.ndarray]]


BySeed = Mapping[int, RunLosses]


def contrasts(
    runs: Mapping[str, BySeed], baseline: str, others: Sequence[str], tokens: Mapping[str, int]
) -> dict[str, Contrasts]:
    """For each of `others`: differences to the baseline in the summaries and in every source.

    Holm's correction is over the rows of a table: for the summaries, each column of the main table
    is a family of one test per method; the table by source is one family of all its cells.
    """
    sources = next((list(run.losses) for own in runs.values() for run in own.values()), [])
    share_S = np.array([float(tokens[source]) for source in sources])
    over_text: dict[tuple[str, str], Interval | None] = {}
    for label in others:
        loss_RMNS = _resampled(runs[baseline], runs[label], sources)
        if loss_RMNS is not None:
            metrics = stats.summaries(loss_RMNS, share_S)
            metrics |= {source: loss_RMNS[..., s] for s, source in enumerate(sources)}
            for name, value_RMN in metrics.items():
                over_text[label, name] = stats.percentile_interval(value_RMN, 1, 0)

    def by_seed(label: str, name: str) -> dict[int, float]:
        """A summary or a source's loss; no source has the name of a summary."""
        return {s: {**run.losses, **run.summaries}[name] for s, run in runs[label].items()}

    families = [[(label, metric) for label in others] for metric in METRICS]
    families.append([(label, source) for label in others for source in sources])
    contrast_of: dict[tuple[str, str], Contrast] = {}
    for family in families:
        tests = [
            stats.paired_difference(by_seed(label, name), by_seed(baseline, name), len(family))
            for label, name in family
        ]
        adjusted = stats.holm([test.p_value for test in tests])
        for key, test, p_holm in zip(family, tests, adjusted, strict=True):
            over_seeds = (test.value, test.num, test.interval, test.simultaneous, test.p_value)
            said = stats.claim(test, p_holm)
            contrast_of[key] = Contrast(*over_seeds, p_holm, over_text.get(key), said)
    return {
        label: Contrasts(
            {source: contrast_of[label, source] for source in sources},
            **{metric: contrast_of[label, metric] for metric in METRICS},
        )
        for label in others
    }


def _resampled(baseline: BySeed, method: BySeed, sources: Sequence[str]) -> np.ndarray | None:
    """Both methods on the same resampled blocks; None if a run has no blocks on disk."""
    seeds = [seed for seed in method if seed in baseline]
    pair = [[own[seed] for seed in seeds] for own in (baseline, method)]
    if not seeds or any(set(run.blocks) != set(sources) for own in pair for run in own):
        return None
    blocks_of = {}
    for source in sources:
        predictions = pair[0][0].blocks[source][0]
        assert all(
            np.array_equal(run.blocks[source][0], predictions) for own in pair for run in own
        ), "runs of one comparison read the same blocks"
        loss_MNn = np.array([[run.blocks[source][1] for run in own] for own in pair])
        blocks_of[source] = predictions, np.moveaxis(loss_MNn, -1, 0)
    return stats.resample(blocks_of)


def build_findings(
    ask: Ask,
    corpus: Corpus,
    cells: Sequence[Cell],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> Findings:
    """Results per cell, method and source; differences, intervals, costs, versions."""
    tokens, baseline = corpus.tokens_by_source(), ask.methods[0].label
    rows = [_cell(own, results.get(own.label), failures.get(own.label), tokens) for own in cells]
    runs: dict[str, dict[int, RunLosses]] = {method.label: {} for method in ask.methods}
    skipped = Skipped()
    for row in rows:
        if row.error is None:
            blocks = read_validation(RunDirectory(Path(row.run)).validation_file, skipped)
            runs[row.method][row.seed] = RunLosses(row.losses, row.summaries, blocks)
    others = [own.label for own in ask.methods if own.label != baseline and own.length == 1]
    differences = contrasts(runs, baseline, others, tokens)
    methods = []
    for method in ask.methods:
        own = [row for row in rows if row.method == method.label]
        of_method = [cell for cell in cells if cell.method == method.label]
        plans = {cell.plan.seed: cell.plan for cell in of_method if cell.plan is not None}
        methods.append(_method(method, own, plans, differences.get(method.label)))
    findings = Findings(
        format=FORMAT,
        version=VERSION,
        command=ask.command,
        budget=ask.budget,
        baseline=baseline,
        seeds=list(ask.seeds),
        replan=ask.replan,
        config=ask.config.model_dump(mode="json"),
        proxy=None if ask.proxy is None else ask.proxy.model_dump(mode="json"),
        corpus=CorpusFacts(str(corpus.directory), corpus.digest, tokens),
        environment=describe_environment(),
        methods=methods,
        cells=rows,
        failures=dict(failures),
        notes=[],
    )
    damaged = [f"warning: {text}" for text in skipped.warnings()]
    return replace(findings, notes=[*_notes(findings), *damaged])


def _cell(
    cell: Cell, result: Result | None, error: str | None, tokens: Mapping[str, int]
) -> CellFindings:
    known: dict[str, Any] = {}
    if result is not None:
        loss_S = np.array(list(result.losses.values()))
        share_S = np.array([float(tokens[source]) for source in result.losses])
        planning = 0.0 if cell.plan is None else cell.plan.seconds
        known = {
            "seconds": RunCost(result.seconds, planning, result.seconds + planning),
            "peak_bytes": result.peak_bytes,
            "losses": dict(result.losses),
            "summaries": {k: float(v) for k, v in stats.summaries(loss_S, share_S).items()},
            "epochs": dict(result.epochs),
            "curve": [(step, dict(losses)) for step, losses in result.curve],
        }
    return CellFindings(
        label=cell.label,
        method=cell.method,
        seed=cell.seed,
        run=cell.config.run,
        command=cell.command,
        steps=cell.config.batches.steps,
        tokens=cell.config.tokens,
        flops=RunCost(cell.flops, cell.plan_flops, cell.flops + cell.plan_flops),
        error=error,
        **known,
    )


def _method(
    method: ComparedMethod,
    cells: Sequence[CellFindings],
    plans: Mapping[int | None, Planned],
    differences: Contrasts | None,
) -> MethodFindings:
    def mean(costs: Sequence[RunCost]) -> RunCost:
        return RunCost(*map(fmean, zip(*map(astuple, costs), strict=True)))

    def spread(values: Sequence[float]) -> Spread:
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return Spread(fmean(values), deviation, len(values))

    finished = [cell for cell in cells if cell.error is None]
    row = MethodFindings(
        label=method.label,
        mixer=dict(method.mixer),
        own=dict(method.own),
        needs=method.built().inputs,
        differences=differences,
        cells=[cell.label for cell in cells],
        failed=[cell.label for cell in cells if cell.error is not None],
        plans=list(plans.values()),
        one_plan_for_all_seeds=None in plans,
        steps=sorted({cell.steps for cell in cells}),
        tokens=sorted({cell.tokens for cell in cells}),
        flops=mean([cell.flops for cell in cells]),
    )
    if not finished:
        return row
    first = finished[0]
    epochs = {name: max(cell.epochs[name] for cell in finished) for name in first.epochs}
    return replace(
        row,
        seconds=mean([cell.seconds for cell in finished if cell.seconds]),
        peak_bytes=max(cell.peak_bytes or 0 for cell in finished),
        losses={name: spread([cell.summaries[name] for cell in finished]) for name in METRICS},
        sources={name: spread([cell.losses[name] for cell in finished]) for name in first.losses},
        epochs=epochs,
        most_epochs=MostEpochs(*max(epochs.items(), key=itemgetter(1))),
    )


def _notes(findings: Findings) -> Iterator[str]:
    """What a reader of the tables must know, one line each."""
    seeds = len(findings.seeds)
    yield (
        f"difference: method minus {findings.baseline}, paired by seed; [ ]: 95 % t interval over "
        "seeds; text: 95 % bootstrap interval over the validation blocks of these runs"
    )
    if seeds < LEAST_SEEDS:
        yield (
            f"no claim is made: {seeds} seed{'s' if seeds > 1 else ''}, and a claim needs "
            f"{LEAST_SEEDS}; the same command with --seeds {LEAST_SEEDS} adds the missing runs"
        )
    else:
        yield "p: Holm-adjusted over the rows; lower or higher is claimed where it is at most 0.05"
    shared = [method.label for method in findings.methods if method.one_plan_for_all_seeds]
    if shared and seeds > 1:
        yield (
            f"all seeds of {', '.join(shared)} use one plan (marked *): their intervals do not "
            "include how much the plan itself varies; --replan makes one plan per seed"
        )
    if any(method.plans for method in findings.methods):
        yield "FLOPs and time of every run include all proxies of its plan"
    for method in findings.methods:
        for name, proxies in dict.fromkeys((p.surrogate, p.proxies) for p in method.plans):
            if name is not None:
                yield f"plan of {method.label}: surrogate {name}, fitted on {proxies} proxies"
    if findings.budget == "compute":
        steps = findings.config["train"]["steps"]
        yield (
            "equal compute: every run has the FLOPs of the most expensive one at train.steps="
            f"{steps}; the learning-rate schedule is stretched to its steps"
        )
    limit = findings.config["data"]["warn_epochs"]
    for method in findings.methods:
        over = (f"{name} {n:.1f} times" for name, n in method.epochs.items() if n > limit)
        if named := ", ".join(over):
            yield f"warning: {method.label} read {named}, more than data.warn_epochs={limit:g}"
    yield from (f"failed: {error}" for error in findings.failures.values())
