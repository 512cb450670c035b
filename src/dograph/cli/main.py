"""The `dograph` command and its verbs."""

import errno
import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dograph.choices import help_text
from dograph.cli import data
from dograph.errors import ConfigError, DographError

VERBS = (
    *("train", "mix", "plan", "export", "compare", "reproduce"),
    *("eval", "show", "inspect", "report", "bench", "doctor"),
)
# Errors of disks and places. Other OSErrors, such as a missing file, keep their traceback.
FULL = (errno.ENOSPC, errno.EDQUOT)  # met when a file is closed, too, and then without its name
DISK = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM)
PLACE = (errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class Group(TyperGroup):
    """A group of commands in our order."""

    def list_commands(self, ctx: Any) -> list[str]:
        """As in `VERBS`, after `data`: a corpus comes first."""
        return sorted(self.commands, key=lambda name: name != "data")


class Command(TyperCommand):
    """A command that answers an unknown option with the setting of that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as wrong:
            error: Any = wrong
            takes_settings = any(parameter.name == "settings" for parameter in self.params)
            # by its name, because older typers raise click's and newer ones their own copy of it
            if type(wrong).__name__ != "NoSuchOption" or not takes_settings:
                raise
        option: str = error.option_name
        near = sorted(name for name in error.possibilities or [] if name != "--help")
        if settings := _as_settings(option, typed):
            how = f"give it as {settings}, without dashes"
        elif near:
            how = f"did you mean {' or '.join(near)}?"
        else:
            how = "settings are given as train.steps=200, without dashes; options: "
            how += f"{ctx.command_path} --help"
        raise ConfigError(f"{option} is not an option of {ctx.command_path}; {how}")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer does it; for `train` also every choice of its settings."""
        super().format_help(ctx, formatter)
        if self.name == "train":
            print(help_text())


def _as_settings(option: str, typed: list[str]) -> str:
    """`--steps 3` as train.steps=3; empty where no setting has that name."""
    from dograph.config import settings_called

    settings = settings_called(option.lstrip("-").replace("-", "_"))
    value = ""  # after the option's equals sign, or the next word
    for word, following in zip(typed, [*typed[1:], ""], strict=True):
        own, equals, after = word.partition("=")
        if own == option:
            value = after if equals else following
            break
    value = "VALUE" if not value or value.startswith("--") else value
    return " or ".join(f"{name}={value}" for name in settings)


STYLE: dict[str, Any] = {"cls": Group, "no_args_is_help": True, "add_completion": False}
APP_HELP = "Mix pre-training data by the gradients of the model itself."
app = typer.Typer(help=APP_HELP, pretty_exceptions_enable=False, **STYLE)
corpora = typer.Typer(help="Prepare and verify corpora.", **STYLE)
app.add_typer(corpora, name="data")
corpora.command("prepare", cls=Command)(data.prepare)
corpora.command("verify", cls=Command)(data.verify)
for verb in VERBS:  # a module of that name, with a function of that name
    module = import_module(f"dograph.cli.{verb}")
    function = getattr(module, "evaluate" if verb == "eval" else verb)
    app.command(verb, cls=Command, help=getattr(module, "HELP", None))(function)


def main() -> None:
    """Run the command line; errors that a user can fix are printed without a traceback."""
    try:
        app()
        return
    except DographError as error:
        message = str(error)
    except OSError as error:
        is_named = error.errno in (*DISK, *PLACE) and error.filename is not None
        if not is_named and error.errno not in FULL:
            raise
        remedy = "free disk space" if error.errno in DISK else "move it away"
        where = f"{error.filename}: " if is_named else ""
        message = f"{where}{error.strerror}; {remedy}, or name another place"
    rank = int(os.environ.get("RANK", "0"))
    print(f"rank {rank}: error: {message}" if rank else f"error: {message}", file=sys.stderr)
    sys.exit(2)
