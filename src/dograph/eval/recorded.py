"""Read a run's records and show them: explanations of steps, domain graphs, losses per source."""

import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import pstdev
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dograph.config import RunConfig
from dograph.data.corpus import Block, Corpus
from dograph.data.sampler import WeightLog, sample_origin
from dograph.domains.graph import DomainGraph
from dograph.errors import ConfigError, DographError, RunError
from dograph.mixers.registry import build_mixer
from dograph.train.assembly import open_sampler
from dograph.train.metrics import SUMMARIES, Row, read_metrics
from dograph.train.run_dir import RunDirectory

NAMED = 3  # sources listed for a domain
LINES, WIDTH = 12, 30  # of the chart of agreement


@dataclass(frozen=True, slots=True)
class Explanation:
    """The weights of one step, and why."""

    reasons: list[str]  # sentences
    domains: list[dict[str, float]]  # domain, samples, share, weight, gradient_norm, mean_norm
    weight_B: list[float] | None  # equal weights are 1; None if they were not recorded
    domain_B: list[int] | None  # None before there are domains


def explain_step(path: Path, step: int) -> Explanation:
    """The explanation of a step, counted from 1."""
    run = RunDirectory.open(path)
    config = run.config()
    rows = [row for row in read_metrics(run.metrics_file) if "optim/lr" in row]
    row = next((row for row in rows if row["step"] == step), None)
    if row is None:
        raise RunError(f"{path} has steps 1 to {len(rows)}; step {step} is not one of them")
    sample = labels_of_steps(run, {step}).get(step, {"weight": None, "domain": None})
    quantities = ("samples", "share", "weight", "gradient_norm", "mean_norm")
    domains: list[dict[str, float]] = []
    while f"domains/{(number := len(domains))}/mean_norm" in row:
        values = {name: row[f"domains/{number}/{name}"] for name in quantities}
        domains.append({"domain": number, **values})
    name, size = config.mixer.name, config.train.batch_size
    if domains or run.graph_file.is_file():  # written for every mixer that has domains
        reasons = build_mixer(name, config.mixer.options).explain(row, step, config)
    elif abs((effective := row["weights/effective_samples"]) - size) < 1e-3:
        reasons = [f"{name} has no domains: all {size} samples had the same weight"]
    else:
        unknown = "" if sample["weight"] is not None else "; the weights were not recorded"
        weights = f"its weights left {effective:.1f} of {size} samples effective{unknown}"
        reasons = [f"{name} has no domains; {weights}"]
    return Explanation(reasons, domains, sample["weight"], sample["domain"])


def labels_of_steps(run: RunDirectory, steps: Collection[int]) -> dict[int, dict[str, Any]]:
    """The lines of some steps in samples.jsonl; no other line is parsed."""
    labels: dict[int, dict[str, Any]] = {}
    with suppress(FileNotFoundError), open(run.samples_file, encoding="utf-8") as file:
        for line in file:
            number = line[len('{"step": ') : line.find(",")]
            if number.isdecimal() and int(number) in steps and line.endswith("\n"):
                labels[int(number)] = json.loads(line)
                if len(labels) == len(steps):
                    break
    return labels


def samples_of_step(run_path: Path, step: int) -> list[dict[str, object]]:
    """Every sample of a step in the order of the world batch, from the weight log and the seed."""
    run = RunDirectory.open(run_path)
    config = run.config()
    last = max((int(row["step"]) for row in read_metrics(run.metrics_file)), default=0)
    if not 1 <= step <= last:
        raise RunError(f"{run_path} has steps 1 to {last}; step {step} is not one of them")
    corpus = Corpus(config.data.corpus)
    sampler = open_sampler(config, corpus)
    sampler.log = WeightLog.load(run.weights_file, sampler.names)
    ids = sampler.draw(step - 1)
    has_text = corpus.manifest.tokenizer.file is not None
    rows: list[dict[str, object]] = []
    for i in range(len(ids)):
        block = Block(0, corpus.train[ids.stratum_B[i]], int(ids.block_B[i]), config.data.seq_len)
        text = block.text(corpus) if has_text else None
        origin = sample_origin(corpus, ids, i)
        rows.append({"sample": i, **origin, "epoch": int(ids.epoch_B[i]), "text": text})
    return rows


def read_graph(path: Path, step: int | None) -> DomainGraph:
    """The graph of a run after `step` steps; by default the newest."""
    run = RunDirectory.open(path)
    if not run.graph_file.is_file():  # written for every mixer that has domains
        raise RunError(
            f"the mixer of {path}, {run.config().mixer.name}, has no domains and so no graph; "
            "train with one that has them (mixer.name=dograph), or see what the model perceives: "
            f"dograph inspect {path}/model data.corpus=DIR"
        )
    graphs: list[Any] = read_metrics(run.graph_file)
    steps = [graph["step"] for graph in graphs]
    if not graphs:
        raise RunError(
            f"{path} has no domain graph yet: domains appear some steps after the start, and the "
            "graph is written at every validation (eval.every) and at the end"
        )
    if step is not None and step not in steps:
        near = min(steps, key=lambda known: abs(known - step))
        raise RunError(
            f"{path} has no domain graph of step {step}; the nearest is step {near}. Available: "
            f"{', '.join(map(str, steps))}"
        )
    return DomainGraph.from_json(graphs[-1 if step is None else steps.index(step)])


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
        named = [f"{name} {100 * count / node.samples:.0f} %" for name, count in common[:NAMED]]
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


def numbering(path: Path) -> str | None:
    """A note for runs whose domain numbers are ranks, different domains at every step."""
    if domains_last(RunDirectory.open(path).config()):
        return None
    return (
        "domain numbers are ranks by weight in this step's batch (0 has the largest weight), so "
        "the same number at another step is another domain"
    )


def domains_last(config: RunConfig) -> bool:
    """Whether a number means the same domain at every step of a run."""
    try:
        return build_mixer(config.mixer.name, config.mixer.options).domains_last
    except DographError:  # a user's own mixer class that cannot be imported here
        return True


def agreement_table(path: Path) -> Table | None:
    """A bar chart of the agreement of domains and sources (NMI) over a run.

    Domains of a single batch mean nothing in another, so they are not pooled over batches.
    """
    run = RunDirectory.open(path)
    key, over = "domains/batch_nmi", "in the step's batch"
    if domains_last(run.config()):
        key, over = "domains/nmi", "over ten batches"
    known = [(row["step"], row[key]) for row in read_metrics(run.metrics_file) if key in row]
    if not known:
        return None
    every = max(1, len(known) // LINES)
    table = number_table("agreement of domains with sources", "step")
    table.add_column(f"NMI {over}", min_width=WIDTH + 5, no_wrap=True)
    for step, nmi in known[every - 1 :: every]:
        table.add_row(f"{step:.0f}", f"{nmi:.2f} " + "█" * round(WIDTH * nmi))
    return table


def losses_table(paths: list[Path]) -> Table:
    """A row per source and columns per run: nats per token, perplexity, bits per byte, epochs."""
    titles, columns, sources = ["source"], [], set[str]()
    for path in paths:
        run = RunDirectory.open(path)
        metrics = read_metrics(run.metrics_file)
        validations = [row for row in metrics if "valid/mean/loss_nats" in row]
        if not validations:
            raise RunError(f"{path} has no validation yet; it runs one every eval.every steps")
        epochs = {k: v for row in metrics for k, v in row.items() if k.startswith("data/")}
        row = validations[-1]
        columns.append((row, epochs))
        titles += [f"{path.resolve().name}\nnats", *(f"\n{x}" for x in ("ppl", "bits/B", "epochs"))]
        valid = [name.removeprefix("valid/") for name in row if name.startswith("valid/")]
        sources |= {x.removesuffix("/loss_nats") for x in valid if x.endswith("/loss_nats")}
    names = sorted(sources - set(SUMMARIES))
    table = number_table("validation loss per source", *titles, left=("source",), gap=0)
    for name in [*names, *SUMMARIES]:
        cells = []
        for row, epochs in columns:
            times = epochs.get(f"data/{name}/epochs")
            cells += [*loss_cells(row, f"valid/{name}"), "" if times is None else f"{times:.2f}"]
        table.add_row(name, *cells, end_section=name == names[-1])
    return table


def loss_cells(row: Row, name: str) -> list[str]:
    """Nats, perplexity and bits per byte of one name in a row of losses; empty if unknown."""
    units = {"loss_nats": ".4f", "ppl": ".1f", "bits_per_byte": ".3f"}
    values = [(row.get(f"{name}/{unit}"), shape) for unit, shape in units.items()]
    return ["" if value is None else format(value, shape) for value, shape in values]


class Balance(NamedTuple):
    """How different the losses of the sources are."""

    spread: float  # standard deviation over sources
    gap: float  # worst minus best


def balance(losses: Mapping[str, float]) -> Balance:
    """Is every source learned equally well? Standard deviation and worst-best gap, in nats.

    The standard deviation divides by the number of sources S: they are the whole population.
    NaN counts as the worst loss, and then spread and gap are not finite. Sources differ in how well
    any model can predict them: compare with a baseline.
    """
    if len(losses) < 2:
        raise ConfigError(f"balance needs at least 2 sources, got {sorted(losses)}")
    values = sorted(losses.values(), key=lambda loss: math.inf if math.isnan(loss) else loss)
    spread = pstdev(values) if all(map(math.isfinite, values)) else math.nan
    return Balance(spread, values[-1] - values[0])
