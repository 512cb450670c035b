"""What a page holds, as values that become JSON; the page's script reads these names."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dograph.report.series import Curve
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

# The files a page is made from: their names beside those of `RunDirectory`, and how to read them.
#
# They are written by other commands, which a page does without; a test keeps the names the same.


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


# 95 % intervals that need no extra: Student's t by a table, and over validation blocks.


Spread = TypeVar("Spread", float, np.ndarray)

# The 0.975 quantile of Student's t for 1 to 30 degrees of freedom.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_NORMAL = 1.959964


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t; beyond the table by Cornish and Fisher's expansion."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = _NORMAL
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


def t_reach(deviation: Spread, num: int) -> Spread:
    """How far the interval of a mean of `num` values reaches to either side: t s / sqrt(num).

    `deviation` is that of a sample (num - 1 in its denominator), one or an array of them.
    """
    return deviation * (t_quantile(num - 1) / math.sqrt(num))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, with its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def of_mean(mean: float, deviation: float | None, num: int) -> Estimate:
    """A mean of `num` values with its t interval; a single one has none."""
    if deviation is None or num < 2:
        return Estimate(mean)
    reach = t_reach(deviation, num)
    return Estimate(mean, mean - reach, mean + reach)


def over_seeds(values: Sequence[float]) -> Estimate:
    """A mean over runs that differ in their seed, with its t interval."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return of_mean(math.fsum(values) / len(values), deviation, len(values))


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


def of_blocks(loss: BlockLoss) -> Estimate:
    """The interval of one source's loss over other text of it."""
    reach = t_quantile(loss.blocks - 1) * math.sqrt(loss.variance)
    return Estimate(loss.mean, loss.mean - reach, loss.mean + reach)


def of_weighted(value: float, parts: Sequence[tuple[float, BlockLoss]]) -> Estimate:
    """The interval of a weighted mean of sources; their text is independent."""
    variance = math.fsum(weight**2 * loss.variance for weight, loss in parts)
    freedom = max(1, sum(loss.blocks - 1 for _, loss in parts))
    reach = t_quantile(freedom) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach)


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
class Part:
    """Milliseconds of a step that went into one part."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the run's steps took."""

    parts: list[Part]
    step_ms: float | None  # on the clock: data and metrics too
    tokens_per_second: float | None
    peak_bytes: int | None
    plain: str | None = None  # what it is set beside
    over_plain: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
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
    arms: list[Arm]


@dataclass(frozen=True, slots=True)
class Example:
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
    examples: dict[str, list[Example]]  # by domain


@dataclass(frozen=True, slots=True)
class Placed:
    """A domain graph with a place for every node."""

    step: int
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    examples: dict[str, list[Example]] | None = (
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
class Domains:
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
    cost: Cost
    domains: Domains | None


@dataclass(frozen=True, slots=True)
class Band:
    """Mean over seeds and its 95 % interval, step by step; no interval where there is one run."""

    x: list[int]
    y: list[float]
    low: list[float] | None
    high: list[float] | None


@dataclass(frozen=True, slots=True)
class Group:
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
class Method:
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
    methods: list[Method]
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
class Text:
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
    groups: list[Group]
    comparisons: list[Comparison]
    scales: list[Scale]
    benchmarks: Benchmarks | None
    benches: list[Bench]
    texts: list[Text]
    format: str = field(default=FORMAT)
    version: int = field(default=VERSION)

    def to_json(self) -> str:
        """ASCII JSON; a number that is not finite would be a defect and is refused."""
        return json.dumps(self, default=_fields_of, allow_nan=False, separators=(",", ":"))


def _fields_of(value: Any) -> dict[str, Any]:
    assert is_dataclass(value)
    return {part.name: getattr(value, part.name) for part in fields(value)}
