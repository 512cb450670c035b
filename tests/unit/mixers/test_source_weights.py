"""The average, the path and the report of learnt weights; nothing waits for the device."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dograph.mixers.registry import build_mixer
from dograph.mixers.source_weights import MOST_POINTS, LearnedWeights, SourceMixer
from dograph.testing import random_signals

YES = torch.tensor(True)
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
REPEATS_NOT = ("cumsum", "scatter", "index_add", "bincount", "histc", "median", "index_put", "topk")


class Watch(TorchDispatchMode):
    """Refuses what waits for the device, and what CUDA cannot repeat bit for bit."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith((*WAITS, *REPEATS_NOT)), name
        if name == "index":
            assert torch.bool not in {i.dtype for i in args[1] if i is not None}, "mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dynamic-loss", {"strategy": "linupper"}),
        ("dynamic-loss", {"strategy": "quadratic"}),
        ("dynamic-loss", {"strategy": "extremes"}),
        ("group-dro", {"adjustment": 1.0}),
        ("doremi-proxy", {"sampling": "natural"}),
        ("doremi-proxy", {"clip_excess_per": "source", "loss_normalization": "per_source"}),
        ("doge-proxy", {"targets": ["b"], "exclude_self": True}),
    ],
)
def test_nothing_waits_for_the_device(name, options):
    if name != "dynamic-loss":
        options = {**options, "sources": {"a": 5, "b": 3, "c": 1}}
    mixer = build_mixer(name, options)
    signals = random_signals(mixer, 12, 3)
    mixer.weigh(signals)  # what is made once may wait
    with Watch():
        for _ in range(3):
            mixer.weigh(signals)
            mixer.report()


class CountsFirst(SourceMixer):
    counts_first = True


def follow(steps, *, counts_first=False):
    learnt = (CountsFirst if counts_first else SourceMixer)(sources=["a", "b"])
    for n in range(1, steps + 1):
        share = n / (n + 1)
        learnt.update(torch.tensor([share, 1 - share], dtype=torch.float64), YES)
    return learnt


def as_lists(state):
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


@pytest.mark.parametrize("counts_first", [False, True])
@pytest.mark.parametrize("steps", [2, 10, 49, 50, 51, 52, 1000])
def test_a_path_is_thinned_out_as_it_grows(steps, counts_first):
    learnt = follow(steps, counts_first=counts_first)
    weights = ([0.5] if counts_first else []) + [n / (n + 1) for n in range(1, steps + 1)]
    outcome = LearnedWeights.of(as_lists(learnt.state_dict()))
    assert len(outcome.trajectory) <= MOST_POINTS
    assert len(outcome.trajectory) >= min(steps, MOST_POINTS // 2)
    assert outcome.average["a"] == pytest.approx(np.mean(weights), rel=1e-12)
    assert outcome.last["a"] == weights[-1]
    first = int(counts_first)
    for point in outcome.trajectory:
        made = point["steps"] + first
        assert point["weights"]["a"] == pytest.approx(weights[made - 1], rel=1e-12)
        assert point["average"]["a"] == pytest.approx(np.mean(weights[:made]), rel=1e-12)
    gaps = np.diff([point["steps"] for point in outcome.trajectory])
    assert len(set(gaps.tolist())) <= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_never_taken(bad):
    learnt = follow(1)
    learnt.update(torch.tensor([bad, 0.5], dtype=torch.float64), YES)
    assert learnt.weight_S.tolist() == [0.5, 0.5]
    assert learnt.average_S.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("steps", [2, 30, 1000])
def test_drift_is_how_far_the_average_moved_in_the_last_tenth(steps):
    learnt = follow(steps)
    weights = np.array([n / (n + 1) for n in range(1, steps + 1)])
    drift = float(learnt.weights_report()["weights/drift"])
    assert drift == LearnedWeights.of(as_lists(learnt.state_dict())).drift
    # the path has a point at least every 25th part of the steps: at 86 to 90 % of them
    early, late = int(0.9 * steps) - steps // 25, max(int(0.9 * steps), 1)
    moved = [2 * abs(weights.mean() - weights[:n].mean()) for n in range(max(early, 1), late + 1)]
    assert min(abs(drift - m) for m in moved) < 1e-12


def test_entropy_and_effective_number():
    learnt = SourceMixer(sources=["a", "b", "c", "d"])
    learnt.update(torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64), YES)
    report = learnt.weights_report()
    assert float(report["weights/entropy_nats"]) == pytest.approx(math.log(2))
    assert float(report["weights/effective_sources"]) == pytest.approx(2)
    assert "weights/drift" not in report  # one step
    assert float(report["weights/b/now"]) == float(report["weights/b/average"]) == 0.5
    outcome = LearnedWeights.of(as_lists(learnt.state_dict()))
    assert outcome.findings()["effective_sources"] == pytest.approx(2)
    assert outcome.average == {"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.0}
    assert outcome.drift is None


@pytest.mark.parametrize(("drift", "says"), [(0.049, False), (0.051, True), (None, False)])
def test_an_average_that_still_moves_is_told(drift, says):
    outcome = LearnedWeights({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}, drift, [])
    told = [line for line in outcome.advice("wait") if "train the proxy longer" in line]
    assert len(told) == says


@pytest.mark.parametrize(("share", "says"), [(0.85, False), (0.86, True)])
def test_nearly_one_hot_is_below_one_and_a_half_sources(share, says):
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert (math.exp(entropy) < 1.5) == says
    outcome = LearnedWeights({"a": 1 - share, "b": share}, {}, None, [])
    told = [line for line in outcome.advice("wait") if "is on b" in line and "wait" in line]
    assert len(told) == says


def test_a_state_before_the_first_step():
    learnt = SourceMixer(sources=["a", "b"])
    outcome = LearnedWeights.of(as_lists(learnt.state_dict()))
    assert outcome.trajectory == []
    again = SourceMixer()
    again.load_state_dict(learnt.state_dict())
    assert again.path == []
    assert again.weight_S.tolist() == [0.5, 0.5]
