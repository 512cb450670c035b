"""dograph losses: what each source's validation loss came to, run beside run."""

from pathlib import Path
from typing import Annotated

import typer

from dograph.cli.cli_console import PIPE_WIDTH, open_console


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
    from dograph.eval.losses import losses_table

    width = max(PIPE_WIDTH, 40 + 40 * len(runs))  # a column a run
    open_console(width).print(losses_table(runs))
