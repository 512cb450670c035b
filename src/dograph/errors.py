"""Errors for users: each says what was given, what is allowed and what to do."""

import difflib
import importlib
from collections.abc import Collection, Iterable, Sequence
from types import ModuleType


class DographError(Exception):
    """Base class of every error that a user can cause and fix."""


class ConfigError(DographError, ValueError):
    """A setting is wrong."""


class CorpusError(DographError, ValueError):
    """An input to the corpus, or a prepared corpus, is wrong."""


class RunError(DographError):
    """A run directory cannot be used as asked."""


class NonFiniteError(DographError, ArithmeticError):
    """A loss or a gradient is not finite; the run stopped before the update."""


class MissingExtraError(DographError, ImportError):
    """An optional dependency is not installed."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A clause with the most similar allowed word, or with all of them if none is similar."""
    allowed = sorted(set(allowed))
    known = {name.casefold(): name for name in allowed}  # "Pile-CC" is like "pile_cc"
    near = difflib.get_close_matches(word.casefold(), known, n=1, cutoff=0.6)
    return f'did you mean "{known[near[0]]}"?' if near else f"allowed: {listed(allowed)}"


def require_known(name: str, known: Collection[str], what: str) -> None:
    """Refuse a name that is none of `known`; `what` is wrong with it."""
    if name not in known:
        raise ConfigError(f"{what}; {did_you_mean(name, known)}")


def shortened(text: str, most: int = 200) -> str:
    """A value for a message, without its end if it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Sequence[str], most: int = 50) -> str:
    """Names for a message; of very many, the first ones and how many more."""
    text = ", ".join(names[:most])
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say exactly how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{module.split('.')[0]} is not installed. Install it with: "
            f"pip install 'dograph[{extra}]'"
        ) from error
