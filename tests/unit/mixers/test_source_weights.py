"""The average, the path and the report of learnt weights; nothing waits for the device."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dograph.mixers.registry import build_mixer
from dograph.mixers.source_weights import (
    MOST_POINTS,
    SourceMixer,
    advice_on,
    learned_weights,
    unbiased_gram,
)
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
        ("doge-proxy", {}),
        ("rb", {}),
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
    outcome = learned_weights(as_lists(learnt.state_dict()))
    assert len(outcome["trajectory"]) <= MOST_POINTS
    assert len(outcome["trajectory"]) >= min(steps, MOST_POINTS // 2)
    assert outcome["weights"]["a"] == pytest.approx(np.mean(weights), rel=1e-12)
    assert outcome["last"]["a"] == weights[-1]
    first = int(counts_first)
    for point in outcome["trajectory"]:
        made = point["steps"] + first
        assert point["weights"]["a"] == pytest.approx(weights[made - 1], rel=1e-12)
        assert point["average"]["a"] == pytest.approx(np.mean(weights[:made]), rel=1e-12)
    gaps = np.diff([point["steps"] for point in outcome["trajectory"]])
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
    assert drift == learned_weights(as_lists(learnt.state_dict()))["drift"]
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
    outcome = learned_weights(as_lists(learnt.state_dict()))
    assert outcome["effective_sources"] == pytest.approx(2)
    assert outcome["weights"] == {"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.0}
    assert outcome["drift"] is None
    assert outcome["second_half_from_first"] is None


LIMITS = {"drift": 0.05, "last_from_average": 0.1, "second_half_from_first": 0.1}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(("beyond", "says"), [(-0.001, False), (0.001, True), (None, False)])
def test_each_distance_has_its_limit(name, beyond, says):
    value = None if beyond is None else LIMITS[name] + beyond
    outcome = {"weights": {"a": 0.5, "b": 0.5}, "effective_sources": 2.0, **dict.fromkeys(LIMITS)}
    outcome[name] = value
    told = [line for line in advice_on(outcome, "wait") if "train the proxy longer" in line]
    assert len(told) == says
    assert not says or f"{name} {value:.3f} (limit {LIMITS[name]:g})" in told[0]


def outcome_of(share_N):
    learnt = SourceMixer(sources=["a", "b"])
    for share in share_N.tolist():
        learnt.update(torch.tensor([share, 1 - share], dtype=torch.float64), YES)
    return learned_weights(as_lists(learnt.state_dict()))


@pytest.mark.parametrize("steps", [100, 101, 1000])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        (lambda x: 0.3 + 0.2 * np.exp(-x / 0.05), False),  # reaches 0.3 early and stays
        (lambda x: 0.3 + 0.05 * np.cos(150 * x), False),  # small steps to and fro
        (lambda x: 0.5 + 0.27 * x, True),  # goes on: drift 0.027, the last 0.27 from the average
        (lambda x: 0.5 + 0.15 * (x > 0.5) - 0.15 * (x > 0.95), True),  # went away, and came back
    ],
    ids=["settled", "fluctuates", "moves on", "halves differ"],
)
def test_advice_on_paths(steps, path, says):
    share_N = path(np.arange(1, steps + 1) / steps)
    outcome = outcome_of(share_N)
    assert (advice_on(outcome, "wait") != []) == says
    mean = share_N.mean()
    assert outcome["last_from_average"] == pytest.approx(2 * abs(share_N[-1] - mean))
    # halves are of the points of the path, which are at most a 25th of the steps apart
    middles = range(steps // 2 - steps // 25, steps // 2 + 1)
    halves = [2 * abs(share_N[m:].mean() - share_N[:m].mean()) for m in middles]
    assert min(abs(outcome["second_half_from_first"] - h) for h in halves) < 1e-12


def test_the_last_weights_of_a_steady_move_are_seen_where_the_drift_is_not():
    outcome = outcome_of(np.linspace(0.5, 0.77, 500))
    assert outcome["last_from_average"] == pytest.approx(0.27)
    assert outcome["drift"] < 0.05
    [told] = advice_on(outcome, "wait")
    assert "last_from_average 0.270 (limit 0.1)" in told
    assert "drift" not in told


def test_gram_between_samples_is_the_mean_over_pairs():
    """Written out; the source with one sample has no pair, the last one no sample."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 5)) for n in (4, 1, 2, 0)]
    count_S = torch.tensor([float(len(r)) for r in rows]).double()
    sum_SK = torch.tensor(np.array([r.sum(axis=0) for r in rows]))
    square_S = torch.tensor([(r**2).sum() for r in rows])
    gram_SS = unbiased_gram(count_S, sum_SK, square_S).numpy()
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            pairs = [
                one[a] @ other[b]
                for a in range(len(one))
                for b in range(len(other))
                if i != j or a != b
            ]
            assert gram_SS[i, j] == pytest.approx(np.mean(pairs) if pairs else 0.0, abs=1e-12)


def test_gram_between_samples_has_no_bias():
    """The noise of a batch adds its variance over n to |m|^2 (here 4 and 1/4), but not to this."""
    rng, dim, draws = np.random.default_rng(1), 20, 4000
    true_SK = np.stack([np.ones(dim), np.ones(dim)]) / dim**0.5
    sketch_NSBK = rng.normal(size=(draws, 2, 4, dim)) * np.array([4.0, 1.0])[:, None, None]
    sketch_NSBK = true_SK[:, None] + sketch_NSBK / dim**0.5
    count_S, found, biased = torch.tensor([4.0, 4.0]).double(), [], []
    for sketch_SBK in torch.tensor(sketch_NSBK):
        sums = sketch_SBK.sum(dim=1), sketch_SBK.square().sum(dim=(1, 2))
        found.append(unbiased_gram(count_S, *sums).numpy())
        biased.append(((sums[0] / 4) @ (sums[0] / 4).mT).numpy())
    error = np.std(found, axis=0) / draws**0.5
    assert (np.abs(np.mean(found, axis=0) - 1) < 4 * error).all()
    assert np.diag(np.mean(biased, axis=0)) == pytest.approx([5.0, 1.25], rel=0.05)


@pytest.mark.parametrize(("share", "says"), [(0.85, False), (0.86, True)])
def test_nearly_one_hot_is_below_one_and_a_half_sources(share, says):
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert (math.exp(entropy) < 1.5) == says
    outcome = outcome_of(np.array([1 - share]))
    told = [line for line in advice_on(outcome, "wait") if "is on b" in line and "wait" in line]
    assert len(told) == says


def test_a_state_before_the_first_step():
    learnt = SourceMixer(sources=["a", "b"])
    outcome = learned_weights(as_lists(learnt.state_dict()))
    assert outcome["trajectory"] == []
    again = SourceMixer()
    again.load_state_dict(learnt.state_dict())
    assert again.path == []
    assert again.weight_S.tolist() == [0.5, 0.5]
