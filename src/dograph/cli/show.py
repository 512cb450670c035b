"""dograph explain: which samples a step saw, in which domains, and why they counted so much."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dograph.cli.console import PIPE_WIDTH, open_console

if TYPE_CHECKING:
    from rich.table import Table

    from dograph.eval.explain import Explanation

PREVIEW = 48  # characters of text shown


def explain(
    run: Annotated[Path, typer.Argument(help="a run directory", show_default=False)],
    step: Annotated[int, typer.Option(help="a step, counted from 1 as in metrics.jsonl")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show which samples one training step saw, their domains and weights, and why.

    A weight of 1 is an equal weight. Nothing is trained or replayed.

    \b
    dograph explain runs/mine --step 500
    dograph explain runs/mine --step 500 --json | jq '.samples[] | select(.weight > 1.2)'
    """  # noqa: D301
    from dograph.eval.explain import explain_step, samples_of_step

    samples = samples_of_step(run, step)
    found = explain_step(run, step)
    for i, sample in enumerate(samples):
        sample["domain"] = None if found.domain_B is None else found.domain_B[i]
        sample["weight"] = None if found.weight_B is None else found.weight_B[i]
    if as_json:
        whole = {"step": step, "why": found.reasons, "domains": found.domains, "samples": samples}
        json.dump(whole, sys.stdout, ensure_ascii=False)
        print()
        return
    console = open_console()
    console.print(f"{run}, step {step}", highlight=False, markup=False)
    for reason in found.reasons:
        console.print(f"  {reason}", highlight=False, markup=False)
    if found.domains:
        console.print(_domain_table(found))
    console.print(_sample_table(samples, found))


def _domain_table(found: "Explanation") -> "Table":
    from rich.table import Table

    table = Table(title="domains", box=None, pad_edge=False)
    names = ("domain", "samples", "share", "weight", "weight/share", "gradient norm", "mean norm")
    for column in names:
        table.add_column(column, justify="right", no_wrap=True)
    for domain in found.domains:
        ratio = domain["weight"] / domain["share"] if domain["share"] else 0.0
        table.add_row(
            str(domain["domain"]),
            f"{domain['samples']:.0f}",
            f"{domain['share']:.3f}",
            f"{domain['weight']:.3f}",
            f"{ratio:.3f}",
            f"{domain['gradient_norm']:.4g}",
            f"{domain['mean_norm']:.4g}",
        )
    return table


def _sample_table(samples: list[dict[str, object]], found: "Explanation") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="samples", box=None, pad_edge=False)
    known = {"domain": found.domain_B, "weight": found.weight_B}
    numbers = ("sample", *(name for name, values in known.items() if values is not None))
    for column in (*numbers, "document", "offset"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("source")
    table.add_column("text")
    for sample in samples:
        text = " ".join(str(sample["text"] or "").split())[:PREVIEW]
        own = [sample[name] for name in numbers]
        cells = [f"{n:.3f}" if isinstance(n, float) else str(n) for n in own]
        place = (str(sample["document"]), str(sample["offset"]))
        table.add_row(*cells, *place, escape(str(sample["source"])), escape(text))
    return table


# dograph graph: the domains of a run as a graph, on screen or in a file.


def graph(
    run: Annotated[Path, typer.Argument(help="a run directory", show_default=False)],
    step: Annotated[
        int | None, typer.Option(help="after how many steps; the newest if not given")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="a .json, .graphml or .dot file; shown if not given")
    ] = None,
) -> None:
    """Show or export the domain graph of a run: domains, their make-up, how far they agree.

    \b
    dograph graph runs/mine                                the newest one, as tables
    dograph graph runs/mine --step 500 --out graph.graphml for Gephi, Cytoscape, networkx
    dograph graph runs/mine --out graph.dot                for Graphviz: dot -Tsvg graph.dot
    """  # noqa: D301
    from dograph.eval.graphs import export_graph, numbering

    if out is None:
        _print(run, step)
    else:
        found = export_graph(run, step, out)
        print(f"{out}: {len(found.nodes)} domains after step {found.step}")
    told = numbering(run)
    if told is not None:
        print(f"note: {told}")


def _print(run: Path, step: int | None) -> None:
    from dograph.eval.graphs import agreement_table, edge_table, node_table, read_graph

    found, console = read_graph(run, step), open_console()
    console.print(node_table(found, f"domains after step {found.step}"))
    console.print(edge_table(found))
    agreement = agreement_table(run)
    if agreement is not None:
        console.print(agreement)


# dograph losses: what each source's validation loss came to, run beside run.


def losses(
    runs: Annotated[list[Path], typer.Argument(help="run directories", show_default=False)],
) -> None:
    """Show the last validation loss of each source, for one run or several side by side.

    \b
    dograph losses runs/mine                     nats, perplexity, bits per byte
    dograph losses runs/natural runs/dograph     a column a run
    """  # noqa: D301
    print_losses(runs)


def print_losses(runs: list[Path]) -> None:
    from dograph.eval.graphs import losses_table

    width = max(PIPE_WIDTH, 40 + 40 * len(runs))  # a column a run
    open_console(width).print(losses_table(runs))


# dograph data show: which documents a step saw.


SHOW_PREVIEW = 60  # characters of text shown on a terminal


def show(
    run: Annotated[Path, typer.Argument(help="a run directory", show_default=False)],
    step: Annotated[int, typer.Option(help="a step, counted from 1 as in metrics.jsonl")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a sample")] = False,
) -> None:
    """Show which documents one training step saw: text, source, input file and line.

    Nothing is trained or replayed: the weight log and the seed say it all.

    \b
    dograph data show runs/mine --step 100           a table of the samples
    dograph data show runs/mine --step 100 --json    whole texts, an object a line
    """  # noqa: D301
    from dograph.eval.explain import samples_of_step

    rows = samples_of_step(run, step)
    if as_json:
        for row in rows:
            json.dump(row, sys.stdout, ensure_ascii=False)
            print()
        return
    from rich.table import Table

    table = Table(title=f"{run}, step {step}: {len(rows)} samples")
    for column in ("sample", "source", "epoch", "document", "offset", "input", "text"):
        table.add_column(column, justify="right" if column in ("sample", "epoch") else "left")
    for row in rows:
        where = f"{row['input']}:{row['line']}"
        cells = (row["sample"], row["source"], row["epoch"], row["document"], row["offset"], where)
        text = " ".join(str(row["text"] or "").split())[:SHOW_PREVIEW]
        table.add_row(*(str(cell).replace("[", "\\[") for cell in (*cells, text)))
    open_console().print(table)
