"""What an option may be; errors say what was given and what is allowed.

A setting is named in full: `mixer.eta`, `objective.tau`.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any

from dograph.errors import ConfigError, did_you_mean


def require_known(prefix: str, given: Iterable[str], owner: str, known: Collection[str]) -> None:
    """Options that `owner` has: `mixer.` or `objective.` is the prefix of their names."""
    for option in given:
        if option not in known:
            allowed = did_you_mean(option, known) if known else "it takes no options"
            raise ConfigError(f"{prefix}{option} is not an option of {owner}; {allowed}")


def require_one_of(setting: str, given: Any, allowed: Collection[str]) -> None:
    """A word from a list."""
    if given not in allowed:
        raise ConfigError(f"{setting}={given!r}; {did_you_mean(str(given), allowed)}")


def require_flag(setting: str, given: Any) -> None:
    if not isinstance(given, bool):
        raise ConfigError(f"{setting}={given!r}: give true or false")


def require_number(
    setting: str,
    given: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> None:
    """A finite number > `above` or >= `least`, and <= `most`; no bound where there is none."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not (number and math.isfinite(given)) or not _within(given, above, least, most):
        raise ConfigError(f"{setting}={given!r}: give a finite number{_range(above, least, most)}")


def require_whole(setting: str, given: Any, *, least: int, most: int | None = None) -> None:
    """A whole number from `least` to `most`."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    if not whole or not _within(given, None, least, most):
        raise ConfigError(f"{setting}={given!r}: give a whole number{_range(None, least, most)}")


def _within(given: float, above: float | None, least: float | None, most: float | None) -> bool:
    return (
        (above is None or given > above)
        and (least is None or given >= least)
        and (most is None or given <= most)
    )


def _range(above: float | None, least: float | None, most: float | None) -> str:
    bounds = {"above": above, "of at least": least, "at most": most}
    told = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    return f" {' and '.join(told)}" if told else ""
