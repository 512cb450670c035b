"""dograph watch: the page of a run while it goes on."""

import sys
from typing import Annotated

import typer

from dograph.cli.report import Benches, Runs


def watch(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8787,
    bench: Benches = None,
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
    print(f"{names}: loading", file=sys.stderr)  # torch takes seconds

    from dograph.report.server import Live, Server

    with Server(Live(runs, bench or []), port) as server:
        print(f"watching {names}: {server.address} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
