"""dograph report: a page about runs, as a file, live in a browser, or as figures for a paper."""

from contextlib import suppress
from pathlib import Path

from dograph.cli.console import argument, option, say, warn
from dograph.errors import ConfigError


def report(
    runs: list[Path] = argument(..., "run directories, or folders of dograph compare", "RUNS"),
    out: Path = option(Path("page.html"), "the HTML file to write"),
    watch: bool = option(False, "serve the page and keep it up to date until Ctrl-C", "--watch"),
    port: int = option(8787, "with --watch: the port; 0 for any free one", min=0, max=65535),
    figures: Path | None = option(None, "write PDF, SVG and PNG for a paper into this folder"),
) -> None:
    """Write one HTML page about runs. It opens from disk, without network or server.

    \b
    dograph report runs/mine --out page.html
    dograph report runs/natural runs/dograph        side by side
    dograph report compare/mine                     a comparison and all its runs
    dograph report runs/mine --watch                live, on http://127.0.0.1:8787/
    dograph report runs/mine --figures figures      needs pip install 'dograph\\[figures]'

    A run and a comparison write RUN/page.html themselves when they end. The server of --watch
    listens on 127.0.0.1 only and never writes; from another machine: ssh -L 8787:127.0.0.1:8787
    HOST, then open the address here. What is on the page: docs/report.md.
    """  # noqa: D301
    if watch and figures is not None:
        raise ConfigError("--watch and --figures are two different outputs; give one of them")
    if watch:
        names = ", ".join(map(str, runs))
        say(f"{names}: loading")  # torch takes seconds to import
        from dograph.report.server import HOST, Server

        # Until Ctrl-C, which does not affect the runs.
        with Server(runs, port) as server, suppress(KeyboardInterrupt):
            where = f"http://{HOST}:{server.server_port}/"
            print(f"watching {names}: {where} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        print()
    elif figures is not None:
        from dograph.report.figures import write_figures

        written = write_figures(runs, figures)
        print(f"{figures}: {', '.join(written)} (.pdf, .svg, .png)" if written else "no figures")
    else:
        from dograph.report.render import write_page

        data = write_page(runs, out)
        own = (f"{run.name}: {text}" for run in data.runs for text in run.warnings)
        warn([*data.damage, *own])
        number, size = len(data.runs), out.stat().st_size / 1e6
        print(f"page: {out} ({number} run{'' if number == 1 else 's'}, {size:.1f} MB)")
