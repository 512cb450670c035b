"""Group DRO over sources, against the authors' updates written out."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch

from dograph.errors import ConfigError
from dograph.mixers.group_dro import GroupDRO
from dograph.mixers.registry import build_mixer
from dograph.testing import check_mixer
from dograph.types import Signals

NAMES = ["a", "b", "c"]


@dataclass
class Facts:
    tokens: dict[str, int]
    steps: int = 100
    budget: int = 1000


def signals(losses, sources, step=0):
    return Signals(
        step=step,
        num_samples=len(losses),
        loss_B=torch.tensor(losses, dtype=torch.float64),
        source_B=torch.tensor(sources),
    )


OPTIONS = [{}, {"adjustment": 3.0, "sources": {"a": 100, "b": 50, "c": 10}}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_contract(options):
    check_mixer(build_mixer("group-dro", {"sources": NAMES, **options}))


def test_vector():
    """q uniform, losses 0.5, 1, 2, eta 0.01; the loss is 1.170560."""
    mixer = GroupDRO(sources=NAMES)
    seen = signals([0.5, 1.0, 2.5, 1.5], [0, 1, 2, 2])
    weight_B = mixer.weigh(seen)
    q = [0.331112, 0.332772, 0.336116]
    assert mixer.weight_S.tolist() == pytest.approx(q, abs=1e-6)
    assert weight_B.tolist() == pytest.approx([q[0], q[1], q[2] / 2, q[2] / 2], abs=1e-6)
    assert float(weight_B @ seen.loss_B) == pytest.approx(1.170560, abs=1e-6)
    assert weight_B.dtype == torch.float64


def test_absent_sources_are_left_alone():
    """Those present share what they had between them, and their samples' weights sum to 1."""
    mixer = GroupDRO(sources=NAMES, eta=1.0)
    weight_B = mixer.weigh(signals([3.0, 1.0], [0, 2]))
    q = [math.exp(3), math.exp(1)]
    assert mixer.weight_S.tolist() == pytest.approx(
        [2 / 3 * q[0] / sum(q), 1 / 3, 2 / 3 * q[1] / sum(q)]
    )
    assert weight_B.tolist() == pytest.approx([x / sum(q) for x in q])


def test_size_adjustment():
    mixer = GroupDRO(adjustment=4.0, eta=0.5)
    mixer.plan(Facts({"a": 400, "b": 100, "c": 25}))
    mixer.weigh(signals([1.0, 1.0, 1.0], [0, 1, 2]))
    raised = [math.exp(0.5 * x) for x in (1 + 4 / 20, 1 + 4 / 10, 1 + 4 / 5)]
    assert mixer.weight_S.tolist() == pytest.approx([x / sum(raised) for x in raised])
    with pytest.raises(ConfigError, match="needs the sources' sizes"):
        GroupDRO(adjustment=1.0, sources=NAMES).weigh(signals([1.0], [0]))


def test_the_size_of_a_source_that_is_absent_does_not_count():
    mixer = GroupDRO(adjustment=4.0, eta=0.5, sources={"a": 400, "b": 100, "c": 25})
    mixer.weigh(signals([1.0, 2.0], [0, 2]))
    raised = [math.exp(0.5 * x) for x in (1 + 4 / 20, 2 + 4 / 5)]
    assert mixer.weight_S.tolist() == pytest.approx(
        [2 / 3 * raised[0] / sum(raised), 1 / 3, 2 / 3 * raised[1] / sum(raised)]
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_state_goes_on_where_it_stopped(options):
    torch.manual_seed(3)
    steps = [
        signals((torch.rand(6) + 1).tolist(), torch.randint(3, (6,)).tolist(), n) for n in range(9)
    ]
    whole = build_mixer("group-dro", {"sources": NAMES, **options})
    for n, seen in enumerate(steps):
        if n == 5:
            state = copy.deepcopy(whole.state_dict())
        weight_B = whole.weigh(seen)
    resumed = build_mixer("group-dro", options)
    resumed.load_state_dict(state)
    for seen in steps[5:]:
        again_B = resumed.weigh(seen)
    assert torch.equal(again_B, weight_B)
    assert all(torch.equal(v, resumed.report()[name]) for name, v in whole.report().items())


def test_losses_that_are_no_numbers_change_nothing():
    mixer = GroupDRO(sources=NAMES)
    mixer.weigh(signals([1.0, 2.0, 3.0], [0, 1, 2]))
    before = copy.deepcopy(mixer.state_dict())
    weight_B = mixer.weigh(signals([1.0, float("nan")], [0, 1]))
    assert weight_B.tolist() == [0.5, 0.5]
    assert torch.equal(mixer.state_dict()["weights"], before["weights"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "cvar"}, "mixer.mode=cvar: this option was removed; leave it out"),
        ({"absent": "zero"}, "mixer.absent=zero: this option was removed"),
        ({"eta": float("nan")}, "mixer.eta"),
        ({"sources": []}, "must list the sources' names"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        build_mixer("group-dro", options)


def test_sources_must_be_known():
    with pytest.raises(ConfigError, match="does not know the sources"):
        GroupDRO().weigh(signals([1.0], [0]))
    with pytest.raises(ConfigError, match="the corpus has"):
        GroupDRO(sources=["x"]).plan(Facts({"a": 1, "b": 2}))
    with pytest.raises(ConfigError, match="source_B"):
        GroupDRO(sources=NAMES).weigh(Signals(step=0, num_samples=1, loss_B=torch.ones(1)))
