"""dograph graph: the domains of a run as a graph, on screen or in a file."""

from pathlib import Path
from typing import Annotated

import typer

from dograph.cli.cli_console import open_console


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
