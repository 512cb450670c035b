"""Which way a step goes from weights to gradients; `dograph.train.step` has the table.

A pure function of the configuration and of what the mixer needs, so that what a step does, and
what it is said to cost (training/flops.py), is decided once.
"""

from collections.abc import Set
from typing import Literal

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import SIGNALS, Mixer

Way = Literal["keep", "blind", "two_sweeps", "lagged"]
LOOKS = frozenset({"loss", "reference_loss", "sketch"})  # needs that take a look at the samples


def way_of(config: RunConfig, needs: Set[str], num_ranks: int = 1) -> Way:
    """How weights and gradients come together; every rank must answer alike."""
    if not needs & LOOKS:
        return "blind"
    most = -(-config.train.batch_size // num_ranks)  # samples of the first rank
    if most <= (config.train.micro_batch_size or most):
        return "keep"
    return config.sketch.accumulation if "sketch" in needs else "two_sweeps"


def require_known_needs(mixer: Mixer) -> None:
    """Refuse a mixer that asks for what no step computes."""
    if missing := mixer.needs - SIGNALS:
        raise ConfigError(
            f"the mixer needs {sorted(missing)}, which this step does not compute; "
            f"it computes {sorted(SIGNALS)}"
        )


def require_lagged(config: RunConfig, mixer: Mixer) -> None:
    """Refuse sketch.accumulation=lagged for a mixer that has no lagged weights."""
    if config.sketch.accumulation != "lagged" or "sketch" not in mixer.needs:
        return
    if (why := mixer.refuses_lagged()) is not None:
        raise ConfigError(
            f"sketch.accumulation=lagged with mixer.name={config.mixer.name}, which {why}; or use "
            "sketch.accumulation=two_sweeps, or keep (mode full)"
        )
