"""ADO: its policy against a vector, its laws against known ones, and what it keeps."""

import math

import numpy as np
import pytest
import torch

from dograph.mixers.ado import MOST_POINTS, policy
from dograph.mixers.registry import build_mixer
from dograph.types import Signals

LAWS = {"a": (3.0, 2.0, 0.3), "b": (2.0, 1.6, 0.15), "c": (4.5, 2.4, 0.5)}  # log b, e, a
BATCH = 16


def seen(step, laws, batch=BATCH):
    """Losses that follow the laws exactly, one sample of each source and more of the last."""
    n = batch * (step + 1)
    losses = [e + math.exp(log_b - a * math.log(n)) for log_b, e, a in laws]
    source = [min(i, len(laws) - 1) for i in range(batch)]
    loss_B = torch.tensor([losses[s] for s in source], dtype=torch.float64)
    return Signals(step=step, num_samples=batch, loss_B=loss_B, source_B=torch.tensor(source))


def run(mixer, laws, steps, first=0):
    for step in range(first, steps):
        mixer.remix(seen(step, laws))
    return mixer


def opened(laws, tokens=None, steps=400, **options):
    sources = dict(zip("abc", tokens, strict=True)) if tokens else list("abc")
    mixer = build_mixer("ado", {"sources": sources, **options})
    mixer.warm_up(steps)
    return mixer


def test_vector():
    double = torch.float64
    law_3S = torch.tensor([[3, 2.5, 3.2], [0, 0, 0], [0.3, 0.04, 0.5]], dtype=double)
    law_3S[1] = torch.tensor([0.7, 0.6, 0.9], dtype=double).exp()
    natural_S = torch.tensor([0.5, 0.3, 0.2], dtype=double)
    drawn_S = torch.tensor([0.4, 0.4, 0.2], dtype=double)
    rho_S = policy(law_3S, 100_000, natural_S, drawn_S)
    assert rho_S.tolist() == pytest.approx([0.440963, 0.533648, 0.025390], abs=1e-6)

    mixer = opened(LAWS, tokens=(50, 30, 20), remix_every=1)  # step 2000, in the mixer
    mixer.law_3S, mixer.mean_S, mixer.drawn_S = law_3S, natural_S, drawn_S
    mixer.samples, mixer.refit_every = 100_000 - 5, 10_000
    seen = Signals(  # the shares of this batch are those that were drawn before
        step=2000,
        num_samples=5,
        loss_B=torch.full((5,), 3.0, dtype=double),
        source_B=torch.tensor([0, 0, 1, 1, 2]),
    )
    mixer.remix(seen)
    assert mixer.weight_S.tolist() == pytest.approx([0.494096, 0.323365, 0.182539], abs=1e-6)
    assert mixer.mean_S.tolist() == pytest.approx([0.499970, 0.300117, 0.199913], abs=1e-6)


def test_averages_of_the_first_steps():
    """h is 0.9 of the old and 0.1 of the new; mean(rho) at step t has 1 / (t + 1) of the new."""
    mixer = opened(LAWS, tokens=(2, 1, 1), remix_every=1)
    mixer.law_3S = torch.tensor(list(LAWS.values()), dtype=torch.float64).T
    natural_S = mean_S = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    drawn_S = natural_S
    for step in range(3):
        mixer.remix(seen(step, LAWS.values()))
        drawn_S = 0.9 * drawn_S + 0.1 * torch.tensor([1, 1, 14]) / BATCH
        rho_S = policy(mixer.law_3S, BATCH * (step + 1), natural_S, drawn_S)
        mean_S = (step * mean_S + rho_S) / (step + 1)
        assert mixer.drawn_S.tolist() == pytest.approx(drawn_S.tolist())
        assert mixer.mean_S.tolist() == pytest.approx(mean_S.tolist())


def test_laws_need_eight_points():
    for points, is_fitted in ((7, False), (8, True)):
        mixer = run(opened(LAWS, refit_every=points, warmup_steps=0), LAWS.values(), points)
        assert (mixer.law_3S is not None) == is_fitted


def test_joined_points_are_means():
    mixer = opened(LAWS)
    for step in range(MOST_POINTS):
        mixer.samples += BATCH
        mixer._add_point(torch.tensor([float(step), 2.0 * step, 3.0], dtype=torch.float64))
    first, second = mixer.point_PR[:2].tolist()
    assert first == pytest.approx([math.log(16 * 32) / 2, 0.5, 1.0, 3.0])
    assert second == pytest.approx([math.log(48 * 64) / 2, 2.5, 5.0, 3.0])


def test_laws_without_noise_are_recovered():
    mixer = run(opened(LAWS, refit_every=100), LAWS.values(), 100)
    assert mixer.law_3S.T.numpy() == pytest.approx(np.array(list(LAWS.values())), abs=1e-6)


def test_laws_are_recovered_from_points_that_were_joined():
    """Also with a curve of many more steps than points: they are means over a few steps."""
    mixer = run(opened(LAWS, steps=3000, refit_every=3000), LAWS.values(), 3000)
    assert mixer.point_steps == 16
    assert len(mixer.point_PR) < MOST_POINTS
    found, true = mixer.law_3S.T.numpy(), np.array(list(LAWS.values()))
    assert found == pytest.approx(true, rel=1e-3)


def test_a_law_steeper_than_the_bound_is_fitted_at_the_bound():
    steep = [(9.0, 2.0, 1.5), *list(LAWS.values())[1:]]
    mixer = run(opened(LAWS, refit_every=100), steep, 100)
    assert mixer.law_3S[2].tolist() == pytest.approx([0.8, 0.15, 0.5], abs=1e-6)


def test_equal_laws_and_equal_shares_stay_equal():
    mixer = opened(LAWS, steps=100, remix_every=1, refit_every=50)
    source_B = torch.arange(15) % 3
    for step in range(100):
        loss_B = torch.full((15,), 2 + (step + 1) ** -0.3, dtype=torch.float64)
        mixture = mixer.remix(Signals(step, 15, loss_B=loss_B, source_B=source_B))
    assert mixer.law_3S is not None
    assert list(mixture.weights.values()) == pytest.approx([1 / 3] * 3, abs=1e-12)


def test_a_source_that_has_stopped_falling_keeps_the_least_share():
    flat = [LAWS["a"], (-60.0, 2.0, 0.3), LAWS["c"]]
    mixer = run(opened(LAWS, tokens=(1, 1, 1), refit_every=90), flat, 100)
    rho_S = policy(mixer.law_3S, mixer.samples, torch.full((3,), 1 / 3), mixer.drawn_S)
    assert float(rho_S[1]) == pytest.approx(0.01 / 1.01, rel=1e-3)
    none = torch.tensor([[-700.0] * 3, [2.0] * 3, [0.3] * 3], dtype=torch.float64)
    rho_S = policy(none, 100, torch.full((3,), 1 / 3, dtype=torch.float64), mixer.drawn_S)
    assert bool(rho_S.isfinite().all())


def test_a_million_steps_keep_a_small_state():
    """Points only: the fits are left out, because the laws are not what is asked here."""
    mixer, loss_S = opened(LAWS, steps=1_000_000), torch.full((3,), 3.0, dtype=torch.float64)
    assert mixer.refit_every == 1000
    mixer.point_steps, mixer.point_PR = 4096, torch.ones(MOST_POINTS - 1, 4, dtype=torch.float64)
    for _ in range(4096):
        mixer.samples += BATCH
        mixer._add_point(loss_S)
    assert (mixer.point_steps, len(mixer.point_PR)) == (8192, MOST_POINTS // 2)
    numbers = sum(v.numel() for v in mixer.state_dict().values() if torch.is_tensor(v))
    assert numbers < 4 * MOST_POINTS + 1000


def test_a_step_waits_for_the_device_only_to_fit_and_to_remix(monkeypatch):
    """A tensor that is read on the host counts; so would `if tensor` and `.item()`."""
    mixer, reads = opened(LAWS, steps=400), []
    for name in ("tolist", "cpu", "item", "__bool__", "__float__", "numpy"):
        before = getattr(torch.Tensor, name)

        def read(self, *args, before=before, **more):
            reads.append(step)
            return before(self, *args, **more)

        monkeypatch.setattr(torch.Tensor, name, read)
    steps = [seen(step, LAWS.values()) for step in range(70)]
    reads.clear()
    for step, signals in enumerate(steps):  # noqa: B007 - `read` notes it
        mixer.remix(signals)
        mixer.report()
    assert set(reads) == {29, 39, 49, 59, 69}
