"""The domain graphs of a run, read back and shown."""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dograph.config import RunConfig
from dograph.domains.graph import DomainGraph, Node, write_graph
from dograph.errors import DographError, RunError
from dograph.mixers.registry import build_mixer
from dograph.train.metrics import SUMMARIES, Row, read_metrics
from dograph.train.run_dir import RunDirectory

NAMED = 3  # sources named for a domain
LINES, WIDTH = 12, 30  # of the picture of agreement


def read_graph(path: Path, step: int | None) -> DomainGraph:
    """The graph of a run after `step` steps; the newest where none is named."""
    run = RunDirectory.open(path)
    if not run.graph_file.is_file():  # it is kept of every mixer that has domains
        raise RunError(
            f"{path} was mixed by {run.config().mixer.name}, which knows no domains; a graph is "
            "kept where it does, as with mixer.name=dograph. For what its model perceives: "
            f"dograph inspect {path}/model --corpus DIR"
        )
    graphs: list[Any] = read_metrics(run.graph_file)
    steps = [graph["step"] for graph in graphs]
    if not graphs:
        raise RunError(
            f"{path} has no domain graph yet: domains are known some steps after the start, and "
            "the graph is written at every validation (eval.every) and at the end"
        )
    if step is not None and step not in steps:
        near = min(steps, key=lambda known: abs(known - step))
        raise RunError(
            f"{path} has no domain graph of step {step}; the nearest is of step {near}. Known: "
            f"{', '.join(map(str, steps))}"
        )
    return DomainGraph.from_json(graphs[-1 if step is None else steps.index(step)])


def export_graph(path: Path, step: int | None, out: Path) -> DomainGraph:
    """Write a run's graph to a .json, .graphml or .dot file."""
    graph = read_graph(path, step)
    write_graph(graph, out)
    return graph


def node_table(graph: DomainGraph, title: str) -> Table:
    """One line a domain."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1))
    weighed = any(node.weight is not None for node in graph.nodes)
    columns = ["domain", "share", *(["weight"] if weighed else []), "gradient norm", "spread"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("sources")
    for node in graph.nodes:
        weight = [] if node.weight is None else [f"{node.weight:.3f}"]
        cells = (f"{node.share:.3f}", *weight, f"{node.gradient_norm:.3g}", f"{node.spread:.3g}")
        table.add_row(str(node.domain), *cells, escape(made_of(node)))
    return table


def edge_table(graph: DomainGraph, most: int = 10) -> Table:
    """The pairs of domains whose mean gradients agree most, either way."""
    title = "nearest domains" if len(graph.edges) > most else "pairs of domains"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("domains", "cosine", "MMD^2"):
        table.add_column(column, justify="right", no_wrap=True)
    for edge in sorted(graph.edges, key=lambda edge: -edge.cosine)[:most]:
        pair = f"{edge.first} - {edge.second}"
        table.add_row(pair, f"{edge.cosine:+.3f}", f"{edge.mmd_squared:.3g}")
    return table


def numbering(path: Path) -> str | None:
    """One line for those who compare steps, where a number is a rank and names no domain."""
    if domains_last(RunDirectory.open(path).config()):
        return None
    return (
        "numbers are ranks by weight in this step's batch, 0 the heaviest: domain 0 of another "
        "step is another domain"
    )


def domains_last(config: RunConfig) -> bool:
    """Whether a number is the same domain in all steps of a run."""
    try:
        return build_mixer(config.mixer.name, config.mixer.options).domains_last
    except DographError:  # somebody's class that is not at hand answers for its own domains
        return True


def agreement_table(path: Path) -> Table | None:
    """How far domains and sources have agreed in the course of a run, as a picture.

    Domains of each batch have no identity, so pooled over batches they agree with nothing.
    """
    run = RunDirectory.open(path)
    is_lasting = domains_last(run.config())
    name, over = ("nmi", "over ten batches") if is_lasting else ("batch_nmi", "in the step's batch")
    rows = read_metrics(run.metrics_file)
    known = [(int(row["step"]), row[f"domains/{name}"]) for row in rows if f"domains/{name}" in row]
    if not known:
        return None
    every = max(1, len(known) // LINES)
    table = Table(title="agreement of domains with sources", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("step", justify="right")
    table.add_column(f"NMI {over}", min_width=WIDTH + 5, no_wrap=True)
    for step, nmi in known[every - 1 :: every]:
        table.add_row(str(step), f"{nmi:.2f} " + "█" * round(WIDTH * nmi))
    return table


def made_of(node: Node) -> str:
    """A domain's commonest sources with their shares of it."""
    common = sorted(node.sources.items(), key=lambda pair: (-pair[1], pair[0]))
    named = [f"{name} {100 * count / node.samples:.0f} %" for name, count in common[:NAMED]]
    return ", ".join([*named, *([f"{len(common) - NAMED} more"] if len(common) > NAMED else [])])


# A table of validation losses per source, from run directories.


def last_validation(run: RunDirectory) -> Row:
    """The newest validation of a run."""
    rows = read_metrics(run.metrics_file) if run.metrics_file.is_file() else []
    validations = [row for row in rows if "valid/mean/loss_nats" in row]
    if not validations:
        raise RunError(f"{run.path} has no validation yet; it makes one every eval.every steps")
    return validations[-1]


def losses_table(paths: list[Path]) -> Table:
    """Sources down, runs across: nats per token, perplexity, bits per byte, times read through."""
    table = Table(title="validation loss per source", box=SIMPLE_HEAD, padding=0)
    table.add_column("source", no_wrap=True)
    columns = []
    for path in paths:
        run = RunDirectory.open(path)
        columns.append((last_validation(run), last_epochs(run)))
        table.add_column(f"{path.resolve().name}\nnats", justify="right", no_wrap=True)
        for unit in ("ppl", "bits/B", "epochs"):
            table.add_column(f"\n{unit}", justify="right", no_wrap=True)
    sources = sorted(
        {
            name.removeprefix("valid/").removesuffix("/loss_nats")
            for row, _ in columns
            for name in row
            if name.startswith("valid/") and name.endswith("/loss_nats")
        }
        - set(SUMMARIES)
    )
    for name in [*sources, *SUMMARIES]:
        cells = [cell for row, epochs in columns for cell in _cells(row, epochs, name)]
        table.add_row(name, *cells, end_section=name == sources[-1])
    return table


def last_epochs(run: RunDirectory) -> Row:
    rows = [row for row in read_metrics(run.metrics_file) if "optim/lr" in row]
    named = {k: v for row in rows for k, v in row.items() if k.startswith("data/")}
    return named


def _cells(row: Row, epochs: Row, name: str) -> list[str]:
    units = (("loss_nats", ".4f"), ("ppl", ".1f"), ("bits_per_byte", ".3f"))
    cells = []
    for unit, shape in units:
        value = row.get(f"valid/{name}/{unit}")
        cells.append("" if value is None else format(value, shape))
    times = epochs.get(f"data/{name}/epochs")
    return [*cells, "" if times is None else f"{times:.2f}"]
