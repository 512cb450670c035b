"""From finished cells to what the tables say: typed records that compare.json holds as they are.

Shapes: N seeds, S sources, n blocks of a source, R resamples.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, Planned
from dograph.data.corpus import Corpus
from dograph.files import plain
from dograph.plan.jobs import Result
from dograph.stats import (
    LEAST_SEEDS,
    METRICS,
    Blocks,
    Estimate,
    Interval,
    claim,
    holm,
    paired_difference,
    percentile_interval,
    resample,
    summaries,
)
from dograph.train.distributed import describe_environment
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

FORMAT, VERSION = "dograph-compare", 1
REPORT = "compare.json"

# What is not finite is null on disk, and not a number here.
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


@dataclass(frozen=True, slots=True)
class RunCost:
    """FLOPs or seconds of a run; a method's are the means of its runs."""

    train: float
    plan: float
    total: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the seeds of a method."""

    mean: Number
    deviation: Number | None  # of a sample; None of one seed
    seeds: int


@dataclass(frozen=True, slots=True)
class MostEpochs:
    """The source that a method repeats most."""

    source: str
    epochs: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of a method less the baseline's, over seeds and over validation text."""

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
    """All figures of a method less the baseline's: every source, and the four summaries."""

    sources: dict[str, Contrast]
    mean: Contrast
    natural: Contrast
    worst: Contrast
    gap: Contrast

    def __getitem__(self, metric: str) -> Contrast:
        found: Contrast = getattr(self, metric)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFindings:
    """One run; what has a default is known of finished ones alone."""

    label: str
    method: str
    seed: int
    run: str
    command: str  # makes it again
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
    """The runs of one method; what has a default is known where one was finished."""

    label: str
    mixer: dict[str, Any]
    cells: list[str]
    failed: list[str]
    plans: list[Planned]
    one_plan_for_all_seeds: bool
    steps: list[int]
    tokens: list[int]
    flops: RunCost
    seconds: RunCost | None = None
    peak_bytes: int | None = None
    losses: dict[str, Spread] = field(default_factory=dict)  # by metric
    sources: dict[str, Spread] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)
    most_epochs: MostEpochs | None = None
    differences: Contrasts | None = None  # None of the baseline


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    folder: str
    digest: str
    tokens: dict[str, int]  # by source


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that a comparison came to."""

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
        return cls.of_json(json.loads((folder / REPORT).read_text(encoding="utf-8")))


def as_json(value: Any) -> str:
    """JSON that every reader takes: what is not finite is null."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class RunLosses:
    """One run's losses: by source, summed up, and block by block (predictions, losses)."""

    losses: Mapping[str, float]
    summaries: Mapping[str, float]
    blocks: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def figure(self, name: str) -> float:
        """A summary's or a source's; no source has the name of a summary."""
        return self.summaries[name] if name in METRICS else self.losses[name]


BySeed = Mapping[int, RunLosses]


def contrasts(
    runs: Mapping[str, BySeed], baseline: str, others: Sequence[str], tokens: Mapping[str, int]
) -> dict[str, Contrasts]:
    """For each of `others`: differences of the summaries and of every source.

    Holm's correction is over the rows of a table: for the summaries, each column of the main table
    is a family of one test for each method; the table by source is one family of all its cells.
    """
    sources = next((list(run.losses) for own in runs.values() for run in own.values()), [])
    share_S = np.array([float(tokens[source]) for source in sources])
    over_text: dict[tuple[str, str], Interval | None] = {}
    for label in others:
        loss_RMNS = _resampled(runs[baseline], runs[label], sources)
        if loss_RMNS is not None:
            figures = summaries(loss_RMNS, share_S)
            figures |= {source: loss_RMNS[..., s] for s, source in enumerate(sources)}
            for name, figure_RMN in figures.items():
                over_text[label, name] = percentile_interval(figure_RMN, 1, 0)
    families = [[(label, metric) for label in others] for metric in METRICS]
    families.append([(label, source) for label in others for source in sources])
    found: dict[tuple[str, str], Contrast] = {}
    for family in families:
        tests = []
        for label, name in family:
            own, base = (
                {seed: run.figure(name) for seed, run in runs[of].items()}
                for of in (label, baseline)
            )
            tests.append(paired_difference(own, base, len(family)))
        adjusted = holm([test.p_value for test in tests])
        for key, test, p_holm in zip(family, tests, adjusted, strict=True):
            found[key] = Contrast(
                mean=test.value,
                seeds=test.num,
                interval=test.interval,
                simultaneous=test.simultaneous,
                p=test.p_value,
                p_holm=p_holm,
                over_items=over_text.get(key),
                claim=claim(test, p_holm),
            )
    return {
        label: Contrasts(
            {source: found[label, source] for source in sources},
            **{metric: found[label, metric] for metric in METRICS},
        )
        for label in others
    }


def _resampled(baseline: BySeed, method: BySeed, sources: Sequence[str]) -> np.ndarray | None:
    """Both methods on the same resampled blocks; None where a run has none on disk."""
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
        blocks_of[source] = Blocks(predictions, np.moveaxis(loss_MNn, -1, 0))
    return resample(blocks_of)


def find(
    ask: Ask,
    corpus: Corpus,
    cells: Sequence[Cell],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> Findings:
    """Everything: per cell, per method, per source; differences, intervals, costs, versions."""
    tokens, baseline = corpus.tokens_by_source(), ask.methods[0].label
    rows = {
        cell.label: _cell_findings(cell, results.get(cell.label), failures.get(cell.label), tokens)
        for cell in cells
    }
    runs: dict[str, dict[int, RunLosses]] = {method.label: {} for method in ask.methods}
    for row in rows.values():
        if row.error is None:
            kept: list[Any] = read_metrics(RunDirectory(Path(row.run)).validation_file)
            blocks = {
                own["source"]: (np.array(own["predictions"], float), np.array(own["loss_nats"]))
                for own in kept
            }
            runs[row.method][row.seed] = RunLosses(row.losses, row.summaries, blocks)
    others = [method.label for method in ask.methods if method.label != baseline]
    differences = contrasts(runs, baseline, others, tokens)
    methods = []
    for label, mixer in ((method.label, dict(method.mixer)) for method in ask.methods):
        mine = [cell for cell in cells if cell.method == label]
        plans = {cell.plan.seed: cell.plan for cell in mine if cell.plan is not None}
        told = _method_findings(label, mixer, [rows[cell.label] for cell in mine], plans)
        methods.append(replace(told, differences=differences.get(label)))
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
        cells=list(rows.values()),
        failures=dict(failures),
        notes=[],
    )
    return replace(findings, notes=notes_of(findings))


def _cell_findings(
    cell: Cell, result: Result | None, error: str | None, tokens: Mapping[str, int]
) -> CellFindings:
    row = CellFindings(
        label=cell.label,
        method=cell.method,
        seed=cell.seed,
        run=cell.config.run,
        command=cell.command,
        steps=cell.config.train.steps,
        tokens=cell.config.tokens,
        flops=RunCost(cell.flops, cell.price.plan, cell.flops + cell.price.plan),
        error=error,
    )
    if result is None:
        return row
    loss_S = np.array(list(result.losses.values()))
    share_S = np.array([float(tokens[source]) for source in result.losses])
    planning = 0.0 if cell.plan is None else cell.plan.seconds
    return replace(
        row,
        seconds=RunCost(result.seconds, planning, result.seconds + planning),
        peak_bytes=result.peak_bytes,
        losses=dict(result.losses),
        summaries={name: float(value) for name, value in summaries(loss_S, share_S).items()},
        epochs=dict(result.epochs),
        curve=[(step, dict(losses)) for step, losses in result.curve],
    )


def _method_findings(
    label: str,
    mixer: dict[str, Any],
    cells: Sequence[CellFindings],
    plans: Mapping[int | None, Planned],
) -> MethodFindings:
    done = [cell for cell in cells if cell.error is None]
    row = MethodFindings(
        label=label,
        mixer=mixer,
        cells=[cell.label for cell in cells],
        failed=[cell.label for cell in cells if cell.error is not None],
        plans=list(plans.values()),
        one_plan_for_all_seeds=None in plans,
        steps=sorted({cell.steps for cell in cells}),
        tokens=sorted({cell.tokens for cell in cells}),
        flops=_mean_cost([cell.flops for cell in cells]),
    )
    if not done:
        return row
    epochs = {name: max(cell.epochs[name] for cell in done) for name in done[0].epochs}
    most = max(epochs, key=lambda name: epochs[name])
    return replace(
        row,
        seconds=_mean_cost([cell.seconds for cell in done if cell.seconds]),
        peak_bytes=max(cell.peak_bytes or 0 for cell in done),
        losses={name: _spread([cell.summaries[name] for cell in done]) for name in METRICS},
        sources={name: _spread([cell.losses[name] for cell in done]) for name in done[0].losses},
        epochs=epochs,
        most_epochs=MostEpochs(most, epochs[most]),
    )


def _mean_cost(costs: Sequence[RunCost]) -> RunCost:
    parts = ([getattr(cost, part) for cost in costs] for part in ("train", "plan", "total"))
    return RunCost(*(math.fsum(values) / len(values) for values in parts))


def _spread(values: Sequence[float]) -> Spread:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(math.fsum(values) / len(values), deviation, len(values))


def notes_of(findings: Findings) -> list[str]:
    """What a reader of the tables must know, a line each."""
    number = len(findings.seeds)
    notes = [
        f"differences are to {findings.baseline}, seed by seed; [ ] is their 95 % t interval "
        "over seeds, and text the 95 % bootstrap interval over validation blocks of these runs"
    ]
    if number < LEAST_SEEDS:
        notes.append(
            f"no claim is made: {number} seed{'s' if number > 1 else ''}, and a claim needs "
            f"{LEAST_SEEDS}; the same command with --seeds {LEAST_SEEDS} adds what is missing"
        )
    else:
        notes.append(
            "p is Holm's, over the rows; lower and higher are claimed where it is at most 0.05"
        )
    shared = [method.label for method in findings.methods if method.one_plan_for_all_seeds]
    if shared and number > 1:
        notes.append(
            f"one plan serves all seeds of {', '.join(shared)} (marked *): their intervals do not "
            "hold how much the plan itself varies; --replan makes one for each seed"
        )
    if any(method.plans for method in findings.methods):
        notes.append(
            "FLOPs and time hold the plan's proxies in full, for each run: what training once costs"
        )
    if findings.budget == "compute":
        notes.append(
            "equal compute: every run has the FLOPs of the dearest at train.steps="
            f"{findings.config['train']['steps']}; the learning rate is stretched to its steps"
        )
    most = findings.config["data"]["warn_epochs"]
    for method in findings.methods:
        over = {name: times for name, times in method.epochs.items() if times > most}
        if over:
            named = ", ".join(f"{name} {times:.1f} times" for name, times in over.items())
            notes.append(
                f"warning: {method.label} read through {named}, more than data.warn_epochs={most:g}"
            )
    return notes + [f"failed: {error}" for error in findings.failures.values()]
