"""dograph explain: which samples a step saw, in which domains, and why they counted so much."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dograph.cli.cli_console import open_console

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
    from dograph.eval.explain import explain_step
    from dograph.eval.samples import samples_of_step

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
