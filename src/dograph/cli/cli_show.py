"""dograph data show: which documents a step saw."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dograph.cli.cli_console import open_console

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
    from dograph.eval.samples import samples_of_step

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
