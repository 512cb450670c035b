"""Intervals of quantities that have a range.

A t interval over few seeds reaches beyond what can be: an NMI of 1.2. Its ends are cut to the
range, which loses no coverage, since no true value lies outside. Means are left as they are.
"""

import math

from dograph.stats import Interval

Range = tuple[float, float]
SHARE: Range = (0.0, 1.0)  # NMI, purity
SHARE_CHANGE: Range = (-1.0, 1.0)  # one of them less another
PER_CENT: Range = (0.0, 100.0)
PER_CENT_CHANGE: Range = (-100.0, 100.0)
ABOVE_ZERO: Range = (0.0, math.inf)  # losses, spreads, seconds
ANY: Range = (-math.inf, math.inf)


def cut(interval: Interval | None, ends: Range) -> Interval | None:
    """The part of an interval that lies between `ends`."""
    if interval is None:
        return None
    low, high = (min(max(end, ends[0]), ends[1]) for end in (interval.low, interval.high))
    return Interval(low, high)
