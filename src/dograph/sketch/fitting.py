"""Whether a model, a mode and a projection go together; what to do where they do not."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.modes import EXPLICIT, SPARING, TWO_SIDED
from dograph.sketch.coverage import blocks_of

if TYPE_CHECKING:
    from dograph.sketch.sketcher import Sketcher


def require_fitting(sketcher: "Sketcher") -> None:
    """Refuse what could only go wrong later."""
    mode, kind = sketcher.mode, sketcher.projection.kind
    covered = {name for rule in sketcher.rules for name in rule.names.values()}
    left_out = [name for name in sketcher.parameters if name not in covered]
    if left_out and mode not in SPARING:
        raise ConfigError(
            f"mode {mode} makes every gradient itself, but {left_out} are excluded from "
            "the sketch; use mode twopass, or freeze them"
        )
    if sketcher.reduces and sketcher.sharded:
        raise ConfigError(
            f"mode {mode} cannot fill the gradients of sharded parameters (FSDP2); "
            "use mode twopass, or head"
        )
    if kind not in TWO_SIDED and mode not in EXPLICIT:
        raise ConfigError(
            f"projection={kind} needs the gradients in full: mode exact or "
            f"reference, got {mode}; taps project with rademacher or two-sided"
        )
    if mode == "topdown":
        name, blocks = blocks_of(sketcher.model)
        if not 1 <= sketcher.top_blocks <= len(blocks):
            raise ConfigError(
                f"top_blocks={sketcher.top_blocks}, but {name} has {len(blocks)} blocks; "
                f"give 1 to {len(blocks)}"
            )


def require_no_strays(
    parameters: dict[str, nn.Parameter], found: tuple[Tensor | None, ...]
) -> None:
    """Taps detach parameters from the graph: one that still gets a gradient is used elsewhere."""
    names = [n for n, grad in zip(parameters, found, strict=True) if grad is not None]
    if names:
        raise ConfigError(
            f"{names} are used outside the layer that holds them, where no tap sees it; "
            "use mode twopass, whose gradient is right (its sketch misses that use)"
        )
