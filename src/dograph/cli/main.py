"""The `dograph` command."""

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand

from dograph.choices import help_text
from dograph.cli import (
    bench,
    compare,
    data,
    doctor,
    export,
    inspect,
    mix,
    plan,
    report,
    reproduce,
    show,
    train,
)
from dograph.cli import eval as benchmarks
from dograph.errors import ConfigError, DographError

# What a disk answers to somebody who wants to write; a file that is not there is another thing.
DISK = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM)


class SettingsCommand(TyperCommand):
    """A command whose arguments are name=value: one typed as an option is shown how it is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as wrong:
            # by its name, because older typers raise click's and newer ones their own copy of it
            if type(wrong).__name__ != "NoSuchOption":
                raise
            error: Any = wrong
        from dograph.config import setting_names, settings_called

        option: str = error.option_name
        name = option.lstrip("-").replace("-", "_")
        settings = [name] if name in setting_names() else settings_called(name)
        near = sorted(name for name in error.possibilities or [] if name != "--help")
        if settings:
            value = ""  # what came with the option: after its equals sign, or as the next word
            for word, following in zip(typed, [*typed[1:], ""], strict=True):
                own, equals, after = word.partition("=")
                if own == option:
                    value = after if equals else following
                    break
            value = "VALUE" if not value or value.startswith("--") else value
            given = " or ".join(f"{name}={value}" for name in settings)
            how = f"give it as {given}, without dashes"
        elif near:
            how = f"did you mean {' or '.join(near)}?"
        else:
            how = "settings are given as train.steps=200, without dashes; options: "
            how += f"{ctx.command_path} --help"
        raise ConfigError(f"{option} is not an option of {ctx.command_path}; {how}")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if self.name == "train":
            print(help_text())


app = typer.Typer(
    help="Mix pre-training data by what the model itself perceives.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("train", cls=SettingsCommand)(train.train)
app.command("mix")(mix.mix)
app.command("plan", cls=SettingsCommand, help=plan.HELP)(plan.plan)
app.command("compare", cls=SettingsCommand)(compare.compare)
app.command("reproduce", cls=SettingsCommand, help=reproduce.HELP)(reproduce.reproduce)
app.command("export")(export.export)
app.command("eval")(benchmarks.evaluate)
app.command("report")(report.report)
app.command("watch")(report.watch)
app.command("figures")(report.figures)
app.command("losses")(show.losses)
app.command("graph")(show.graph)
app.command("explain")(show.explain)
app.command("inspect")(inspect.inspect)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
data.app.command("show")(show.show)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; what a user can mend is told in plain words, without a traceback."""
    try:
        app()
        return
    except DographError as error:
        message = str(error)
    except OSError as error:
        if error.errno not in DISK or error.filename is None:
            raise
        message = f"{error.filename}: {error.strerror}; make room there, or name another place"
    rank = int(os.environ.get("RANK", "0"))
    print(f"rank {rank}: error: {message}" if rank else f"error: {message}", file=sys.stderr)
    sys.exit(2)
