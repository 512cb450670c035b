"""dograph figures: the page's figures as files for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from dograph.cli.report import Benches, Runs


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="the folder to write")] = Path("figures"),
    bench: Benches = None,
) -> None:
    """Write the page's figures as PDF, SVG and PNG at the sizes of a paper's columns.

    \b
    dograph figures runs/mine --out figures
    dograph figures runs/natural runs/dograph compare/mine --out figures

    Needs matplotlib: pip install 'dograph\\[figures]'.
    """  # noqa: D301
    from dograph.report.page_figures import write_figures

    written = write_figures(runs, out, bench or [])
    print(f"{out}: {', '.join(written)} (.pdf, .svg, .png)" if written else "nothing to draw")
