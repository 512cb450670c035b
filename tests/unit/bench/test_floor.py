"""The floor of a mode from its pieces of work."""

import pytest

from dograph.bench.session import floor_ms
from dograph.train.forecast import Work


def test_time_is_that_of_the_scarcer_resource():
    work = [Work("a", bytes=1e9, flops=1.0), Work("a", bytes=1.0, flops=4e12), Work("b", 5e8)]
    found = floor_ms(work, bytes_per_second=1e12, flops_per_second=1e15)
    assert found == pytest.approx({"a": 1 + 4, "b": 0.5, "total": 5.5})
