"""dograph losses: what each source's validation loss came to, run beside run."""

from pathlib import Path
from typing import Annotated

import typer


def losses(
    runs: Annotated[list[Path], typer.Argument(help="run directories", show_default=False)],
) -> None:
    """Show the last validation loss of each source, for one run or several side by side."""
    print_losses(runs)


def print_losses(runs: list[Path]) -> None:
    from rich.console import Console

    from dograph.report.losses import losses_table

    Console().print(losses_table(runs))
