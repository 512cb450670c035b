"""dograph graph: the domains of a run as a graph, on screen or in a file."""

import sys
from pathlib import Path
from typing import Annotated

import typer


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
    from dograph.report.graphs import (
        agreement_table,
        edge_table,
        export_graph,
        node_table,
        read_graph,
    )

    if out is not None:
        found = export_graph(run, step, out)
        print(f"{out}: {len(found.nodes)} domains after step {found.step}")
        return
    from rich.console import Console

    found = read_graph(run, step)
    # A pipe has no width to fit into, and what is cut off there is lost.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(node_table(found, f"domains after step {found.step}"))
    console.print(edge_table(found))
    agreement = agreement_table(run)
    if agreement is not None:
        console.print(agreement)
