"""Reads what a page shows of one run directory. Files that are missing are left out."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dograph.config import RunConfig
from dograph.eval.recorded import (
    ENDS,
    domains_last,
    read_validation,
    watched_lines,
    weight_lines,
)
from dograph.plan.jobs import RESULT
from dograph.progress import duration
from dograph.records import Skipped, read_record
from dograph.report.charts import LineChart
from dograph.report.domains import DomainsView, domains_of
from dograph.report.series import Columns, OpenRun, Series, curve, rounded
from dograph.stats import ABOVE_ZERO, Estimate, t_interval
from dograph.train.edits import edits_of
from dograph.train.metrics import RARE, SUMMARIES
from dograph.train.noise import HIGH, LOW, SCALE, measured_parameters

ENVIRONMENT = "env.json"  # versions and devices
WARM_UP = 5  # steps that mean times leave out: compilation, first allocations

LOSS = "/loss_nats"  # how columns of losses end
MOST_LINES = 12
CHOICES = {  # title and note of each chart
    "now": ("Weights of the mixer", "of the sources or strata with most weight"),
    "help": ("Help for the targets", "1 is as much as their own text; shaded: 95 % interval"),
}
UNSMOOTHED = ("optim/lr", "train/batch_size", "time/tokens_per_second")
RESIDUAL = "weights/solver_residual"
HEALTH = {  # title and explanation of each chart
    "weights/effective_samples": "Effective samples: 1 / sum of squared sample weights; equal "
    "weights give the batch size ({batch})",
    "weights/max_relative_weight": "Largest sample weight: relative to equal weights, which are 1",
    "weights/entropy_nats": "Entropy of the domain weights: in nats; equal weights over M domains "
    "give ln M",
    "domains/nmi": "Agreement of domains and sources: normalized mutual information over ten "
    "batches; 1: the same grouping, 0: unrelated",
    "domains/batch_nmi": "Agreement of domains and sources in each batch: normalized mutual "
    "information; 1: the same grouping; small domains agree by chance, so compare steps and do not "
    "interpret the level",
    "weights/gradient_norm_ratio": "Norm of the weighted gradient relative to equal weights: "
    "|sum c g| / |mean g| of the sketches; 1: weighting does not change the norm",
    "noise/scale_samples": "Noise scale: in samples, of the sketched parameters, which are named "
    "beside the batch size ({batch}); a batch of this size would have as much noise as signal",
    "optim/grad_norm": "Gradient norm: of the update, before clipping",
}
FALLBACK = "equal weights were used: a gradient was not finite or the problem had no solution"
UNCONVERGED = "the solver did not converge: residual up to {most:.2g}"
# Column, largest normal value, warning. Beyond 1e-3 weights are no solution of the objective.
UNUSUAL = ((RARE, 0.0, FALLBACK), (RESIDUAL, 1e-3, UNCONVERGED))


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """A source's last validation: loss per token, and the variance of that mean."""

    mean: float
    variance: float
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Time and memory of the run's steps."""

    parts: dict[str, float]  # milliseconds of a step
    step_ms: float | None  # wall-clock, with data loading and metrics
    tokens_per_second: float | None
    peak_bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Everything a page shows of one run."""

    path: Path
    name: str
    group: str  # shared by runs that differ only in their seed
    config: RunConfig  # after edits
    steps: int
    facts: dict[str, str]
    losses: dict[str, Estimate]  # last validation: sources, then summaries
    validated: int  # its step
    bits: dict[str, float | None]  # the same in bits per byte
    epochs: dict[str, float | None]  # by source
    warnings: list[str]
    curves: dict[str, Series]  # by the name of the metric
    watched: list[str]  # spikes and flagged documents, with train.on_spike
    choices: list[LineChart]  # of a mixer with a weight for each source, or stratum
    chosen: list[str]  # what it gave each one at last
    cost: StepCosts
    domains: DomainsView | None

    @property
    def is_complete(self) -> bool:
        return self.steps >= self.config.batches.steps

    @property
    def command(self) -> str:
        return f"dograph train {self.path / 'config.yaml'} run=NEW_DIR"

    @property
    def sources(self) -> list[str]:
        return [name for name in self.losses if name not in SUMMARIES]


def run_data(run: OpenRun, name: str, group: str, buckets: int) -> RunData:
    """Everything a page shows of a run whose metrics have been read."""
    columns = run.columns
    shown = {*HEALTH, *UNSMOOTHED, *(name for name in columns.names if name.endswith(LOSS))}
    # Domains of one batch are unrelated to those of the next: NMI over ten batches means nothing.
    shown.remove("domains/batch_nmi" if domains_last(run.config) else "domains/nmi")
    curves = {}
    for metric in (name for name in columns.names if name in shown):
        smooth = metric not in UNSMOOTHED and not metric.startswith("valid/")
        curves[metric] = curve(*columns.get(metric), buckets, smooth=smooth)
    losses, cost, warnings = last_losses(run), cost_of(run), warnings_of(run)
    facts, domains = _facts(run, cost), domains_of(run, buckets)
    is_live, is_watched = run.files.use() != "free", run.files.watch_file.is_file()
    damage = [*columns.skipped.warnings(live=is_live), *run.skipped.warnings(live=is_live)]
    return RunData(
        path=run.path,
        name=name,
        group=group,
        config=run.as_trained(),
        steps=columns.last_step,
        facts=facts,
        losses=losses,
        validated=int(max(columns.get(f"valid/mean{LOSS}")[0], default=0)),
        bits={name: columns.last(f"valid/{name}/bits_per_byte") for name in losses},
        epochs={source: columns.last(f"data/{source}/epochs") for source in losses},
        warnings=warnings + damage,
        curves=curves,
        watched=watched_lines(run.path, run.skipped) if run.corpus and is_watched else [],
        choices=choices_of(columns, buckets),
        chosen=weight_lines({name: columns.last(name) or 0.0 for name in columns.names}),
        cost=cost,
        domains=domains,
    )


def choices_of(columns: Columns, buckets: int) -> list[LineChart]:
    """The weights of sources, or strata, and their help for targets, of those with most weight."""
    charts, every = [], columns.between("weights/", "/now")
    names = sorted(every, key=lambda name: -(columns.last(f"weights/{name}/now") or 0.0))
    for quantity, (title, note) in CHOICES.items():
        series = []
        for index, name in enumerate(names[:MOST_LINES]):
            own = f"weights/{name}/{quantity}"
            step_N, _ = columns.get(own)
            kept = slice(None, None, 1 + len(step_N) // (2 * buckets))
            y, low, high = (rounded(columns.get(own + end)[1][kept]) for end in ENDS)
            line = Series(x=step_N[kept].tolist(), y=y, name=name, index=index)
            series += [replace(line, low=low, high=high) if low else line] if y else []
        charts += [LineChart(title, series, note)] if series else []
    return charts


def warnings_of(run: OpenRun) -> list[str]:
    """What a reader should know before trusting the numbers, one line each."""
    warnings, columns = list[str](), run.columns
    steps, most = run.config.batches.steps, run.config.data.warn_epochs
    if stopped := sorted(path.stem for path in run.path.glob("nonfinite-step-*.json")):
        warnings.append(f"a loss was not finite: {', '.join(stopped)}; files: see docs/runs.md")
    if columns.last_step < steps:
        warnings.append(
            f"not complete: {columns.last_step} of {steps} steps. If it has stopped, continue "
            f"with: dograph train --resume {run.path}"
        )
    for edit in edits_of(run.files, run.skipped):
        warnings.append(
            f"the mixture was edited, so config.yaml alone does not reproduce the run: {edit.line} "
            f"(from {edit.given}, {edit.time})"
        )
    for source in columns.between("data/", "/epochs"):
        if (epochs := columns.last(f"data/{source}/epochs") or 0.0) > most:
            limit = f"more than data.warn_epochs={most:g}"
            warnings.append(f"{source} was repeated for {epochs:.1f} epochs, {limit}")
    for name, largest, text in UNUSUAL:
        step_N, value_N = columns.get(name)
        if len(at := step_N[value_N > largest]):
            of = columns.last_step if name == RARE else len(step_N)
            where = f"in {len(at)} of {of} recorded steps, first in step {int(at[0])}"
            warnings.append(f"{text.format(most=float(value_N.max()))} ({where})")
    warnings += columns.gaps.warnings(run.files.metrics_file)
    if columns.last_step and not columns.between("valid/", LOSS):
        warnings.append(
            "no validation loss: none was due yet, or the corpus has no validation text"
        )
    return warnings


def last_losses(run: OpenRun) -> dict[str, Estimate]:
    """Sources, then summaries; intervals over validation blocks once the run is complete."""
    columns, every = run.columns, block_losses(run.files.validation_file, run.skipped)
    names = columns.between("valid/", LOSS)
    nats = {name: columns.last(f"valid/{name}{LOSS}") or 0.0 for name in names}
    # The file may be of another validation.
    blocks = {s: own for s, own in every.items() if abs(own.mean - nats.get(s, 0.0)) < 1e-3}
    sources = [name for name in nats if name not in SUMMARIES]
    tokens = run.corpus.tokens_by_source() if run.corpus is not None else {}
    total = sum(tokens.get(source, 0) for source in sources)
    worst = sorted(sources, key=lambda source: -nats[source])[:1]
    # The weight of each source in a loss; empty if unknown.
    weights: dict[str, dict[str, float]] = {source: {source: 1.0} for source in sources}
    weights["mean"] = {source: 1 / len(sources) for source in sources}
    weights["worst"] = dict.fromkeys(worst, 1.0)
    weights["natural"] = {source: tokens.get(source, 0) / total for source in sources if total}
    losses = {}
    for name in (*sources, *(name for name in SUMMARIES if name in nats)):
        parts = [(weight, blocks[s]) for s, weight in weights[name].items() if s in blocks]
        is_known = parts and len(parts) == len(weights[name])
        losses[name] = over_blocks(nats[name], parts) if is_known else Estimate(nats[name])
    return losses


def block_losses(file: Path, skipped: Skipped | None = None) -> dict[str, BlockLoss]:
    """By source, from validation.jsonl; sources with one block have no variance and are left out.

    The mean is a ratio of sums over blocks, sum p l / sum p, and its variance that of a ratio:
    sum p^2 (l - mean)^2 / (sum p)^2 times n / (n - 1). Blocks are treated as independent.
    """
    losses: dict[str, BlockLoss] = {}
    for source, (size_n, loss_n) in read_validation(file, skipped).items():
        num, total = len(size_n), size_n.sum()
        if num < 2 or not total or not np.isfinite(loss_n).all():
            continue
        mean = float((size_n * loss_n).sum() / total)
        square = float((size_n**2 * (loss_n - mean) ** 2).sum()) / total**2
        losses[source] = BlockLoss(mean, square * num / (num - 1), num)
    return losses


def over_blocks(value: float, parts: Sequence[tuple[float, BlockLoss]]) -> Estimate:
    """A weighted mean of sources with its t interval; sources are treated as independent."""
    variance = math.fsum(weight**2 * loss.variance for weight, loss in parts)
    freedom = max(1, sum(loss.blocks - 1 for _, loss in parts))
    return Estimate(value, t_interval(value, math.sqrt(variance), freedom)).within(ABOVE_ZERO)


def cost_of(run: OpenRun) -> StepCosts:
    """Mean milliseconds by part and in total, throughput and peak memory."""
    columns, parts = run.columns, {}
    for name in columns.between("time/", "_ms"):
        step_N, value_N = columns.get(f"time/{name}_ms")
        late_N = step_N > WARM_UP
        parts[name] = round(float(value_N[late_N if late_N.any() else slice(None)].mean()), 3)
    step_N, second_N = columns.get("time/step_seconds")
    taken_N = np.diff(step_N, prepend=0)  # each row is the mean over the steps since the last row
    spent_N = second_N * taken_N
    late = slice(1, None) if len(step_N) > 1 else slice(None)
    steps = float(taken_N[late].sum())
    speed_N, held_N = (columns.get(n)[1] for n in ("time/tokens_per_second", "memory/peak_bytes"))
    result = read_record(run.path / RESULT, dict[str, Any], run.skipped) or {}
    peak = result.get("peak_bytes", held_N.max() if len(held_N) else None)
    return StepCosts(
        parts=parts,
        step_ms=1e3 * (float(spent_N[late].sum()) / steps) if steps else None,
        tokens_per_second=float(np.median(speed_N)) if len(speed_N) else None,
        peak_bytes=int(peak) if isinstance(peak, int | float) else None,
        seconds=float(spent_N.sum()) if len(step_N) else None,
    )


def _facts(run: OpenRun, cost: StepCosts) -> dict[str, str]:
    config, train, made = run.config, run.config.train, run.columns.last_step
    environment = read_record(run.path / ENVIRONMENT, _environment, run.skipped) or {}
    options = ", ".join(f"{k}={json.dumps(v)}" for k, v in config.mixer.options.items())
    devices = environment.get("gpus") or [f"CPU, {environment.get('torch_threads', '?')} threads"]
    libraries = environment.get("libraries") or {}
    scale, *ends = (run.columns.last(f"noise/{name}") for name in (SCALE, LOW, HIGH))
    shown = " to ".join("?" if end is None else f"{end:.3g}" for end in ends)
    of = f"samples (95 %: {shown}), of {measured_parameters(config.sketch)}"
    return {
        "run": str(run.path) + (f", forked from {run.parent}" if run.parent else ""),
        "model": str(config.model.preset or config.model.path),
        "corpus": config.data.corpus,
        "mixer": config.mixer.name + (f" ({options})" if options else ""),
        "seed": str(config.seed),
        "steps": f"{made:,} of {config.batches.steps:,}",
        "batch": f"{config.batches} samples of {config.data.seq_len} tokens, {train.dtype}"
        + ("" if scale is None else f"; noise scale {scale:.3g} {of}"),
        "tokens": f"{config.batches.drawn(made) * config.data.seq_len:,}",
        "device": ", ".join(dict.fromkeys(map(str, devices))),
        "processes": str(environment.get("world_size", "?")),
        "versions": ", ".join(f"{k} {v}" for k, v in list(libraries.items())[:2]),
        "training time": "" if cost.seconds is None else duration(cost.seconds),
    }


def _environment(values: dict[str, Any]) -> dict[str, Any]:
    list(values.get("gpus") or ()), dict(values.get("libraries") or {})  # raises if they are not
    return values
