"""From a run directory to what a page shows of it. Parts that are not there are left out."""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import DographError
from dograph.eval.recorded import domains_last
from dograph.plan.jobs import RESULT
from dograph.report.domains import DomainsShown, Texts, domains_of
from dograph.report.series import Columns, Curve, curve, read_json
from dograph.stats import Estimate, t_interval
from dograph.train.edits import edits_of
from dograph.train.metrics import SUMMARIES, read_metrics
from dograph.train.run_dir import RunDirectory

ENVIRONMENT = "env.json"  # versions and devices
UNSOLVED = 1e-3  # a residual above this: the weights are not what the objective asks for
SETTLED = 5  # steps before times are taken: compilation, first allocations
PARTS = ("forward", "forward_backward", "sketch", "weigh", "backward", "deferred", "update")

RESIDUAL = "weights/solver_residual"  # on a logarithmic axis
HEALTH = {  # title, and what it means
    "weights/effective_samples": (
        "Effective samples",
        "1 / sum of squared sample weights; equal weights give the batch size ({batch})",
    ),
    "weights/max_times_equal": (
        "Largest sample weight, n max c",
        "what the heaviest sample counted; 1 is an equal weight",
    ),
    "weights/entropy_nats": (
        "Entropy of the domains' weights",
        "in nats; equal weights over M domains give ln M",
    ),
    "domains/nmi": (
        "Agreement of domains with sources",
        "normalised mutual information over ten batches; 1: the same grouping, 0: unrelated",
    ),
    "domains/batch_nmi": (
        "Agreement of domains with sources, in each batch",
        "normalised mutual information; 1: the same grouping; few samples in a domain agree by "
        "chance, so read its course and not its height",
    ),
    "weights/gradient_norm_ratio": (
        "Weighted over plain gradient norm",
        "|sum c g| / |mean g| on the sketches; 1: weights leave the length alone",
    ),
    RESIDUAL: ("Solver residual", "how far the weights are from what the objective asks for"),
    "optim/grad_norm": ("Gradient norm", "of the update, before clipping"),
}


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """A source's last validation: loss per prediction, and the variance of that mean."""

    mean: float
    variance: float
    blocks: int


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The last validation loss of a source or a summary."""

    name: str
    nats: Estimate
    epochs: float | None  # how often the source was read through
    is_summary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What the run's steps took."""

    parts: dict[str, float]  # milliseconds of a step
    step_ms: float | None  # on the clock: data and metrics too
    tokens_per_second: float | None
    peak_bytes: int | None
    plain: str | None = None  # what it is set beside
    over_plain: float | None = None
    seconds: float | None = None

    @property
    def is_plain(self) -> bool:
        """Nothing was sketched or weighed."""
        return not {"sketch", "weigh"} & set(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One run."""

    path: Path
    name: str
    group: str  # runs that differ in their seed alone share it
    label: str | None  # the method's name in a comparison
    config: RunConfig  # with what edits made of it
    parameters: int | None
    steps: int
    facts: list[tuple[str, str]]
    command: str
    losses: list[SourceLoss]
    warnings: list[str]
    train: dict[str, Curve]  # by source, and `total`
    valid: dict[str, Curve]  # by source or summary
    lr: Curve | None
    speed: Curve | None
    health: dict[str, Curve]
    cost: StepCosts
    domains: DomainsShown | None

    @property
    def is_complete(self) -> bool:
        return self.steps >= self.config.train.steps

    @property
    def mean_loss(self) -> Estimate | None:
        return next((x.nats for x in self.losses if x.is_summary and x.name == "mean"), None)


def block_losses(file: Path) -> dict[str, BlockLoss]:
    """By source, from validation.jsonl; sources with one block have no variance and are left out.

    The mean is a ratio of sums over blocks, sum p l / sum p, and its variance that of a ratio:
    sum p^2 (l - mean)^2 / (sum p)^2 times n / (n - 1). Blocks are taken as independent.
    """
    found: dict[str, BlockLoss] = {}
    rows: list[Any] = read_metrics(file)
    for row in rows:
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


def warnings_of(run: RunDirectory, config: RunConfig, columns: Columns) -> list[str]:
    """What a reader should be warned of, one line each; none where all is well."""
    told, steps, most = list[str](), config.train.steps, config.data.warn_epochs
    if stopped := sorted(path.stem for path in run.path.glob("nonfinite-step-*.json")):
        told += [f"a loss was not a number: {', '.join(stopped)}; docs/runs.md says what is kept"]
    if columns.last_step < steps:
        go_on = f"If it has stopped, go on: dograph train --resume {run.path}"
        told += [f"not complete: {columns.last_step} of {steps} steps. {go_on}"]
    told += [
        f"edited on the way, so config.yaml alone does not make it again: {edit.line} "
        f"(from {edit.given}, {edit.time})"
        for edit in edits_of(run)
    ]
    for source in columns.middles("data/", "/epochs"):
        epochs = columns.last(f"data/{source}/epochs") or 0.0
        if epochs > most:
            limit = f"more than data.warn_epochs={most:g}"
            told += [f"{source} was read through {epochs:.1f} times, {limit}"]
    step_N, fell_N = columns.get("weights/fallback")
    if len(at := step_N[fell_N > 0]):
        told += [
            f"equal weights in {len(at)} of {len(step_N)} steps, because a gradient was not finite "
            f"or the problem had no solution (first in step {int(at[0])})"
        ]
    step_N, residual_N = columns.get(RESIDUAL)
    if len(at := step_N[residual_N > UNSOLVED]):
        told += [
            f"solves that did not converge: residual above {UNSOLVED:g} in {len(at)} of "
            f"{len(step_N)} steps, at most {float(np.max(residual_N)):.2g} (first in step "
            f"{int(at[0])})"
        ]
    if columns.damaged:
        told += [f"{columns.damaged} lines of metrics.jsonl could not be read"]
    if columns.last_step and not columns.middles("valid/", "/loss_nats"):
        told += ["no validation yet, or no validation text: there is no loss to judge by"]
    return told


@dataclass(slots=True)
class OpenRun:
    """A run that is looked at, perhaps again and again while it grows."""

    path: Path
    label: str | None = None  # the method's name in a comparison
    origin: str | None = None  # the comparison's folder
    columns: Columns = field(init=False)
    config: RunConfig = field(init=False)

    def __post_init__(self) -> None:
        run = RunDirectory.open(self.path)
        self.columns = Columns(run.metrics_file)
        self.config = run.config()

    def as_trained(self) -> RunConfig:
        """The settings with what edits made of the mixer, which is then another method."""
        edits = edits_of(RunDirectory(self.path))
        if not edits:
            return self.config
        told = "; ".join(
            f"after {e.step}: "
            + " ".join(f"{source} {share:.3g}" for source, share in e.new.items())
            for e in edits
        )
        mixer = self.config.mixer.model_copy(update={"edited": told})
        return self.config.model_copy(update={"mixer": mixer})

    def corpus(self) -> Corpus | None:
        """The corpus where it still is what it was, and None elsewhere: a page can do without."""
        try:
            corpus = Corpus(self.config.data.corpus)
        except (DographError, OSError):
            return None
        states = sorted(RunDirectory(self.path).checkpoints.glob("step-*/state.json"))
        is_other = bool(states) and read_json(states[-1]).get("corpus") != corpus.digest
        return None if is_other else corpus


def run_data(run: OpenRun, name: str, group: str, buckets: int, texts: Texts) -> RunData:
    """All that is known of one run."""
    columns, config = run.columns, run.config
    columns.read()
    directory, corpus = RunDirectory(run.path), run.corpus()
    # Domains of one batch are not those of the next: taken over ten, they agree with nothing.
    other = "domains/batch_nmi" if domains_last(config) else "domains/nmi"

    def made(name: str, *, smooth: bool = True) -> Curve:
        return curve(*columns.get(name), buckets, smooth=smooth)

    train = {"total": made("train/loss_nats")} if "train/loss_nats" in columns else {}
    train |= {s: made(f"train/{s}/loss_nats") for s in columns.middles("train/", "/loss_nats")}
    valid = sorted(columns.middles("valid/", "/loss_nats"), key=lambda name: name not in SUMMARIES)
    lr, speed = (
        made(name, smooth=False) if name in columns else None
        for name in ("optim/lr", "time/tokens_per_second")
    )
    return RunData(
        path=run.path,
        name=name,
        group=group,
        label=run.label,
        config=run.as_trained(),
        parameters=(parameters := parameters_of(run.path)),
        steps=columns.last_step,
        facts=_facts(run, parameters),
        command=f"dograph train {directory.config_file} run=ELSEWHERE",
        losses=last_losses(directory, columns, corpus),
        warnings=warnings_of(directory, config, columns),
        train=train,
        valid={name: made(f"valid/{name}/loss_nats", smooth=False) for name in valid},
        lr=lr,
        speed=speed,
        health={name: made(name) for name in HEALTH if name in columns and name != other},
        cost=cost_of(run.path, columns),
        domains=domains_of(directory, config, columns, corpus, buckets, texts),
    )


def last_losses(run: RunDirectory, columns: Columns, corpus: Corpus | None) -> list[SourceLoss]:
    """Sources, then summaries; intervals over validation blocks once the run is complete."""
    blocks = block_losses(run.validation_file)
    found = []
    names = columns.middles("valid/", "/loss_nats")
    sources = [name for name in names if name not in SUMMARIES]
    for name in sources:
        nats = columns.last(f"valid/{name}/loss_nats")
        assert nats is not None
        estimate = Estimate(nats)
        if name in blocks and abs(blocks[name].mean - nats) < 1e-3:
            estimate = of_blocks(blocks[name].mean, [(1.0, blocks[name])])
        found.append(SourceLoss(name, estimate, columns.last(f"data/{name}/epochs")))
    tokens = corpus.tokens_by_source() if corpus is not None else {}
    total = sum(tokens.get(source, 0) for source in sources)
    nats_of = {loss.name: loss.nats.value for loss in found}
    worst = max(nats_of, key=lambda name: nats_of[name], default=None)
    # What each source counts in a summary; empty where that is not known.
    shares = {
        "mean": {source: 1 / len(sources) for source in sources},
        "worst": {} if worst is None else {worst: 1.0},
        "natural": {source: tokens.get(source, 0) / total for source in sources if total},
    }
    for name in (name for name in SUMMARIES if name in names):
        value = columns.last(f"valid/{name}/loss_nats")
        assert value is not None
        whole = set(sources) <= set(blocks)
        parts = [(share, blocks[s]) for s, share in shares[name].items() if whole]
        estimate = of_blocks(value, parts) if parts else Estimate(value)
        found.append(SourceLoss(name, estimate, None, is_summary=True))
    return found


def cost_of(path: Path, columns: Columns) -> StepCosts:
    """Mean milliseconds by part, and on the clock."""
    parts = {}
    names = columns.middles("time/", "_ms")
    for name in sorted(names, key=lambda n: PARTS.index(n) if n in PARTS else len(PARTS)):
        step_N, value_N = columns.get(f"time/{name}_ms")
        settled = value_N[step_N > SETTLED] if (step_N > SETTLED).any() else value_N
        parts[name] = round(float(settled.mean()), 3)
    step_N, second_N = columns.get("time/step_seconds")
    taken_N = np.diff(step_N, prepend=0)  # each covers the steps since the last one
    known = len(step_N) > 0
    spent = float((second_N * taken_N).sum()) if known else None
    late = slice(1, None) if len(step_N) > 1 else slice(None)
    steps = float(taken_N[late].sum())
    usual = float((second_N * taken_N)[late].sum()) / steps if known and steps else None
    speed = columns.get("time/tokens_per_second")[1]
    held = columns.get("memory/peak_bytes")[1]
    peak = read_json(path / RESULT).get("peak_bytes", held.max() if len(held) else None)
    return StepCosts(
        parts=parts,
        step_ms=None if usual is None else 1e3 * usual,
        tokens_per_second=float(np.median(speed)) if len(speed) else None,
        peak_bytes=int(peak) if isinstance(peak, int | float) else None,
        seconds=spent,
    )


def _facts(run: OpenRun, parameters: int | None) -> list[tuple[str, str]]:
    config, train, environment = run.config, run.config.train, read_json(run.path / ENVIRONMENT)
    size = f", {parameters:,} parameters" if parameters else ""
    tokens = run.columns.last_step * config.tokens_per_step
    options = ", ".join(f"{k}={json.dumps(v)}" for k, v in config.mixer.options.items())
    devices = environment.get("gpus") or [f"CPU, {environment.get('torch_threads', '?')} threads"]
    libraries = environment.get("libraries", {})
    return [
        ("run", str(run.path)),
        ("model", f"{config.model.preset or config.model.path}{size}"),
        ("corpus", config.data.corpus),
        ("mixer", config.mixer.name + (f" ({options})" if options else "")),
        ("seed", str(config.seed)),
        ("steps", f"{run.columns.last_step:,} of {train.steps:,}"),
        ("batch", f"{train.batch_size} samples of {config.data.seq_len} tokens, {train.dtype}"),
        ("tokens", f"{tokens:,}"),
        ("device", ", ".join(dict.fromkeys(map(str, devices)))),
        ("processes", str(environment.get("world_size", "?"))),
        ("versions", ", ".join(f"{k} {v}" for k, v in list(libraries.items())[:2])),
    ]


def parameters_of(path: Path) -> int | None:
    """How many numbers the run's model has, from the headers of its files."""
    total = 0
    for file in (path / "model").glob("*.safetensors"):
        with open(file, "rb") as opened:
            size = struct.unpack("<Q", opened.read(8))[0]
            header = json.loads(opened.read(size))
        shapes = (entry["shape"] for name, entry in header.items() if name != "__metadata__")
        total += sum(math.prod(shape) for shape in shapes)
    return total or None
