"""Choice by gradients: estimates against loops over pairs, planted gradients with a known answer.

Shapes: as in the mixer.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.data.sampler import Sampler
from dograph.errors import ConfigError
from dograph.mixers.registry import build_mixer
from dograph.mixers.toward import FOLDS, Toward, matched, onto_mixtures
from dograph.testing import TinyLab, check_mixer
from dograph.train.assembly import open_shape
from dograph.train.forecast import count_flops, extra_work, flops_of_batch
from dograph.types import Signals
from tiny_steps import open_steps


class MadeUp(TinyLab):
    """Three sources of equal size to draw, and a trusted one; no scores."""

    budget = 1_000_000

    def __init__(self, **tokens):
        self.tokens = self.strata = tokens or dict.fromkeys("abc", 1_000_000) | {"t": 50_000}
        self.scores = {}


def run(mean_SK, noise_S, *, steps, batch=32, lab=None, seed=0, **options):
    """A run whose samples are normal around the means of their strata."""
    rng, lab = np.random.default_rng(seed), lab or MadeUp()
    mixer = Toward(targets=["t"], **options)
    mixture = mixer.plan(lab)
    for step in range(steps):
        share_S = np.array([mixture.weights[name] for name in lab.strata])
        stratum_B = rng.choice(len(share_S), batch, p=share_S)
        noise_BK = rng.normal(size=(batch, mean_SK.shape[1])) * noise_S[stratum_B, None]
        signals = Signals(
            step=step,
            num_samples=batch,
            stratum_B=torch.from_numpy(stratum_B),
            sketch_BK=torch.from_numpy(mean_SK[stratum_B] + noise_BK).float(),
        )
        mixture = mixer.remix(signals) or mixture
    return mixer


@pytest.mark.parametrize(
    "options",
    [
        {"targets": ["c"]},
        {"targets": ["c"], "remix_every": 4, "natural": 0.0},
        {"targets": ["b", "c"], "remix_every": 8, "memory": 20.0},
    ],
    ids=str,
)
def test_contract(options):
    check_mixer(build_mixer("toward", options))


def problem(seed, number=9):
    """Gradients around a target, and bounds."""
    rng = np.random.default_rng(seed)
    mean_SK = rng.normal(size=(number, 6)) * rng.uniform(0.1, 2, size=(number, 1))
    natural_S = rng.dirichlet(np.ones(number))
    low_S, high_S = 0.1 * natural_S, np.maximum(0.1 * natural_S, rng.uniform(0.1, 0.6, number))
    return mean_SK @ mean_SK.T, mean_SK @ rng.normal(size=6), low_S, high_S


@pytest.mark.parametrize("seed", range(12))
def test_matched_against_slsqp_and_kkt(seed):
    gram_SS, aligned_S, low_S, high_S = problem(seed)

    def value(q):
        return q @ gram_SS @ q - 2 * q @ aligned_S

    share_S = matched(gram_SS, aligned_S, low_S, high_S)
    assert share_S.sum() == pytest.approx(1, abs=1e-9)
    assert (share_S >= low_S - 1e-12).all()
    assert (share_S <= high_S + 1e-12).all()
    found = minimize(
        value,
        share_S * 0 + 1 / len(share_S),
        jac=lambda q: 2 * (gram_SS @ q - aligned_S),
        bounds=list(zip(low_S, high_S, strict=True)),
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: q * 0 + 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    assert value(share_S) <= found.fun + 1e-9
    # between its bounds an entry has the gradient of all others; at one it only pushes outwards
    slope_S = gram_SS @ share_S - aligned_S
    inside_S = (share_S > low_S + 1e-6) & (share_S < high_S - 1e-6)
    level = slope_S[inside_S].mean()
    assert slope_S[inside_S] == pytest.approx(np.full(inside_S.sum(), level), abs=1e-5)
    assert (slope_S[share_S <= low_S + 1e-9] >= level - 1e-5).all()
    assert (slope_S[share_S >= high_S - 1e-9] <= level + 1e-5).all()


def test_matched_in_closed_form():
    """Independent noise alone: q = n where t is natural text, and equal shares where it is 0."""
    natural_S, one_S = np.array([0.5, 0.3, 0.2]), np.ones(3)
    noise_SS = np.diag([1.0, 4.0, 0.5])
    found_S = matched(noise_SS, noise_SS @ natural_S, 0 * one_S, one_S)
    assert found_S == pytest.approx(natural_S, abs=1e-6)
    inverse_S = np.array([1, 0.25, 2])
    assert matched(noise_SS, 0 * one_S, 0 * one_S, one_S) == pytest.approx(
        inverse_S / inverse_S.sum(), abs=1e-6
    )
    assert matched(0 * noise_SS, 0 * one_S, natural_S, natural_S) == pytest.approx(natural_S)


def test_the_nearest_mixture():
    rng = np.random.default_rng(1)
    for _ in range(20):
        _, value_S, low_S, high_S = problem(int(rng.integers(1000)))
        near_S = onto_mixtures(value_S, low_S, high_S)
        assert near_S.sum() == pytest.approx(1)
        shifted_S = value_S - near_S
        free_S = (near_S > low_S + 1e-9) & (near_S < high_S - 1e-9)
        assert free_S.any()
        assert np.ptp(shifted_S[free_S]) < 1e-9
        assert (shifted_S[near_S <= low_S] <= shifted_S[free_S][0] + 1e-9).all()
        assert (shifted_S[near_S >= high_S] >= shifted_S[free_S][0] - 1e-9).all()


def test_a_source_with_the_gradient_of_the_target_is_chosen():
    axes_SK = 3 * np.eye(8)[[0, 1, 2, 0]]  # a is like t, b and c are orthogonal to it
    mixer = run(axes_SK, np.ones(4), steps=200, natural=0.0)
    share_S = mixer.weight_S / mixer.weight_S[:3].sum()
    assert share_S[:3].tolist() == pytest.approx([1 - 0.2 / 3, 0.1 / 3, 0.1 / 3], abs=0.02)
    assert mixer.weight_S[3].item() == pytest.approx(48 / 40 / 32)
    help_S, low_S, high_S = mixer.help_3S
    assert help_S.tolist() == pytest.approx([1, 0, 0, 1], abs=0.15)
    assert min(low_S[[0, 3]]) > 0.9
    assert max(low_S[[1, 2]]) < 0.1
    report = mixer.report()
    assert float(report["weights/a/now"]) == float(mixer.weight_S[0])
    assert float(report["weights/b/help_high"]) == float(high_S[1])


def test_a_target_between_two_sources_gets_both():
    axes_SK = np.array([[3.0, 0, 0], [0, 3, 0], [0, 0, 3], [1, 2, 0]])
    mixer = run(axes_SK, np.full(4, 0.5), steps=400, natural=0.0, min_fraction=0.0)
    share_S = mixer.weight_S[:3] / mixer.weight_S[:3].sum()
    assert share_S.tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=0.05)


def test_noise_alone_moves_no_share():
    """One true gradient and three kinds of noise: with natural text as the target, shares stay."""
    for seed in range(4):
        noise_S = np.array([0.5, 2.0, 1.0, 1.0])
        mixer = run(np.ones((4, 16)), noise_S, steps=160, seed=seed, natural=1.0)
        share_S = mixer.weight_S[:3] / mixer.weight_S[:3].sum()
        assert share_S.tolist() == pytest.approx([1 / 3] * 3, abs=1e-6)


def test_help_and_its_interval_by_loops():
    mixer = run(np.eye(6)[[0, 1, 2, 0]], np.ones(4), steps=120, remix_every=40)
    count_FS, sum_FSK = mixer.count_FS.numpy(), mixer.sum_FSK.double().numpy()

    def helped(folds):
        count_S, sum_SK = count_FS[folds].sum(axis=0), sum_FSK[folds].sum(axis=0)
        mean_SK = sum_SK / count_S[:, None]
        return mean_SK @ mean_SK[3] / (mean_SK[3] @ mean_SK[3])

    every = list(range(FOLDS))
    left = np.array([helped([g for g in every if g != f]) for f in every])
    error_S = np.sqrt((FOLDS - 1) / FOLDS * ((left - left.mean(axis=0)) ** 2).sum(axis=0))
    reach_S = stats.t.ppf(0.975, FOLDS - 1) * error_S
    help_S, low_S, high_S = mixer.help_3S.numpy()
    assert help_S == pytest.approx(helped(every))
    assert low_S == pytest.approx(help_S - reach_S)
    assert high_S == pytest.approx(help_S + reach_S)


def test_intervals_cover_true_help():
    means_SK = np.zeros((4, 8))
    means_SK[[0, 1, 3], [0, 0, 0]] = [2.0, -2.0, 2.0]
    covered = []
    for seed in range(40):
        mixer = run(means_SK, np.ones(4), steps=120, seed=seed, min_fraction=0.6)
        _, low_S, high_S = mixer.help_3S.numpy()
        covered.append((low_S <= [1, -1, 0, 1]) & (high_S >= [1, -1, 0, 1]))
    assert 0.88 < np.mean(np.array(covered)[:, :3]) <= 1


def test_older_samples_count_less():
    mixer = Toward(targets=["t"], memory=20.0)
    mixer.plan(MadeUp())
    sums, counts = np.zeros((4, 2)), np.zeros(4)
    rng = np.random.default_rng(0)
    for step in range(50):
        stratum_B, sketch_BK = rng.integers(0, 4, 5), rng.normal(size=(5, 2))
        if step == 30:
            sketch_BK[0] = np.nan  # nothing is known of this batch
        seen = Signals(
            step=step,
            num_samples=5,
            stratum_B=torch.from_numpy(stratum_B),
            sketch_BK=torch.from_numpy(sketch_BK).float(),
        )
        mixer.remix(seen)
    rng = np.random.default_rng(0)
    last_F = {step % FOLDS: step for step in range(1, 51)}
    for step in range(50):
        stratum_B, sketch_BK = rng.integers(0, 4, 5), rng.normal(size=(5, 2))
        weight = np.exp((step + 1 - last_F[(step + 1) % FOLDS]) / 20)
        if step != 30:
            np.add.at(sums, stratum_B, weight * sketch_BK)
        np.add.at(counts, stratum_B, weight * (step != 30))
    assert mixer.count_FS.sum(dim=0).tolist() == pytest.approx(counts.tolist())
    assert mixer.sum_FSK.sum(dim=0).numpy() == pytest.approx(sums, abs=1e-4)


def test_small_shares_are_drawn_in_the_long_run(tmp_path):
    """40 steps of 4 samples: most strata have less than a sample in a round."""
    corpus = Corpus(write_corpus(tmp_path / "corpus", strata=8))
    sampler = Sampler(corpus.train, seq_len=16, batch_size=4, seed=0)
    lab = MadeUp()
    lab.tokens, lab.budget = corpus.tokens_by_source(), 400 * 4 * 16
    lab.strata = {s.entry.stratum: s.entry.tokens for s in corpus.train}
    mixer = Toward(targets=["gamma"], remix_every=8, min_fraction=0.1)
    sampler.remix(0, mixer.plan(lab), "plan")
    wanted_S = np.zeros(24)
    for step in range(400):
        wanted_S += 4 * mixer.weight_S.numpy()
        stratum_B = torch.from_numpy(sampler.draw(step).stratum_B)
        none = torch.zeros((4, 3))
        seen = Signals(step=step, num_samples=4, stratum_B=stratum_B, sketch_BK=none)
        if (mixture := mixer.remix(seen)) is not None:
            sampler.remix(step + 1, mixture, "toward")
    assert np.abs(sampler.drawn(400) - wanted_S).max() < 2
    assert sampler.by_source(sampler.drawn(400))["gamma"] == pytest.approx(200, abs=5)  # an eighth


def test_targets_have_no_part_in_updates(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    steps = open_steps(corpus, "train.batch_size=16", mixer=Toward(targets=["beta"]))
    mixer, sampler = steps.step.mixer, steps.loader.sampler
    first = steps.step(steps.loader.load(0), 0)
    assert set(first.weight_B.tolist()) == {1 / 16}  # none is drawn in the first step
    sampler.remix(1, mixer.remix(first.signals), "toward")
    for step in range(1, 9):
        record = steps.step(steps.loader.load(step, ahead=False), step)
        target_B = record.source_B == 1
        assert (record.weight_B[target_B] == 0).all()
        learns_B = record.weight_B[~target_B]
        assert torch.allclose(learns_B, torch.full_like(learns_B, 1 / len(learns_B)))
    assert sampler.drawn(9)[1] == pytest.approx(8 * 1.2, abs=1)  # 48 in 40 steps
    steps.loader.close()
    alone = Signals(step=0, num_samples=2, stratum_B=torch.tensor([1, 1]))
    assert mixer.weigh(alone).tolist() == [0.5, 0.5]


def test_bounds():
    lab = MadeUp(a=1_000_000, b=2_000, t=5_000)
    mixer = run(3 * np.eye(4)[[0, 1, 1]], np.ones(3), steps=200, lab=lab, natural=0.0)
    most = (1 - 1.2 / 32) * 5 * 2_000 / 1_000_000  # five epochs
    assert float(mixer.weight_S[1]) == pytest.approx(most)
    mixer = run(np.array([[3.0, 0], [-3, 0], [4, 0]]), np.ones(3), steps=200, lab=lab, natural=0.0)
    assert float(mixer.weight_S[1]) == pytest.approx((1 - 1.2 / 32) * 0.1 * 2 / 1002)
    unseen = Toward(targets=["t"])
    unseen.plan(lab)
    none = {"stratum_B": torch.tensor([0, 2]), "sketch_BK": torch.ones((2, 4))}
    for step in range(1, 40):
        unseen.remix(Signals(step=step, num_samples=2, **none))
    assert float(unseen.weight_S[1]) == pytest.approx(0.875 * 0.1 * 2 / 1002)


def test_the_price_is_counted_and_no_second_sweep_is_made(tmp_path):
    corpus = Corpus(write_corpus(tmp_path / "corpus"))
    settings = [f"data.corpus={corpus.directory}", "data.seq_len=16", "model.preset=tiny"]
    settings += ["mixer.name=toward", "mixer.targets=[beta]", "train.batch_size=8"]
    for more in ([], ["train.micro_batch_size=2"]):
        config = resolve_config(None, settings + more)
        model = open_shape(config, corpus)
        plain, work = count_flops(model, 8, 16).step, extra_work(model, config, 8, frozenset())
        assert flops_of_batch(config, model, 8) == plain + sum(piece.flops for piece in work)
        assert sum(piece.flops for piece in work) > 0
        assert "forward again" not in [piece.what for piece in work]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "mixer.targets=None must name sources with training text.*dograph data prepare"),
        ({"targets": ["x"]}, 'mixer.targets names "x", which is not a source'),
        ({"targets": ["a", "b", "c"]}, "some to train on"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigError, match=message):
        Toward(**options).plan(TinyLab(["a", "b", "c"]))


def test_plan():
    mixture = Toward(targets=["d"]).plan(TinyLab(["a", "b", "c", "d"]))
    expected = {"a/0": 1 / 12, "a/1": 1 / 12, "b": 1 / 3, "c": 0.5, "d": 0}
    assert mixture.weights == pytest.approx(expected)


def test_one_projection():
    mixer = Toward(targets=["t"])
    assert mixer.refresh(None) == "never"
    mixer.plan(MadeUp())
    seen = Signals(0, 1, stratum_B=torch.tensor([0]), sketch_BK=torch.ones((1, 4)))
    mixer.remix(seen)
    with pytest.raises(ConfigError, match="a new projection in toward"):
        mixer.remix(replace(seen, step=1, projection=1))
    for options in ({"remix_every": 0}, {"natural": 1.2}, {"sources": ["a"]}, {"targets": "t"}):
        with pytest.raises(ConfigError, match=f"mixer.{next(iter(options))}"):
            Toward(**options)
