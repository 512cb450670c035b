"""What is left of an interval between the ends of its quantity."""

import math

import pytest

from dograph.eval.merging import ABOVE_ZERO, ANY, PER_CENT, SHARE, SHARE_CHANGE, cut
from dograph.stats import Interval


@pytest.mark.parametrize(
    ("interval", "ends", "left"),
    [
        ((-0.3, 1.2), SHARE, (0.0, 1.0)),
        ((0.2, 1.2), SHARE, (0.2, 1.0)),
        ((-0.3, 0.9), SHARE, (0.0, 0.9)),
        ((0.2, 0.9), SHARE, (0.2, 0.9)),
        ((-1.5, 0.2), SHARE_CHANGE, (-1.0, 0.2)),
        ((-5.0, 250.0), PER_CENT, (0.0, 100.0)),
        ((-5.0, 250.0), ABOVE_ZERO, (0.0, 250.0)),
        ((-5.0, 250.0), ANY, (-5.0, 250.0)),
        ((-math.inf, math.inf), SHARE, (0.0, 1.0)),
    ],
)
def test_the_part_between_the_ends(interval, ends, left):
    assert cut(Interval(*interval), ends) == Interval(*left)


def test_no_interval_stays_none():
    assert cut(None, SHARE) is None
