"""dograph losses: what each source's validation loss came to, run beside run."""

import sys
from pathlib import Path
from typing import Annotated

import typer


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
    from rich.console import Console

    from dograph.report.losses import losses_table

    # A pipe has no width to fit into, and what is cut off there is lost.
    width = None if sys.stdout.isatty() else 40 + 40 * len(runs)
    Console(width=width).print(losses_table(runs))
