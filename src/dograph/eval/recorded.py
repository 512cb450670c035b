"""Read a run's records and show them: explanations of steps, domain graphs, losses per source."""

import json
import math
import shlex
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from scipy.optimize import isotonic_regression

from dograph.config import RunConfig
from dograph.data.corpus import SUMMARIES, Corpus
from dograph.data.sampler import Sampler, WeightLog, sample_origin, sample_place, sample_text
from dograph.domains.graph import DomainGraph
from dograph.domains.partition import agreement_of_counts
from dograph.errors import DographError, RunError
from dograph.mixers.registry import build_mixer
from dograph.records import (
    Row,
    Skipped,
    StepGaps,
    checked_step,
    metrics_row,
    read_last,
    read_lines,
    read_metrics,
    read_steps,
    step_of,
    unpacked,
)
from dograph.train.assembly import open_sampler
from dograph.train.noise import HIGH, LOW, SCALE, measured_parameters
from dograph.train.run_dir import RunDirectory
from dograph.train.watch import TIMES, spike_lines, watched_row

NAMED = 3  # sources listed for a domain
MOST_WATCHED, MOST_SPIKES = 2000, 10  # recorded steps that are read; spikes, documents shown
MOST_LISTED = 40  # steps in an error
LEAST_SIZE = 4  # samples of a batch that is proposed
RANKED = (
    "domain numbers are ranks by weight in this step's batch (0 has the largest weight), so the "
    "same number at another step is another domain"
)
# Columns of a table of losses by source, and how they are written.
LOSSES = {
    "valid/{}/loss_nats": ".4f",
    "valid/{}/ppl": ".1f",
    "valid/{}/bits_per_byte": ".3f",
    "data/{}/epochs": ".2f",
}
IN_WHOLE_ROWS = "weights/effective_samples"  # not in the short rows of other steps


@dataclass(frozen=True, slots=True)
class Explanation:
    """The weights of one step, and why."""

    reasons: list[str]  # sentences
    domains: list[dict[str, float]]  # domain, samples, share, weight, gradient_norm, mean_norm
    weight_B: list[float] | None  # equal weights are 1; None if they were not recorded
    domain_B: list[int] | None  # None before there are domains


def explain_step(path: Path, step: int, skipped: Skipped | None = None) -> Explanation:
    """The explanation of a step, counted from 1."""
    run = RunDirectory.open(path)
    config = run.config()
    rows = read_metrics(run.metrics_file, skipped, lambda line: step_of(line) in (step, None))
    row = next((row for row in rows if row["step"] == step and IN_WHOLE_ROWS in row), None)
    if row is None:
        _require_step(run, step)
        raise RunError(
            f"{run.metrics_file} has no weights of step {step}: they are recorded every log.every="
            f"{config.log.every} steps, at validations and at the end; ask for such a step"
        )
    quantities = ("samples", "share", "weight", "gradient_norm", "mean_norm")
    domains: list[dict[str, float]] = []
    name, size = config.mixer.name, config.batches.size(step - 1)
    sample = labels_of_step(run, step, skipped)
    try:
        while f"domains/{(number := len(domains))}/mean_norm" in row:
            values = {name: row[f"domains/{number}/{name}"] for name in quantities}
            domains.append({"domain": number, **values})
        if domains or run.graph_file.is_file():  # written for every mixer that has domains
            reasons = build_mixer(name, config.mixer.options).explain(row, step, config)
        elif abs((effective := row[IN_WHOLE_ROWS]) - size) < 1e-3:
            reasons = [f"{name} has no domains: all {size} samples had the same weight"]
        else:
            unknown = "" if sample["weight"] is not None else "; the weights were not recorded"
            weights = f"its weights left {effective:.1f} of {size} samples effective{unknown}"
            reasons = [f"{name} has no domains; {weights}"]
    except KeyError as error:
        raise RunError(
            f"{run.metrics_file} has a damaged row of step {step}, without {error}; ask for "
            "another step"
        ) from error
    return Explanation(reasons, domains, sample["weight"], sample["domain"])


def _require_step(run: RunDirectory, step: int) -> None:
    """Refuse a step that the run has not made."""
    last = read_last(run.metrics_file, checked_step) or 0
    if not 1 <= step <= last:
        raise RunError(f"{run.path} has steps 1 to {last}; step {step} is not one of them")


def labels_of_step(run: RunDirectory, step: int, skipped: Skipped | None = None) -> dict[str, Any]:
    """The line of a step in samples.jsonl; its weights and domains are None if it has none."""
    size = run.config().batches.size(step - 1)

    def parse(values: dict[str, Any]) -> dict[str, Any]:
        for own in (values["weight"], values["domain"]):
            if own is not None and (len(own) != size or not math.isfinite(sum(own, 0.0))):
                raise ValueError(f"not {size} weights and domains")
        return values

    rows = read_lines(run.samples_file, parse, skipped, lambda line: step_of(line) == step)
    return next(rows, {"weight": None, "domain": None})


def samples_of_step(path: Path, step: int, skipped: Skipped | None = None) -> list[dict[str, Any]]:
    """Every sample of a step in the order of the world batch, from the weight log and the seed."""
    run = RunDirectory.open(path)
    _require_step(run, step)
    corpus, sampler = replayed(run, skipped or Skipped())
    ids = sampler.draw(step - 1)
    rows = []
    for i in range(len(ids)):
        text = sample_text(corpus, ids, i, sampler.seq_len)
        origin = sample_origin(corpus, ids, i)
        rows.append({"sample": i, **origin, "epoch": int(ids.epoch_B[i]), "text": text})
    return rows


def proposed_sizes(points: Iterable[tuple[float, float]]) -> list[tuple[int, int]]:
    """A schedule from the (tokens seen, noise scale in samples) of a run; empty without a scale.

    Sizes are the powers of two nearest to a quarter of the scale, at least `LEAST_SIZE`. Scales
    are first made to rise with the tokens, by isotonic regression of their logarithms, so that one
    noisy value changes little.
    """
    known = sorted((tokens, math.log2(scale)) for tokens, scale in points if scale > 0)
    rising = isotonic_regression([log_scale for _, log_scale in known]).x if known else []
    schedule: list[tuple[int, int]] = []
    for (tokens, _), log_scale in zip(known, rising, strict=True):
        size = max(2 ** round(float(log_scale) - 2), LEAST_SIZE)
        if not schedule or size > schedule[-1][1]:
            schedule.append((int(tokens) if schedule else 0, int(size)))
    return schedule


def replayed(run: RunDirectory, skipped: Skipped) -> tuple[Corpus, Sampler]:
    """The corpus of a run, and a sampler that draws what the run drew."""
    config = run.config()
    corpus = Corpus(config.data.corpus)
    sampler = open_sampler(config, corpus)
    sampler.log = WeightLog.load(run.weights_file, sampler.names, skipped)
    if run.weights_file in skipped.counts:
        skipped.notes.append("a mixture is lost: the run may have drawn other samples than these")
    return corpus, sampler


def watched_lines(path: Path, skipped: Skipped) -> list[str]:
    """The newest spikes of a run with their samples, and the documents flagged most often."""
    run = RunDirectory.open(path)
    if not run.watch_file.is_file():
        raise RunError(f"the samples of {path} were not watched; train with train.on_spike=warn")
    rows = deque(read_lines(run.watch_file, watched_row, skipped), maxlen=MOST_WATCHED)
    (corpus, sampler), flagged = replayed(run, skipped), Counter[tuple[str, str]]()
    spikes = [row["step"] for row in rows if row["spike"]]
    lines = [f"spikes: {len(spikes)}; steps with a spike or unusual samples: {len(rows)}"]
    for row in rows:
        ids = sampler.draw(row["step"] - 1)
        if row["step"] in spikes[-MOST_SPIKES:]:
            lines += spike_lines(row, corpus, ids, sampler.seq_len)
        for sample in (own["sample"] for own in row["samples"] if own["norm"] > TIMES):
            origin = sample_origin(corpus, ids, sample)
            flagged[sample_place(corpus, ids, sample), f"{origin['input']}:{origin['line']}"] += 1
    most = flagged.most_common(MOST_SPIKES)
    often = [f"  {count} x {place}" for (place, _), count in most]
    lines += [f"documents flagged most often, above {TIMES:g} medians:", *often]
    skip = json.dumps([name for (_, name), _ in most], ensure_ascii=False)
    return [*lines, f"to train without them: {shlex.quote(f'data.skip={skip}')}"] if most else lines


def noise_table(path: Path, skipped: Skipped) -> Table:
    """The newest noise scale of a run, of all samples and of each source, with its interval."""
    run = RunDirectory.open(path)
    config, wanted = run.config(), f'"{IN_WHOLE_ROWS}"'.encode()
    row = read_last(run.metrics_file, metrics_row, skipped, lambda line: wanted in line)
    if row is None or "time/sketch_ms" not in row:
        raise RunError(
            f"{path} has no step with sketches, from which the noise scale is measured, every "
            "log.every steps; train with mixer.name=dograph, or with train.on_spike=warn"
        )
    named = read_last(run.metrics_file, metrics_row, skipped, lambda line: b'"noise/*/' in line)
    row = {**(named or {}), **row}  # sources are recorded with validations
    about = f"in samples, of {measured_parameters(config.sketch)}, after step {row['step']}"
    title = f"noise scale {about}; batch: {config.batches}"
    table = number_table(title, "", "scale", "from", "to (95 %)", left=("",))
    sources = [name[5:-7] for name in row if name.startswith("data/") and name.endswith("/epochs")]
    for name in ("", *(f"{source}/" for source in sources)):
        known = [row.get(f"noise/{name}{end}") for end in (SCALE, LOW, HIGH)]
        cells = ["" if value is None else f"{value:.4g}" for value in known]
        table.add_row(escape(name[:-1]) or "all samples", cells[0] or "not yet", *cells[1:])
    return table


def proposal(path: Path, skipped: Skipped) -> list[str]:
    """Settings of a schedule that follows the recorded noise scale; none while it is not known."""
    run, name = RunDirectory.open(path), f"noise/{SCALE}"
    batches, length = run.config().batches, run.config().data.seq_len
    rows = read_metrics(run.metrics_file, skipped, lambda line: f'"{name}"'.encode() in line)
    points = [(batches.drawn(int(row["step"])) * length, row[name]) for row in rows]
    if not (sizes := [list(pair) for pair in proposed_sizes(points)]):
        return []
    settings = f"'train.batch_size={sizes}' train.reference_batch_size={batches.reference}"
    return [f"a quarter of it, at least {LEAST_SIZE}, as batch size of such a run: {settings}"]


def read_graph(path: Path, step: int | None, skipped: Skipped | None = None) -> DomainGraph:
    """The graph of a run after `step` steps; by default the newest."""
    run, damaged = RunDirectory.open(path), skipped or Skipped()
    if not run.graph_file.is_file():  # written for every mixer that has domains
        raise RunError(
            f"the mixer of {path}, {run.config().mixer.name}, has no domains and so no graph; "
            "train with one that has them (mixer.name=dograph), or see what the model perceives: "
            f"dograph inspect {path}/model data.corpus=DIR"
        )
    wanted = None if step is None else lambda line: step_of(line) in (step, None)
    graph = read_last(run.graph_file, parse_graph, damaged, wanted)
    if graph is not None and step in (None, graph.step):
        return graph
    steps = [made for _, made in read_steps(run.graph_file)]
    if not steps or step is None:
        lost = "".join(f". {text}" for text in damaged.warnings())
        raise RunError(
            f"{path} has no domain graph yet: domains appear some steps after the start, and the "
            f"graph is written at every validation (eval.every) and at the end{lost}"
        )
    near = min(steps, key=lambda known: (known == step, abs(known - step)))
    some = steps if len(steps) <= MOST_LISTED else [steps[0], "...", steps[-1]]
    raise RunError(
        f"{path} has no domain graph of step {step}; the nearest is step {near}. Available: "
        f"{', '.join(map(str, some))}"
    )


def parse_graph(values: dict[str, Any]) -> DomainGraph:
    """A line of graph.jsonl."""
    return TypeAdapter(DomainGraph).validate_python(unpacked(values))


def read_validation(
    path: Path, skipped: Skipped | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """From validation.jsonl, by source: predictions and loss of each block."""

    def parse(values: dict[str, Any]) -> tuple[str, tuple[np.ndarray, np.ndarray]]:
        size_n, loss_n = (np.array(values[x], float) for x in ("predictions", "loss_nats"))
        if size_n.ndim != 1 or size_n.shape != loss_n.shape or not (size_n > 0).all():
            raise ValueError("its predictions and losses do not match")
        return str(values["source"]), (size_n, loss_n)

    return dict(read_lines(path, parse, skipped))


def number_table(title: str, *columns: str, left: tuple[str, ...] = (), gap: int = 1) -> Table:
    """A table of numbers, right-aligned and never wrapped; columns in `left` are text."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, gap))
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    return table


def node_table(graph: DomainGraph, title: str) -> Table:
    """One line per domain, with its most common sources and their shares."""
    has_weights = any(node.weight is not None for node in graph.nodes)
    columns = ["domain", "share", *(["weight"] if has_weights else []), "gradient norm", "spread"]
    table = number_table(title, *columns)
    table.add_column("sources")
    for node in graph.nodes:
        weight = [] if node.weight is None else [f"{node.weight:.3f}"]
        cells = (f"{node.share:.3f}", *weight, f"{node.gradient_norm:.3g}", f"{node.spread:.3g}")
        common = sorted(node.sources.items(), key=lambda pair: (-pair[1], pair[0]))
        all_of = max(node.samples, 1)
        named = [f"{name} {100 * count / all_of:.0f} %" for name, count in common[:NAMED]]
        named += [f"{len(common) - NAMED} more"] if len(common) > NAMED else []
        table.add_row(str(node.domain), *cells, escape(", ".join(named)))
    return table


def edge_table(graph: DomainGraph, most: int = 10) -> Table:
    """The pairs of domains whose mean gradients have the largest cosines."""
    title = "nearest domains" if len(graph.edges) > most else "pairs of domains"
    table = number_table(title, "domains", "cosine", "MMD^2")
    for edge in sorted(graph.edges, key=lambda edge: -edge.cosine)[:most]:
        pair = f"{edge.first} - {edge.second}"
        table.add_row(pair, f"{edge.cosine:+.3f}", f"{edge.mmd_squared:.3g}")
    return table


def domains_last(config: RunConfig) -> bool:
    """Whether a number means the same domain at every step of a run."""
    try:
        return build_mixer(config.mixer.name, config.mixer.options).domains_last
    except DographError:  # a user's own mixer class that cannot be imported here
        return True


def agreement_line(graph: DomainGraph) -> str:
    """How far the domains of a graph are the sources of their samples."""
    sources = list(dict.fromkeys(name for node in graph.nodes for name in node.sources))
    counts = [[node.sources.get(name, 0) for name in sources] for node in graph.nodes]
    if not sources:
        return "agreement of domains and sources: not known, no sample is recorded"
    nmi_1, purity_1 = agreement_of_counts(torch.tensor([counts], dtype=torch.float64))
    return f"agreement of domains and sources: NMI {nmi_1[0]:.3f}, purity {purity_1[0]:.3f}"


def losses_table(paths: list[Path], skipped: Skipped | None = None) -> Table:
    """A row per source and columns per run: nats per token, perplexity, bits per byte, epochs."""
    titles, columns, sources = ["source"], list[Row](), set[str]()
    skipped = skipped or Skipped()
    for path in paths:
        try:
            row = last_validation(path, skipped)
        except DographError as error:
            if path == paths[-1] and not columns:
                raise
            skipped.notes.append(f"{path} is left out: {error}")
            continue
        columns.append(row)
        name = f"{path.resolve().name}, step {row['step']}"
        titles += [f"{name}\nnats", *(f"\n{x}" for x in ("ppl", "bits/B", "epochs"))]
        valid = [name.removeprefix("valid/") for name in row if name.startswith("valid/")]
        sources |= {x.removesuffix("/loss_nats") for x in valid if x.endswith("/loss_nats")}
    names = sorted(sources - set(SUMMARIES))
    table = number_table("validation loss per source", *titles, left=("source",), gap=0)
    for name in [*names, *SUMMARIES]:
        asked = [(row, key, shape) for row in columns for key, shape in LOSSES.items()]
        values = [(row.get(key.format(name)), shape) for row, key, shape in asked]
        cells = ["" if value is None else format(value, shape) for value, shape in values]
        table.add_row(escape(name), *cells, end_section=name == names[-1])
    return table


def last_validation(path: Path, skipped: Skipped) -> Row:
    """The newest row of validation losses of a run, and how often each source has been read.

    Steps that metrics.jsonl lacks are added to the warnings.
    """
    run, row, gaps = RunDirectory.open(path), Row(), StepGaps()

    def is_wanted(line: bytes) -> bool:
        gaps.add(step_of(line) or 0)
        return b'"valid/mean/loss_nats"' in line

    for new in read_metrics(run.metrics_file, skipped, is_wanted):
        row = new
    for step in run.checkpoint_steps()[-1:]:  # its rows were written before it
        gaps.add(step + 1)
    skipped.notes += gaps.warnings(run.metrics_file)
    if not row:
        raise RunError(f"{path} has no validation yet; it runs one every eval.every steps")
    last = read_last(run.metrics_file, metrics_row, None, lambda line: b'"data/' in line)
    return row | {name: x for name, x in (last or {}).items() if name.startswith("data/")}
