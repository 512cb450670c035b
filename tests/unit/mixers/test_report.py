"""A step keeps what its metrics are made of; they are worked out when they are read."""

import copy

import pytest
import torch

from dograph.mixers.dograph import DoGraph
from dograph.mixers.dograph_report import read_together
from dograph.types import Signals


def reports(recipe, steps=14):
    mixer = DoGraph(recipe, num_domains=4)
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        source_B = torch.randint(3, (24,), generator=generator)
        sketch_BK = torch.randn(24, 40, generator=generator) + 2 * source_B[:, None]
        mixer.weigh(Signals(step=step, num_samples=24, source_B=source_B, sketch_BK=sketch_BK))
        found.append(mixer.report())
    return found


@pytest.mark.parametrize("recipe", ["paper", "safe"])
def test_reports_read_late_and_together_say_what_each_says_at_once(recipe):
    late = reports(recipe)
    read_together(late)
    alone = [copy.deepcopy(report) for report in reports(recipe)]
    for one, other in zip(late, alone, strict=True):
        assert list(one) == list(other)
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, msg=name)
    assert not torch.equal(late[-1]["domains/weight"], late[-2]["domains/weight"])


def test_other_reports_are_left_alone():
    plain = {"weights/max_times_equal": torch.ones(())}
    read_together([plain, {}])
    assert list(plain) == ["weights/max_times_equal"]


def test_what_was_read_is_not_held_on_the_device():
    report = reports("paper", steps=1)[0]
    assert report.tensors()
    assert len(report) > 3
    assert not report.tensors()
