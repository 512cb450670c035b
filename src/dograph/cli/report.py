"""dograph report: one page from one or many runs."""

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path],
    typer.Argument(help="run directories, or folders of dograph compare", show_default=False),
]
Benches = Annotated[
    list[Path] | None,
    typer.Option("--bench", help="a bench.json of dograph bench, for the floor; repeat"),
]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("page.html"),
    bench: Benches = None,
) -> None:
    """Write one HTML file that shows runs: it opens from disk, without network or server.

    \b
    dograph report runs/mine --out page.html
    dograph report runs/natural runs/dograph             side by side
    dograph report compare/mine                          a comparison and all its runs
    dograph report runs/mine --bench bench.json          with the least a step can cost

    A run and a comparison write RUN/page.html themselves when they end. docs/report.md says
    what is on it.
    """  # noqa: D301
    from dograph.report.writing import write_page

    number = write_page(runs, out, bench or [])
    size = out.stat().st_size / 1e6
    print(f"page: {out} ({number} run{'' if number == 1 else 's'}, {size:.1f} MB)")
