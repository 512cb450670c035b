"""What an option may be; the error says what was given and what is allowed."""

import math
from collections.abc import Collection
from typing import Any

from dograph.errors import ConfigError, did_you_mean


def require_one_of(option: str, given: Any, allowed: Collection[str]) -> None:
    """A word from a list."""
    if given not in allowed:
        raise ConfigError(f"mixer.{option}={given!r}; {did_you_mean(str(given), allowed)}")


def require_number(
    option: str, given: Any, *, above: float | None = None, least: float | None = None, most: float
) -> None:
    """A finite number > `above` or >= `least`, and <= `most`."""
    low = f"> {above:g}" if above is not None else f">= {least:g}"
    high = "" if math.isinf(most) else f" and <= {most:g}"
    number = isinstance(given, int | float) and not isinstance(given, bool)
    fits = number and math.isfinite(given) and given <= most
    if not fits or (above is not None and given <= above) or (least is not None and given < least):
        raise ConfigError(f"mixer.{option} must be a number {low}{high}, got {given!r}")


def require_whole(option: str, given: Any, *, least: int) -> None:
    """A whole number >= `least`."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigError(f"mixer.{option} must be a whole number >= {least}, got {given!r}")
