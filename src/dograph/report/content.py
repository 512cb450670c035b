"""What a page holds, as values that become JSON; the page's script reads these names."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dograph.report.series import Curve
from dograph.stats import Estimate, t_interval
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

# Names of the files a page is made from, beside those of `RunDirectory`. They are written by other
# commands, which a page does without; a test keeps the names the same.
ENVIRONMENT = "env.json"  # of a run: versions and devices
RESULT = "result.json"  # of a run that a pool made
EVALUATION = "eval.json"  # of a run: `dograph eval`
COMPARISON, ASKED, CELLS = "compare.json", "ask.json", "cells"  # `dograph compare`
BENCH = "bench.json"  # `dograph bench`


def is_run(path: Path) -> bool:
    return RunDirectory(path).config_file.is_file()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """An object a line; a line that is still being written, or was cut short, is left out."""
    rows: list[Any] = read_metrics(path)
    return rows


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """A source's last validation: loss per prediction, and the variance of that mean."""

    mean: float
    variance: float
    blocks: int


def block_losses(file: Path) -> dict[str, BlockLoss]:
    """By source, from validation.jsonl; sources with one block have no variance and are left out.

    The mean is a ratio of sums over blocks, sum p l / sum p, and its variance that of a ratio:
    sum p^2 (l - mean)^2 / (sum p)^2 times n / (n - 1). Blocks are taken as independent.
    """
    found: dict[str, BlockLoss] = {}
    for row in read_rows(file):
        size_n, loss_n = np.array(row["predictions"], float), np.array(row["loss_nats"], float)
        num, total = len(size_n), size_n.sum()
        if num < 2 or not total or not np.isfinite(loss_n).all():
            continue
        mean = float((size_n * loss_n).sum() / total)
        square = float((size_n**2 * (loss_n - mean) ** 2).sum()) / total**2
        found[row["source"]] = BlockLoss(mean, square * num / (num - 1), num)
    return found


def of_blocks(value: float, parts: Sequence[tuple[float, BlockLoss]]) -> Estimate:
    """A weighted mean of sources with its t interval over other text; texts are independent."""
    variance = math.fsum(weight**2 * loss.variance for weight, loss in parts)
    freedom = max(1, sum(loss.blocks - 1 for _, loss in parts))
    return Estimate(value, t_interval(value, math.sqrt(variance), freedom))


FORMAT, VERSION = "dograph-page", 1


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The last validation loss of a source or a summary."""

    name: str
    nats: Estimate
    epochs: float | None  # how often the source was read through
    is_summary: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure over steps with what it means."""

    name: str
    title: str
    meaning: str
    curve: Curve
    log: bool = False


@dataclass(frozen=True, slots=True)
class Curves:
    """What the section of curves shows; by source, and `total` or a summary's name."""

    train: dict[str, Curve]
    valid: dict[str, Curve]
    lr: Curve | None
    speed: Curve | None


@dataclass(frozen=True, slots=True)
class CostPart:
    """Milliseconds of a step that went into one part."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What the run's steps took."""

    parts: list[CostPart]
    step_ms: float | None  # on the clock: data and metrics too
    tokens_per_second: float | None
    peak_bytes: int | None
    plain: str | None = None  # what it is set beside
    over_plain: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArm:
    """One line of `dograph bench`."""

    name: str
    ms: float
    over_plain: Estimate | None
    extra_ms: float | None
    floor_ms: float | None
    floor_ratio: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Bench:
    """What `dograph bench` measured on one machine."""

    title: str
    arms: list[BenchArm]


@dataclass(frozen=True, slots=True)
class ExampleText:
    """A row near its domain's centroid; `text` is an index into the page's texts."""

    source: str
    document: int
    text: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProbe:
    """The probe rows at one step: coordinates by basis, source and domain of each."""

    step: int
    last: list[list[float]]  # x and y on the axes of the last probe
    own: list[list[float]]  # x and y on its own axes
    explained: list[list[float]]  # share of variance of both axes: on the last's, on its own
    label: list[int]  # -1 while no domains are known
    examples: dict[str, list[ExampleText]]  # by domain


@dataclass(frozen=True, slots=True)
class Placed:
    """A domain graph with a place for every node."""

    step: int
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    examples: dict[str, list[ExampleText]] | None = (
        None  # of the step's batch, where domains do not last
    )


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a domain at one probe is what it was at the one before, and what it became."""

    step: int
    rows: int
    kept: float | None  # rows of both over rows of either, this probe and the one before
    cosine: float | None  # of its centroid to that of the last probe


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainsShown:
    """What the model perceives in the course of a run."""

    has_identity: bool
    numbering: str  # what the number in a domain's name says
    sources: list[str]
    source_N: list[int]  # of each probe row
    probes: list[ShownProbe]
    graphs: list[Placed]
    weight: dict[str, Curve]
    share: dict[str, Curve]
    drift: dict[str, list[Drift]]
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One run."""

    name: str
    group: str  # runs that differ in their seed alone share it
    seed: int
    steps: int
    total_steps: int
    facts: list[tuple[str, str]]
    command: str
    losses: list[SourceLoss]
    warnings: list[str]
    curves: Curves
    health: list[Measure]
    cost: StepCosts
    domains: DomainsShown | None


@dataclass(frozen=True, slots=True)
class Band:
    """Mean over seeds and its 95 % interval, step by step; no interval where there is one run."""

    x: list[int]
    y: list[float]
    low: list[float] | None
    high: list[float] | None


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs that differ in their seed alone, taken together."""

    name: str
    runs: list[str]
    train: dict[str, Band]
    valid: dict[str, Band]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A method less the baseline, over seeds; below 0 is better."""

    value: Estimate
    text: Estimate | None = None  # its interval over validation text
    p: float | None = None  # adjusted by Holm
    claim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A row of a comparison."""

    name: str
    mixer: dict[str, Any]
    seeds: int
    losses: dict[str, Estimate]  # mean, natural, worst, gap
    sources: dict[str, Estimate]
    differences: dict[str, Difference]  # of the losses
    source_differences: dict[str, Difference]
    costs: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods trained alike."""

    title: str
    baseline: str
    parameters: int | None
    command: str | None  # that makes all of it
    is_planned: bool  # made by dograph compare, so that claims are corrected
    claim: str  # what may be said of the methods, and what may not
    methods: list[MethodRow]
    notes: list[str]
    num_domains: list[tuple[str, list[tuple[int, Estimate]]]]  # by what else was set
    objectives: list[tuple[str, str]]  # objective and method


@dataclass(frozen=True, slots=True)
class Scale:
    """A method at several sizes."""

    name: str
    points: list[tuple[int, Estimate]]  # parameters, mean loss


@dataclass(frozen=True, slots=True)
class Benchmarks:
    """Downstream tasks: what guessing scores, and every run's or group's score."""

    tasks: list[str]
    chance: dict[str, float]
    rows: list[tuple[str, dict[str, Estimate]]]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class CorpusText:
    """Text of the corpus; `cut` says that it went on."""

    text: str
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """Everything a page shows."""

    title: str
    verdict: str
    made: str
    program: str
    how: list[str]  # how curves were thinned and smoothed, and what intervals are
    runs: list[RunData]
    groups: list[SeedGroup]
    comparisons: list[Comparison]
    scales: list[Scale]
    benchmarks: Benchmarks | None
    benches: list[Bench]
    texts: list[CorpusText]
    format: str = field(default=FORMAT)
    version: int = field(default=VERSION)

    def to_json(self) -> str:
        """ASCII JSON; a number that is not finite would be a defect and is refused."""
        return json.dumps(self, default=_fields_of, allow_nan=False, separators=(",", ":"))


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, Estimate):
        return {"value": value.value, "low": value.low, "high": value.high}
    assert is_dataclass(value)
    return {part.name: getattr(value, part.name) for part in fields(value)}
