"""dograph report, figures and watch: one page from one or many runs."""

from pathlib import Path

from dograph.cli.console import argument, option, say

RUNS = argument(..., "run directories, or folders of dograph compare")
BENCH = option(None, "a bench.json of dograph bench, for the floor; repeat")


def report(
    runs: list[Path] = RUNS,
    out: Path = option(Path("page.html"), "the file to write"),
    bench: list[Path] | None = BENCH,
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
    from dograph.report.render import write_page

    number = write_page(runs, out, bench or [])
    size = out.stat().st_size / 1e6
    print(f"page: {out} ({number} run{'' if number == 1 else 's'}, {size:.1f} MB)")


def figures(
    runs: list[Path] = RUNS,
    out: Path = option(Path("figures"), "the folder to write"),
    bench: list[Path] | None = BENCH,
) -> None:
    """Write the page's figures as PDF, SVG and PNG at the sizes of a paper's columns.

    \b
    dograph figures runs/mine --out figures
    dograph figures runs/natural runs/dograph compare/mine --out figures

    Needs matplotlib: pip install 'dograph\\[figures]'.
    """  # noqa: D301
    from dograph.report.figures import write_figures

    written = write_figures(runs, out, bench or [])
    print(f"{out}: {', '.join(written)} (.pdf, .svg, .png)" if written else "nothing to draw")


def watch(
    runs: list[Path] = RUNS,
    port: int = option(8787, "0: any that is free", min=0, max=65535),
    bench: list[Path] | None = BENCH,
) -> None:
    """Show runs live in a browser, while they go on. Ctrl-C ends it; the runs do not notice.

    \b
    dograph watch runs/mine                              http://127.0.0.1:8787/
    dograph watch runs/natural runs/dograph --port 0
    dograph watch compare/mine                           a comparison, as its runs come

    The server listens on 127.0.0.1 alone, and only reads. From another machine:
    ssh -L 8787:127.0.0.1:8787 HOST, then open the address here.
    """  # noqa: D301
    names = ", ".join(map(str, runs))
    say(f"{names}: loading")  # torch takes seconds
    from dograph.report.server import Live, Server

    with Server(Live(runs, bench or []), port) as server:
        print(f"watching {names}: {server.address} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
