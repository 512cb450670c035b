"""Which way a step goes from weights to gradients; `dograph.train.step` has the table.

A pure function of the configuration and of what the mixer needs, so that what a step does, and
what it is said to cost (training/flops.py), is decided once.
"""

from collections.abc import Set
from typing import Literal

from dograph.config import RunConfig
from dograph.errors import ConfigError
from dograph.mixers.base import SIGNALS, Mixer
from dograph.mixers.dograph import DoGraph

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


def lagging_mixer(config: RunConfig, mixer: Mixer) -> DoGraph | None:
    """The mixer as one of lagged weights, where sketch.accumulation asks for those.

    They are the weights of domains that were known before the step; other mixers are refused.
    """
    if config.sketch.accumulation != "lagged" or "sketch" not in mixer.needs:
        return None
    remedy = "use sketch.accumulation=two_sweeps, or keep (mode full)"
    if not isinstance(mixer, DoGraph):
        raise ConfigError(
            f"sketch.accumulation=lagged with mixer.name={config.mixer.name}, which does not say "
            f"what a sample counts before it has seen the whole batch; {remedy}"
        )
    if not mixer.scope.keeps_identity:
        raise ConfigError(
            f"sketch.accumulation=lagged with mixer.scope={mixer.options.scope}: weights of a "
            "micro-batch need domains that are known before it; set mixer.scope to stream or "
            f"epoch, or {remedy}"
        )
    if mixer.options.keep_shares:
        raise ConfigError(
            "sketch.accumulation=lagged with mixer.keep_shares=true: what a source weighs is known "
            f"of the whole batch, not of a micro-batch; {remedy}"
        )
    return mixer
