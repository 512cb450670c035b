"""Group DRO over sources, against the authors' updates written out."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

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


OPTIONS = [
    {},
    {"absent": "zero"},
    {"mode": "cvar"},
    {"normalize_losses": True},
    {"adjustment": 3.0, "sources": {"a": 100, "b": 50, "c": 10}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_contract(options):
    check_mixer(build_mixer("group-dro", {"sources": NAMES, **options}))


@pytest.mark.parametrize("absent", ["skip", "zero"])
def test_vector(absent):
    """q uniform, losses 0.5, 1, 2, eta 0.01; the loss is 1.170560."""
    mixer = GroupDRO(sources=NAMES, absent=absent)
    seen = signals([0.5, 1.0, 2.5, 1.5], [0, 1, 2, 2])
    weight_B = mixer.weigh(seen)
    q = [0.331112, 0.332772, 0.336116]
    assert mixer.weight_S.tolist() == pytest.approx(q, abs=1e-6)
    assert weight_B.tolist() == pytest.approx([q[0], q[1], q[2] / 2, q[2] / 2], abs=1e-6)
    assert float(weight_B @ seen.loss_B) == pytest.approx(1.170560, abs=1e-6)
    assert weight_B.dtype == torch.float64


def test_absent_sources():
    """Left alone, or losing weight as in the authors' code; those present sum to 1."""
    seen = signals([3.0, 1.0], [0, 2])
    zero, skip = (GroupDRO(sources=NAMES, absent=a, eta=1.0) for a in ("zero", "skip"))
    weight_B = zero.weigh(seen)
    raised = [math.exp(3), 1.0, math.exp(1)]
    q = [x / sum(raised) for x in raised]
    assert zero.weight_S.tolist() == pytest.approx(q)
    assert weight_B.tolist() == pytest.approx([q[0] / (q[0] + q[2]), q[2] / (q[0] + q[2])])
    skip.weigh(seen)
    q = [math.exp(3), math.exp(1)]
    assert skip.weight_S.tolist() == pytest.approx(
        [2 / 3 * q[0] / sum(q), 1 / 3, 2 / 3 * q[1] / sum(q)]
    )


def test_size_adjustment_and_normalised_losses():
    mixer = GroupDRO(adjustment=4.0, eta=0.5, normalize_losses=True)
    mixer.plan(Facts({"a": 400, "b": 100, "c": 25}))
    mixer.weigh(signals([1.0, 1.0, 1.0], [0, 1, 2]))
    scores = [1 + 4 / 20, 1 + 4 / 10, 1 + 4 / 5]
    raised = [math.exp(0.5 * x / sum(scores)) for x in scores]
    expected = [x / sum(raised) for x in raised]
    assert mixer.weight_S.tolist() == pytest.approx(expected)
    with pytest.raises(ConfigError, match="needs the sources' sizes"):
        GroupDRO(adjustment=1.0, sources=NAMES).weigh(signals([1.0], [0]))


def test_normalised_scores_are_of_the_sources_drawn():
    """Without b neither its loss nor its size is in the sum; its weight stays."""
    mixer = GroupDRO(
        adjustment=4.0, eta=0.5, normalize_losses=True, sources={"a": 400, "b": 100, "c": 25}
    )
    mixer.weigh(signals([1.0, 2.0], [0, 2]))
    scores = [1 + 4 / 20, 2 + 4 / 5]
    raised = [math.exp(0.5 * x / sum(scores)) for x in scores]
    assert mixer.weight_S.tolist() == pytest.approx(
        [2 / 3 * raised[0] / sum(raised), 1 / 3, 2 / 3 * raised[1] / sum(raised)]
    )


def test_cvar_ties_go_to_the_lowest_index():
    mixer = GroupDRO(mode="cvar", alpha=0.5, sources=NAMES)
    mixer.weigh(signals([2.0, 2.0, 2.0], [2, 1, 0]))
    assert mixer.weight_S.tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_cvar_counts_the_size_adjustment():
    """1 + 4 / 5 of the smallest source passes 1.5 + 4 / 20 of the largest."""
    mixer = GroupDRO(mode="cvar", alpha=0.01, adjustment=4.0, sources={"a": 400, "b": 25})
    mixer.weigh(signals([1.5, 1.0], [0, 1]))
    assert mixer.weight_S.tolist() == pytest.approx([0, 1])


@given(
    losses=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    tokens=st.lists(st.integers(1, 50), min_size=4, max_size=4),
    alpha=st.floats(0.05, 1.0),
)
def test_cvar_is_the_worst_reweighting(losses, tokens, alpha):
    """max_q sum q l with 0 <= q_g <= share_g / alpha and sum q = 1, by linear programming."""
    names = dict(zip("abcd", tokens, strict=True))
    mixer = GroupDRO(mode="cvar", alpha=alpha, sources=names)
    mixer.weigh(signals([float(x) for x in losses], [0, 1, 2, 3]))
    q = mixer.weight_S
    shares = [n / sum(tokens) for n in tokens]
    worst = linprog(
        [-x for x in losses],
        A_eq=[[1.0] * 4],
        b_eq=[1.0],
        bounds=[(0, share / alpha) for share in shares],
    )
    assert float(q.sum()) == pytest.approx(1, abs=1e-9)
    assert float(q @ torch.tensor(losses).double()) == pytest.approx(-worst.fun, abs=1e-7)


def test_cvar_goes_by_a_moving_average():
    """Where a source is absent its average stays; at first it is the loss itself."""
    mixer = GroupDRO(mode="cvar", alpha=0.5, gamma=0.1, sources=NAMES)
    mixer.weigh(signals([3.0, 2.0], [0, 1]))
    assert mixer.recent_S.tolist() == [3.0, 2.0, 0.0]
    mixer.weigh(signals([1.0, 5.0], [0, 2]))
    assert mixer.recent_S.tolist() == pytest.approx([2.8, 2.0, 5.0])
    # shares of 1/3, from the worst down: c, then half of a
    assert mixer.weight_S.tolist() == pytest.approx([1 / 3, 0, 2 / 3])


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
    mixer = GroupDRO(mode="cvar", sources=NAMES)
    mixer.weigh(signals([1.0, 2.0, 3.0], [0, 1, 2]))
    before = copy.deepcopy(mixer.state_dict())
    weight_B = mixer.weigh(signals([1.0, float("nan")], [0, 1]))
    assert weight_B.tolist() == [0.5, 0.5]
    for name in ("weights", "recent", "seen"):
        assert torch.equal(mixer.state_dict()[name], before[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "btl"}, "mixer.mode='btl'; allowed: cvar, online"),
        ({"absent": "drop"}, "allowed: skip, zero"),
        ({"alpha": 0}, "mixer.alpha=0: give a finite number above 0 and at most 1"),
        ({"gamma": 2}, "mixer.gamma"),
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
