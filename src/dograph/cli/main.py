"""The `dograph` command."""

import errno
import os
import sys
from typing import NoReturn

import typer

from dograph.cli import (
    bench,
    compare,
    data,
    doctor,
    export,
    figures,
    graph,
    inspect,
    losses,
    mix,
    plan,
    report,
    reproduce,
    train,
    watch,
)
from dograph.cli import cli_show as show
from dograph.cli import eval as benchmarks
from dograph.cli import show as explain
from dograph.cli.settings_command import SettingsCommand
from dograph.errors import DographError

# What a disk answers to somebody who wants to write; a file that is not there is another thing.
DISK = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM)

app = typer.Typer(
    help="Mix pre-training data by what the model itself perceives.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("train", cls=SettingsCommand)(train.train)
app.command("mix")(mix.mix)
app.command("plan", cls=SettingsCommand)(plan.plan)
app.command("compare", cls=SettingsCommand)(compare.compare)
app.command("reproduce", cls=SettingsCommand)(reproduce.reproduce)
app.command("export")(export.export)
app.command("eval")(benchmarks.evaluate)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("figures")(figures.figures)
app.command("losses")(losses.losses)
app.command("graph")(graph.graph)
app.command("explain")(explain.explain)
app.command("inspect")(inspect.inspect)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
data.app.command("show")(show.show)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; what a user can mend is told in plain words, without a traceback."""
    try:
        app()
    except DographError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in DISK or error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}; make room there, or name another place")


def _fail(message: str) -> NoReturn:
    rank = int(os.environ.get("RANK", "0"))
    print(f"rank {rank}: error: {message}" if rank else f"error: {message}", file=sys.stderr)
    sys.exit(2)
