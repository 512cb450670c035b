"""DoReMi's proxy against its update written out."""

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dograph.errors import ConfigError
from dograph.mixers.doremi import DoReMiProxy
from dograph.mixers.registry import build_mixer
from dograph.testing import check_mixer
from dograph.types import Signals

NAMES = ["a", "b", "c", "d"]


@dataclass
class Facts:
    tokens: dict[str, int]
    steps: int = 100
    budget: int = 1000


def signals(excess, sources, step=0, losses=None, reference=None, tokens=None):
    loss_B = torch.tensor(losses or [3.0] * len(excess), dtype=torch.float64)
    return Signals(
        step=step,
        num_samples=len(excess),
        loss_B=loss_B,
        reference_loss_B=None if reference is None else torch.tensor(reference).double(),
        excess_loss_B=torch.tensor(excess, dtype=torch.float64),
        num_tokens_B=None if tokens is None else torch.tensor(tokens),
        source_B=torch.tensor(sources),
        vocab_size=100,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"loss_normalization": "per_source"}, {"clip_excess_per": "source", "smoothing": 0.0}],
    ids=str,
)
def test_contract(options):
    check_mixer(build_mixer("doremi-proxy", {"sources": NAMES, **options}), sources=NAMES)


def test_vector():
    mixer = DoReMiProxy(sources=NAMES)
    mixer.weigh(signals([0.1, 0.5, 0.0, 0.0, 0.7], [0, 0, 1, 2, 3]))
    expected = [0.251668, 0.186505, 0.186505, 0.375322]
    assert mixer.weight_S.tolist() == pytest.approx(expected, abs=1e-6)
    # the average begins with the weights before the first step
    average = [(0.25 + x) / 2 for x in expected]
    assert mixer.state_dict()["average"].tolist() == pytest.approx(average, abs=1e-6)


@pytest.mark.parametrize("sampling", ["natural", "uniform"])
def test_a_source_with_validation_text_alone_gets_no_weight(sampling):
    mixer = DoReMiProxy(sampling=sampling)
    mixer.plan(Facts({"a": 300, "b": 100, "c": 0, "d": 100}))
    for step in range(50):
        weight_B = mixer.weigh(signals([0.1, 0.5, 0.3], [0, 1, 3], step))
    assert mixer.weight_S[2] < 1e-3
    assert weight_B[1] > 2 * weight_B[0]


def test_a_source_not_in_the_batch_keeps_its_excess():
    """It starts from log(vocabulary); many steps, and the average, by hand."""
    mixer = DoReMiProxy(sources=NAMES, eta=0.3, smoothing=0.02)
    rng = np.random.default_rng(0)
    a, s, kept = np.full(4, 0.25), np.full(4, math.log(100)), [np.full(4, 0.25)]
    for step in range(30):
        source_B = rng.integers(0, 4 if step > 3 else 3, size=3)
        excess_B = rng.random(3)
        mixer.weigh(signals(excess_B.tolist(), source_B.tolist(), step))
        for d in set(source_B.tolist()):
            s[d] = excess_B[source_B == d].mean()
        a = a * np.exp(0.3 * s)
        a = 0.98 * a / a.sum() + 0.02 / 4
        kept.append(a)
        assert mixer.weight_S.numpy() == pytest.approx(a, rel=1e-9)
    assert mixer.average_S.numpy() == pytest.approx(np.mean(kept, axis=0), rel=1e-9)


TOKENS = {"a": 600, "b": 300, "c": 100}


def authors(steps, start, eta=0.1, c=1e-3):
    """Their loop over single tokens: weights of the sources, and of the samples in the last step.

    Smoothing is towards equal weights, wherever they start.
    """
    start = np.array(start)
    a, s = start.copy(), np.full(3, math.log(100))
    for excess, source_B, tokens in steps:
        excess_N, source_N = np.repeat(excess, tokens), np.repeat(source_B, tokens)
        for d in set(source_B):
            s[d] = excess_N[source_N == d].mean()
        a = a * np.exp(eta * s)
        a = (1 - c) * a / a.sum() + c / 3
    each_N = (a / [0.6, 0.3, 0.1])[source_N]
    each_B = [
        each_N[np.repeat(np.arange(len(tokens)), tokens) == i].sum() for i in range(len(tokens))
    ]
    return a, np.array(each_B) / sum(each_B)


def drawn_steps(number, lengths):
    rng, steps = np.random.default_rng(3), []
    for _ in range(number):
        source_B = rng.choice(3, size=8, p=[0.6, 0.3, 0.1])
        excess_B = rng.random(8) * np.array([0.3, 0.5, 0.2])[source_B]
        tokens_B = rng.integers(*lengths, size=8)
        excess_B = excess_B * (1 + (tokens_B > 100) * (source_B == 0))  # long ones of a are hard
        steps.append((excess_B, source_B.tolist(), tokens_B))
    return steps


def follow(mixer, steps, tokens=True):
    for n, (excess_B, source_B, tokens_B) in enumerate(steps):
        own = tokens_B.tolist() if tokens else None
        weight_B = mixer.weigh(signals(excess_B.tolist(), source_B, n, tokens=own))
    return mixer.weight_S.numpy(), weight_B.numpy()


def test_natural_sampling_starts_at_the_sampling_weights():
    """As the authors do: the start still counts after 50 updates."""
    steps = drawn_steps(50, (64, 65))
    mixer = DoReMiProxy(sampling="natural", eta=0.1)
    mixer.plan(Facts(TOKENS))
    assert mixer.weight_S.tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert mixer.average_S.tolist() == pytest.approx([0.6, 0.3, 0.1])  # it counts a_0
    a, weight_B = follow(mixer, steps)
    expected = authors(steps, [0.6, 0.3, 0.1])
    assert a == pytest.approx(expected[0], rel=1e-9)
    assert weight_B == pytest.approx(expected[1], rel=1e-9)
    ours = DoReMiProxy(sampling="natural", eta=0.1, initial_weights="uniform", sources=TOKENS)
    assert ours.weight_S.tolist() == pytest.approx([1 / 3] * 3)
    other = follow(ours, steps)[0]
    assert other == pytest.approx(authors(steps, [1 / 3] * 3)[0], rel=1e-9)
    assert abs(a - other).sum() > 0.3


@pytest.mark.parametrize("normalization", ["global", "per_source"])
def test_samples_count_by_their_tokens(normalization):
    steps = drawn_steps(50, (4, 200))
    options = {"sampling": "natural", "eta": 0.1, "loss_normalization": normalization}
    mixer = DoReMiProxy(sources=TOKENS, **options)
    a, weight_B = follow(mixer, steps)
    expected = authors(steps, [0.6, 0.3, 0.1])
    assert a == pytest.approx(expected[0], rel=1e-9)
    if normalization == "per_source":  # a_d over the source's tokens, for each of the sample's
        _, source_B, tokens_B = steps[-1]
        own = [tokens_B[np.array(source_B) == d].sum() for d in source_B]
        each = a[source_B] * tokens_B / own
        expected = a, each / each.sum()
    assert weight_B == pytest.approx(expected[1], rel=1e-9)
    by_samples = DoReMiProxy(sources=TOKENS, mean_over="samples", **options)
    unknown = DoReMiProxy(sources=TOKENS, **options)
    other, alike = follow(by_samples, steps), follow(unknown, steps, tokens=False)
    assert np.array_equal(other[0], alike[0])
    assert np.array_equal(other[1], alike[1])
    assert abs(a - other[0]).sum() > 0.02


def test_equal_lengths_are_no_lengths():
    steps = drawn_steps(20, (64, 65))
    one, other = DoReMiProxy(sources=TOKENS), DoReMiProxy(sources=TOKENS)
    weights = follow(one, steps), follow(other, steps, tokens=False)
    assert weights[0][0] == pytest.approx(weights[1][0], rel=1e-12)
    assert weights[0][1] == pytest.approx(weights[1][1], rel=1e-12)


def test_both_normalisers():
    """Sources of 3 and 1 samples, drawn naturally: a_d / p_d each, or a_d / n_d."""
    sources = {"a": 600, "b": 300, "c": 100}
    seen = signals([0.2, 0.2, 0.2, 0.6], [0, 0, 0, 1])
    whole = DoReMiProxy(sources=sources, sampling="natural")
    weight_B = whole.weigh(seen)
    a = whole.weight_S.tolist()
    token = [a[0] / 0.6] * 3 + [a[1] / 0.3]
    assert weight_B.tolist() == pytest.approx([x / sum(token) for x in token])
    by_source = DoReMiProxy(sources=sources, sampling="natural", loss_normalization="per_source")
    weight_B = by_source.weigh(seen)
    assert by_source.weight_S.tolist() == a
    token = [a[0] / 3] * 3 + [a[1]]
    assert weight_B.tolist() == pytest.approx([x / sum(token) for x in token])


def test_normalisers_agree_where_every_source_is_drawn_alike():
    seen = signals([0.3, 0.1, 0.2, 0.9], [0, 1, 2, 3])
    one, other = (
        DoReMiProxy(sources=NAMES, loss_normalization=n) for n in ("global", "per_source")
    )
    assert torch.allclose(one.weigh(seen), other.weigh(seen), atol=1e-12)


def test_excess_of_the_means():
    """Clipped after averaging: what tokens and samples exceed by is set against what they save."""
    mixer = DoReMiProxy(sources=["a", "b"], eta=0.1, smoothing=0.0, clip_excess_per="source")
    seen = signals([9.0, 9.0, 9.0], [0, 0, 1], losses=[3.0, 4.0, 1.0], reference=[3.5, 3.0, 2.0])
    mixer.weigh(seen)
    assert mixer.excess_S.tolist() == pytest.approx([0.25, 0.0])
    raised = [math.exp(0.025), 1.0]
    assert mixer.weight_S.tolist() == pytest.approx([x / sum(raised) for x in raised])


def test_state_goes_on_where_it_stopped():
    rng = np.random.default_rng(1)
    steps = [signals(rng.random(5).tolist(), rng.integers(0, 4, 5).tolist(), n) for n in range(130)]
    steps[77] = signals(rng.random(5).tolist(), [0, 0, 1, 1, 2], 77)  # d is as it was before
    whole = DoReMiProxy(sources=NAMES, eta=0.01)
    for n, seen in enumerate(steps):
        if n == 77:
            state = copy.deepcopy(whole.state_dict())
        weight_B = whole.weigh(seen)
    resumed = DoReMiProxy(eta=0.01)
    resumed.load_state_dict(state)
    for seen in steps[77:]:
        again_B = resumed.weigh(seen)
    assert torch.equal(again_B, weight_B)
    one, other = whole.state_dict(), resumed.state_dict()
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert (
            torch.equal(other[name], value)
            if isinstance(value, torch.Tensor)
            else (other[name] == value)
        ), name


def test_losses_that_are_no_numbers_change_nothing():
    mixer = DoReMiProxy(sources=NAMES)
    mixer.weigh(signals([0.2, 0.4], [0, 1]))
    before = mixer.weight_S, mixer.excess_S
    weight_B = mixer.weigh(signals([float("inf"), 1.0], [0, 1]))
    assert weight_B.tolist() == [0.5, 0.5]
    assert torch.equal(mixer.weight_S, before[0])
    assert torch.equal(mixer.excess_S, before[1])


def test_plan_and_what_is_missing():
    mixer = DoReMiProxy(sampling="natural")
    plan = mixer.plan(Facts({"x": 30, "y": 10}))
    assert plan.weights == {"x": 0.75, "y": 0.25}
    assert mixer.state_dict()["sources"] == ["x", "y"]
    assert DoReMiProxy().plan(Facts({"x": 30, "y": 10})).weights == {"x": 0.5, "y": 0.5}
    seen = signals([0.1], [0])
    with pytest.raises(ConfigError, match=r"Signals\.vocab_size"):
        DoReMiProxy(sources=NAMES).weigh(replace(seen, vocab_size=None))
    with pytest.raises(ConfigError, match="excess_loss_B"):
        DoReMiProxy(sources=NAMES).weigh(replace(seen, excess_loss_B=None))
    with pytest.raises(ConfigError, match="sources' sizes"):
        DoReMiProxy(sources=NAMES, sampling="natural").weigh(seen)
    by_source = {"sampling": "natural", "loss_normalization": "per_source"}
    with pytest.raises(ConfigError, match="sources' sizes"):  # it could not start from them
        DoReMiProxy(sources=NAMES, **by_source).weigh(seen)
    DoReMiProxy(sources=NAMES, initial_weights="uniform", **by_source).weigh(seen)
    with pytest.raises(ConfigError, match=r"mixer.loss_normalization"):
        DoReMiProxy(loss_normalization="token")
