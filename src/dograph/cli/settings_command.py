"""Commands that take settings: somebody who types one as an option is shown how it is given."""

from typing import Any

from typer.core import TyperCommand

from dograph.errors import ConfigError


class SettingsCommand(TyperCommand):
    """A command whose arguments are name=value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # by its name, because older typers raise click's and newer ones their own copy of it
            if type(error).__name__ != "NoSuchOption":
                raise
            raise ConfigError(_told(ctx.command_path, typed, error)) from None


def _told(command: str, typed: list[str], error: Any) -> str:
    option: str = error.option_name
    settings = _meant(option)
    near = sorted(name for name in error.possibilities or [] if name != "--help")
    if settings:
        value = _value(option, typed)
        how = f"give it as {' or '.join(f'{name}={value}' for name in settings)}, without dashes"
    elif near:
        how = f"did you mean {' or '.join(near)}?"
    else:
        how = f"settings are given as train.steps=200, without dashes; options: {command} --help"
    return f"{option} is not an option of {command}; {how}"


def _meant(option: str) -> list[str]:
    from dograph.config import setting_names, settings_called

    name = option.lstrip("-").replace("-", "_")
    return [name] if name in setting_names() else settings_called(name)


def _value(option: str, typed: list[str]) -> str:
    """What came with the option: after its equals sign, or as the next word."""
    for word, following in zip(typed, [*typed[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            value = value if equals else following
            return "VALUE" if not value or value.startswith("--") else value
    return "VALUE"
