"""What the integrations share: which mixers fit, entries of a batch, numbers for the log."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.mixers.base import Mixer

COMPUTED = frozenset({"loss", "source", "sketch"})  # the signals that these integrations offer


def require_mixer(mixer: Mixer, sources: str | int | None) -> None:
    """Refuse a mixer that needs signals or decisions that another trainer does not offer."""
    name = type(mixer).__name__
    if missing := mixer.needs - COMPUTED:
        raise ConfigError(
            f"{name} needs {sorted(missing)}, which a Trainer does not compute; use a mixer that "
            f"needs {sorted(COMPUTED)} at most"
        )
    plans = type(mixer).plan is not Mixer.plan and type(mixer).weigh is Mixer.weigh
    if plans or mixer.changes_sampling:
        raise ConfigError(
            f"{name} decides what to draw, but a Trainer draws from its own data; use a mixer "
            "that weights samples (DoGraph with apply_weights_to=loss), or `dograph train`"
        )
    if sources is None and mixer.requires_sources:
        raise ConfigError(
            f"{name} needs the source of every sample; set sources= to the input that holds it"
        )


def entry(batch: Any, name: str | int) -> Tensor:
    """An entry of a batch, by its name in a dict or its place in a tuple."""
    try:
        value: Tensor = batch[name]
    except (KeyError, IndexError, TypeError):
        held = sorted(batch) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ConfigError(
            f"the batch has no {name}, only {held}; it must hold tokens (for transformers also "
            "labels), and sources if `sources` is set"
        ) from None
    return value


def summary(mixer: Mixer, unweighted: Tensor, weight_B: Tensor) -> dict[str, float]:
    """The numbers of the last step that fit into a log; this waits for the device.

    Vectors, by domain or sample, would be dozens of names in every line.
    """
    values: dict[str, float | Tensor] = {
        "loss/unweighted": unweighted,
        "weights/effective_samples": 1 / weight_B.square().sum(),
        **mixer.report(),
    }
    if (count_M := values.get("domains/samples")) is not None:
        values["domains/number"] = (torch.as_tensor(count_M) > 0).sum()
    scalars = {k: v for k, v in values.items() if not isinstance(v, Tensor) or v.dim() == 0}
    return {name: float(value) for name, value in scalars.items()}
