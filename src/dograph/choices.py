"""The choices that a run makes: their values, and what each does and costs (choices.yaml)."""

import textwrap
from typing import Literal, NamedTuple, get_args

from dograph.files import load_yaml, package_text

Mode = Literal["full", "twopass", "topdown", "head", "exact", "reference"]
MODES: tuple[Mode, ...] = get_args(Mode)
CUTTING: tuple[Mode, ...] = ("topdown", "head")  # below their cut, backward is the ordinary one
EXPLICIT: tuple[Mode, ...] = ("exact", "reference")  # hold per-sample gradients in full
DETACHING: tuple[Mode, ...] = ("full", "exact")  # their taps take every parameter out of the graph
# They hold the graph of (nearly) the whole model until there are weights: too much for many
# micro-batches. Their gradient is a backward through the wrapper, as FSDP2 needs it.
GRAPH_HOLDING: tuple[Mode, ...] = ("twopass", "head")
SHARDABLE: tuple[Mode, ...] = ("twopass", "head")

Kind = Literal["rademacher", "two-sided", "gaussian", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TWO_SIDED: tuple[Kind, ...] = ("rademacher", "two-sided")  # can be computed layer by layer, in taps

Accumulation = Literal["two_sweeps", "keep", "lagged"]


class ChoiceText(NamedTuple):
    """A value of a setting: what it does, what it costs and when to use it."""

    does: str
    cost: str
    use: str


_TEXTS = load_yaml(package_text("choices.yaml"))
CHOICES: dict[str, dict[str, ChoiceText]] = {
    setting: {value: ChoiceText(**texts) for value, texts in values.items()}
    for setting, values in _TEXTS.items()
}


def help_text(width: int = 80) -> str:
    """Every choice, for the command line."""
    lines = ["Choices (settings: docs/configuration.md)"]
    for setting, values in CHOICES.items():
        lines += ["", f"{setting}="]
        for value, choice in values.items():
            text = f"  {value:<12} {choice.does}. Cost: {choice.cost}. Use: {choice.use}."
            lines.append(textwrap.fill(text, width, subsequent_indent=15 * " "))
    return "\n".join(lines)
