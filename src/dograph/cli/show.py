"""dograph explain, graph, losses and data show: what a run has recorded, on screen."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dograph.cli.console import PIPE_WIDTH, open_console, open_table

PREVIEW, SHOW_PREVIEW = 48, 60  # characters of text shown beside domains, and by itself


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
    from rich.markup import escape

    from dograph.eval.recorded import explain_step, samples_of_step

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
        norms = ("gradient norm", "mean norm")
        names = ("domain", "samples", "share", "weight", "weight/share", *norms)
        table = open_table(*names, title="domains", box=None, pad_edge=False)
        for domain in found.domains:
            ratio = domain["weight"] / domain["share"] if domain["share"] else 0.0
            shares = (domain["share"], domain["weight"], ratio)
            table.add_row(
                str(domain["domain"]),
                f"{domain['samples']:.0f}",
                *(f"{share:.3f}" for share in shares),
                *(f"{domain[name.replace(' ', '_')]:.4g}" for name in norms),
            )
        console.print(table)
    known = {"domain": found.domain_B, "weight": found.weight_B}
    numbers = ["sample", *(name for name, values in known.items() if values is not None)]
    columns = (*numbers, "document", "offset", "source", "text")
    style: dict[str, Any] = {"title": "samples", "box": None, "pad_edge": False}
    table = open_table(*columns, left=("source", "text"), **style)
    for sample in samples:
        cells = [sample[name] for name in (*numbers, "document", "offset")]
        shown = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
        text = " ".join(str(sample["text"] or "").split())[:PREVIEW]
        table.add_row(*shown, escape(str(sample["source"])), escape(text))
    console.print(table)


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
    from dograph.domains.graph import write_graph
    from dograph.eval import recorded

    found = recorded.read_graph(run, step)
    if out is None:
        console = open_console()
        console.print(recorded.node_table(found, f"domains after step {found.step}"))
        console.print(recorded.edge_table(found))
        if (agreement := recorded.agreement_table(run)) is not None:
            console.print(agreement)
    else:
        write_graph(found, out)
        print(f"{out}: {len(found.nodes)} domains after step {found.step}")
    if (told := recorded.numbering(run)) is not None:
        print(f"note: {told}")


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
    from dograph.eval.recorded import losses_table

    width = max(PIPE_WIDTH, 40 + 40 * len(runs))  # a column a run
    open_console(width).print(losses_table(runs))


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
    from rich.table import Table

    from dograph.eval.recorded import samples_of_step

    rows = samples_of_step(run, step)
    if as_json:
        for row in rows:
            json.dump(row, sys.stdout, ensure_ascii=False)
            print()
        return
    columns = ("sample", "source", "epoch", "document", "offset", "input", "text")
    table = Table(title=f"{run}, step {step}: {len(rows)} samples")
    for column in columns:
        table.add_column(column, justify="right" if column in ("sample", "epoch") else "left")
    for row in rows:
        row["input"] = f"{row['input']}:{row['line']}"
        row["text"] = " ".join(str(row["text"] or "").split())[:SHOW_PREVIEW]
        table.add_row(*(str(row[column]).replace("[", "\\[") for column in columns))
    open_console().print(table)
