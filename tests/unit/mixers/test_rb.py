"""R&B against its rule written out, and in steps of a real model.

Shapes: B samples, K sketch, S sources.
"""

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from corpora import write_corpus
from dograph.errors import ConfigError
from dograph.mixers.rb import RB, balanced
from dograph.mixers.registry import build_mixer
from dograph.testing import TinyLab, check_mixer
from dograph.types import Signals
from tiny_steps import open_steps, relative

NAMES = ["a", "b", "c"]
GRAM_SS = torch.tensor([[4, 1, 0], [1, 2, 0.5], [0, 0.5, 1]], dtype=torch.float64)
ROUNDS = [
    [0.423609, 0.333667, 0.242723],
    [0.450285, 0.320437, 0.229278],
    [0.457359, 0.315730, 0.226911],
]
EQUAL_S = torch.full((3,), 1 / 3, dtype=torch.float64)


def signals(rows, sources, step=0):
    sketch_BK = torch.as_tensor(np.array(rows), dtype=torch.float64)
    source_B = torch.as_tensor(np.array(sources))
    return Signals(step=step, num_samples=len(rows), sketch_BK=sketch_BK, source_B=source_B)


@pytest.mark.parametrize(
    "options", [{}, {"remix_every": 3}, {"remix_every": 3, "groups": "strata"}], ids=str
)
def test_contract(options):
    check_mixer(build_mixer("rb", options))


def test_vectors():
    share_S = EQUAL_S
    for expected in ROUNDS:
        share_S = balanced(GRAM_SS, share_S, 1.0)
        assert share_S.tolist() == pytest.approx(expected, abs=1e-6)


def test_vectors_from_sketches():
    """Two equal samples of a source: the Gram between samples is that of the means."""
    root_SK = torch.linalg.cholesky(GRAM_SS).numpy()
    mixer = RB(sources=NAMES, remix_every=1)
    for step, expected in enumerate(ROUNDS):
        seen = signals(root_SK.repeat(2, axis=0), [0, 0, 1, 1, 2, 2], step)
        assert mixer.weigh(seen).tolist() == pytest.approx([1 / 6] * 6)
        assert list(mixer.remix(seen).weights.values()) == pytest.approx(expected, abs=1e-6)


def test_limits_of_the_rule():
    identity_SS = torch.eye(3, dtype=torch.float64)
    assert torch.allclose(balanced(identity_SS, EQUAL_S, 5.0), EQUAL_S)
    share_S = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    once_S = balanced(GRAM_SS, share_S, 2.0)
    for times in (1e-150, 1e-9, 1e9):
        assert torch.allclose(balanced(times * GRAM_SS, share_S, 2.0), once_S)
    order_S = torch.tensor([2, 0, 1])
    moved_S = balanced(GRAM_SS[order_S][:, order_S], share_S[order_S], 2.0)
    assert torch.allclose(moved_S, once_S[order_S])
    assert torch.allclose(balanced(GRAM_SS, share_S, 0.0), EQUAL_S)
    assert torch.allclose(balanced(GRAM_SS, share_S, 1e4), torch.tensor([1.0, 0, 0]).double())
    assert torch.allclose(balanced(0 * GRAM_SS, share_S, 1.0), EQUAL_S)


def by_hand(steps, every, strength):
    """Shares after every round, from lists of samples and the products of all their pairs."""
    held, p, path = [[], [], []], np.full(3, 1 / 3), []
    for n, (rows, source_B) in enumerate(steps):
        for row, source in zip(rows, source_B, strict=True):
            held[source].append(row)
        if (n + 1) % every:
            continue
        gram = np.zeros((3, 3))
        for i in range(3):
            for j in range(3):
                pairs = [
                    x @ y
                    for a, x in enumerate(held[i])
                    for b, y in enumerate(held[j])
                    if i != j or a != b
                ]
                gram[i, j] = np.mean(pairs) if pairs else 0
        aligned = gram @ p
        raised = np.exp(strength * aligned / np.linalg.norm(aligned))
        known = np.array([len(own) > 1 for own in held])
        p = np.where(known, raised / raised[known].sum() * p[known].sum(), p)
        held = [[] if many else own for own, many in zip(held, known, strict=True)]
        path.append(p)
    return path


def test_rounds_by_hand():
    """Source c is rare: in some rounds it has one sample or none, and keeps its share."""
    rng = np.random.default_rng(0)
    steps = [
        (rng.normal(size=(4, 6)) + 0.3, rng.choice(3, 4, p=[0.6, 0.3, 0.1])) for _ in range(40)
    ]
    mixer, path = RB(sources=NAMES, remix_every=3, strength=1.5), []
    for n, (rows, source_B) in enumerate(steps):
        seen = signals(rows, source_B, n)
        mixer.weigh(seen)
        if (mixture := mixer.remix(seen)) is not None:
            path.append(list(mixture.weights.values()))
    expected = by_hand(steps, 3, 1.5)
    assert len(path) == 13
    assert np.array(path) == pytest.approx(np.array(expected), rel=1e-9)
    held = [np.allclose(a[2], b[2]) for a, b in pairwise(expected)]
    assert 0 < sum(held) < 12
    report = mixer.report()
    assert [float(report[f"weights/{name}/now"]) for name in NAMES] == pytest.approx(path[-1])


def test_noise_and_rareness_alone_move_no_share():
    """One true gradient; the noisy, rare source would be the best aligned by the mean's square."""
    rng, shares, biased = np.random.default_rng(1), [], []
    noise, number_S = np.array([1.0, 1.0, 4.0]), [16, 16, 4]
    source_B = np.repeat(np.arange(3), number_S)
    for _ in range(60):
        rows = np.ones(64) + rng.normal(size=(36, 64)) * noise[source_B, None]
        mixer, seen = RB(sources=NAMES, remix_every=1), signals(rows / 8, source_B)
        mixer.weigh(seen)
        shares.append(list(mixer.remix(seen).weights.values()))
        mean_SK = torch.tensor(np.stack([rows[source_B == s].mean(axis=0) for s in range(3)]))
        biased.append(balanced(mean_SK @ mean_SK.mT, EQUAL_S, 1.0).numpy())
    error_S = np.std(shares, axis=0) / 60**0.5
    assert (np.abs(np.mean(shares, axis=0) - 1 / 3) < 4 * error_S + 0.005).all()
    assert np.mean(biased, axis=0)[2] > 0.42


def test_state_goes_on_within_a_round():
    rng = np.random.default_rng(2)
    steps = [signals(rng.normal(size=(6, 4)), rng.integers(0, 3, 6), n) for n in range(20)]
    whole = RB(sources=NAMES, remix_every=4)
    empty = RB()
    empty.load_state_dict(copy.deepcopy(whole.state_dict()))  # before the first step
    assert empty.count_S is None
    for n, seen in enumerate(steps):
        if n == 10:
            state = copy.deepcopy(whole.state_dict())
        whole.weigh(seen)
        last = whole.remix(seen)
    resumed = RB(remix_every=4)
    resumed.load_state_dict(state)
    for seen in steps[10:]:
        resumed.weigh(seen)
        again = resumed.remix(seen)
    assert again == last


def test_sketches_that_are_no_numbers_are_left_out():
    rng = np.random.default_rng(3)
    good = [signals(rng.normal(size=(6, 4)), [0, 1, 2, 0, 1, 2], n) for n in (0, 2)]
    bad = signals([[np.nan] * 4, [np.inf] * 4], [0, 1], 1)
    one, other = (RB(sources=NAMES, remix_every=3) for _ in range(2))
    for seen in (good[0], bad, good[1]):
        one.weigh(seen)
    for seen in good:
        other.weigh(seen)
    assert one.remix(good[1]) == other.remix(good[1])


def test_plans_and_refusals():
    lab = TinyLab(NAMES)
    assert RB().plan(lab).weights == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
    strata = RB(groups="strata")
    assert strata.plan(lab).weights == pytest.approx(dict.fromkeys(lab.strata, 1 / 4))
    with pytest.raises(ConfigError, match="RB weighs by stratum_B, which these signals"):
        strata.weigh(signals([[1.0]], [0]))
    assert RB().refresh(None) == "never"
    with pytest.raises(ConfigError, match=r"sketch\.refresh=step with rb: .*=never"):
        RB().refresh("step")
    mixer = RB(sources=NAMES)
    mixer.weigh(signals([[1.0]], [0]))
    with pytest.raises(ConfigError, match="a new projection in rb"):
        mixer.weigh(replace(signals([[1.0]], [0], 1), projection=1))
    for options in ({"strength": -1.0}, {"remix_every": 0}, {"groups": "domains"}):
        with pytest.raises(ConfigError, match=f"mixer.{next(iter(options))}="):
            RB(**options)


def test_strata_are_drawn_by_their_own_shares(tmp_path):
    """Steps of a model; the sampler takes the mixture of six strata, and a batch shows it."""
    corpus = write_corpus(tmp_path / "corpus", strata=2)
    mixer = RB(groups="strata", remix_every=2, strength=40.0)
    steps = open_steps(corpus, "train.batch_size=16", mixer=mixer)
    sampler = steps.loader.sampler
    for step in range(2):
        record = steps.step(steps.loader.load(step), step)
        mixture = mixer.remix(record.signals)
    steps.loader.close()
    assert list(mixture.weights) == mixer.names == sampler.names
    assert mixer.count_S.sum() == 0  # a new round
    sampler.remix(2, mixture, "rb")
    drawn_S = np.bincount(sampler.draw(2).stratum_B, minlength=6)
    assert drawn_S == pytest.approx(16 * mixer.weight_S.numpy(), abs=1)
    assert np.ptp(drawn_S) > 3


def test_micro_batches_lagged_or_not_are_one_batch(tmp_path):
    corpus, states = write_corpus(tmp_path / "corpus"), []
    for more in ([], ["lagged"], ["two_sweeps"]):
        split = [f"sketch.accumulation={name}" for name in more]
        split += ["train.micro_batch_size=3"] if more else []
        steps = open_steps(corpus, "optim.lr=1e-6", *split, mixer=RB())
        for _ in range(2):
            steps.take()
        states.append(steps.step.mixer.state_dict())
        steps.loader.close()
    for state in states[1:]:
        for name in ("counts", "sums", "square_sums"):
            assert relative(state[name], states[0][name]) < 1e-5
