"""The domain graphs of a run, read back and shown."""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dograph.config import RunConfig
from dograph.domains.graph import DomainGraph
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


def number_table(title: str, *columns: str, left: tuple[str, ...] = (), gap: int = 1) -> Table:
    """A table of numbers, flush right and never wrapped; the columns named in `left` are words."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, gap))
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    return table


def node_table(graph: DomainGraph, title: str) -> Table:
    """One line a domain, with its commonest sources and their shares of it."""
    weighed = any(node.weight is not None for node in graph.nodes)
    columns = ["domain", "share", *(["weight"] if weighed else []), "gradient norm", "spread"]
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
    """The pairs of domains whose mean gradients agree most, either way."""
    title = "nearest domains" if len(graph.edges) > most else "pairs of domains"
    table = number_table(title, "domains", "cosine", "MMD^2")
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
    key = f"domains/{name}"
    known = [(row["step"], row[key]) for row in read_metrics(run.metrics_file) if key in row]
    if not known:
        return None
    every = max(1, len(known) // LINES)
    table = number_table("agreement of domains with sources", "step")
    table.add_column(f"NMI {over}", min_width=WIDTH + 5, no_wrap=True)
    for step, nmi in known[every - 1 :: every]:
        table.add_row(f"{step:.0f}", f"{nmi:.2f} " + "█" * round(WIDTH * nmi))
    return table


def last_validation(run: RunDirectory) -> Row:
    """The newest validation of a run."""
    validations = [row for row in read_metrics(run.metrics_file) if "valid/mean/loss_nats" in row]
    if not validations:
        raise RunError(f"{run.path} has no validation yet; it makes one every eval.every steps")
    return validations[-1]


def losses_table(paths: list[Path]) -> Table:
    """Sources down, runs across: nats per token, perplexity, bits per byte, times read through."""
    titles, columns, sources = ["source"], [], set[str]()
    for path in paths:
        run = RunDirectory.open(path)
        steps = [row for row in read_metrics(run.metrics_file) if "optim/lr" in row]
        epochs = {k: v for row in steps for k, v in row.items() if k.startswith("data/")}
        row = last_validation(run)
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
    """Nats, perplexity and bits per byte of one name in a row of losses; empty where unknown."""
    units = {"loss_nats": ".4f", "ppl": ".1f", "bits_per_byte": ".3f"}
    values = [(row.get(f"{name}/{unit}"), shape) for unit, shape in units.items()]
    return ["" if value is None else format(value, shape) for value, shape in values]
