"""How commands print: tables, and how long something takes; where they may write."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dograph.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200  # of what goes into a pipe or a file, in characters


def open_console(width: int = PIPE_WIDTH) -> "Console":
    """Standard output for tables: as wide as the terminal, or `width` where there is none.

    A pipe has no width to fit into, and what is cut off there is lost.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width)


def require_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the work, not after it; nothing is left there."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file in it")
    place = next(folder for folder in out.absolute().parents if folder.exists())
    trial = place / f".{out.name}.trial"
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written: {error.strerror}; name another place with --out"
        ) from error


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it: 90 s, 12 min, 3.5 h."""
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if round(seconds / 60) < 120 else f"{seconds / 3600:.1f} h"
