"""Is every source learned alike? How far apart the losses of the sources are.

Losses are in nats, by source, of one run's last validation. Sources differ in how well any model
can predict them, so that a spread alone says little; what says something is the difference to a
baseline trained on the same corpus with the same seed, as `dograph reproduce balance` takes it.
"""

import math
from collections.abc import Mapping
from statistics import pstdev
from typing import NamedTuple

from dograph.errors import ConfigError


class Balance(NamedTuple):
    """How unlike the losses of the sources are."""

    spread: float  # standard deviation over sources
    gap: float  # worst less best


def balance(losses: Mapping[str, float]) -> Balance:
    """Standard deviation and best-worst gap of losses over sources.

    The deviation is that of these sources, divided by their number S: they are all there are.
    A loss that is not a number is the worst, and then there is no spread and no gap.
    """
    if len(losses) < 2:
        raise ConfigError(f"balance is over at least 2 sources, got {sorted(losses)}")
    values = sorted(losses.values(), key=lambda loss: math.inf if math.isnan(loss) else loss)
    spread = pstdev(values) if all(map(math.isfinite, values)) else math.nan
    return Balance(spread, values[-1] - values[0])
