"""dograph explain, graph, losses and data show: what a run has recorded, on screen."""

import json
from pathlib import Path
from typing import Any

from dograph.cli import console
from dograph.cli.console import RUN, argument, option, print_table

PREVIEW, SHOW_PREVIEW = 48, 60  # characters of text shown beside domains, and by itself
STEP = option(..., "a step, counted from 1 as in metrics.jsonl")
PLAIN: dict[str, Any] = {"box": None, "pad_edge": False}


def explain(run: Path = RUN, step: int = STEP, as_json: bool = console.AS_JSON) -> None:
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
    known = {"domain": found.domain_B, "weight": found.weight_B}
    for i, sample in enumerate(samples):
        for name, values in known.items():
            sample[name] = None if values is None else values[i]
    if as_json:
        whole = {"step": step, "why": found.reasons, "domains": found.domains, "samples": samples}
        print(json.dumps(whole, ensure_ascii=False))
        return
    for line in (f"{run}, step {step}", *(f"  {reason}" for reason in found.reasons)):
        console.open_console().print(line, highlight=False, markup=False)
    if found.domains:
        norms = ("gradient norm", "mean norm")
        rows = []
        for domain in found.domains:
            ratio = domain["weight"] / domain["share"] if domain["share"] else 0.0
            shares = [f"{share:.3f}" for share in (domain["share"], domain["weight"], ratio)]
            sizes = [f"{domain[name.replace(' ', '_')]:.4g}" for name in norms]
            rows.append([str(domain["domain"]), f"{domain['samples']:.0f}", *shares, *sizes])
        columns = ("domain", "samples", "share", "weight", "weight/share", *norms)
        print_table(columns, rows, title="domains", **PLAIN)
    numbers = ["sample", *(name for name, values in known.items() if values is not None)]
    numbers += ["document", "offset"]
    rows = []
    for sample in samples:
        cells = [sample[name] for name in numbers]
        shown = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
        rows.append([*shown, escape(str(sample["source"])), escape(_preview(sample, PREVIEW))])
    words = ("source", "text")
    print_table([*numbers, *words], rows, words, title="samples", **PLAIN)


def _preview(sample: dict[str, Any], length: int) -> str:
    """The beginning of its text, on one line."""
    return " ".join(str(sample["text"] or "").split())[:length]


def graph(
    run: Path = RUN,
    step: int | None = option(None, "after how many steps; the newest if not given"),
    out: Path | None = option(None, "a .json, .graphml or .dot file; shown if not given"),
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
        shown = console.open_console()
        shown.print(recorded.node_table(found, f"domains after step {found.step}"))
        shown.print(recorded.edge_table(found))
        if (agreement := recorded.agreement_table(run)) is not None:
            shown.print(agreement)
    else:
        write_graph(found, out)
        print(f"{out}: {len(found.nodes)} domains after step {found.step}")
    if (told := recorded.numbering(run)) is not None:
        print(f"note: {told}")


def losses(runs: list[Path] = argument(..., "run directories")) -> None:
    """Show the last validation loss of each source, for one run or several side by side.

    \b
    dograph losses runs/mine                     nats, perplexity, bits per byte
    dograph losses runs/natural runs/dograph     a column a run
    """  # noqa: D301
    print_losses(runs)


def print_losses(runs: list[Path]) -> None:
    from dograph.eval.recorded import losses_table

    width = max(console.PIPE_WIDTH, 40 + 40 * len(runs))  # a column a run
    console.open_console(width).print(losses_table(runs))


def show(
    run: Path = RUN,
    step: int = STEP,
    as_json: bool = option(False, "one JSON object a sample", "--json"),
) -> None:
    """Show which documents one training step saw: text, source, input file and line.

    Nothing is trained or replayed: the weight log and the seed say it all.

    \b
    dograph data show runs/mine --step 100           a table of the samples
    dograph data show runs/mine --step 100 --json    whole texts, an object a line
    """  # noqa: D301
    from dograph.eval.recorded import samples_of_step

    samples, rows = samples_of_step(run, step), []
    if as_json:
        for sample in samples:
            print(json.dumps(sample, ensure_ascii=False))
        return
    for sample in samples:
        place, text = f"{sample['input']}:{sample['line']}", _preview(sample, SHOW_PREVIEW)
        told = [sample[name] for name in ("sample", "source", "epoch", "document", "offset")]
        rows.append([str(cell).replace("[", "\\[") for cell in (*told, place, text)])
    words = ("source", "document", "offset", "input", "text")
    columns = ("sample", "source", "epoch", *words[1:])
    print_table(columns, rows, words, title=f"{run}, step {step}: {len(rows)} samples")
