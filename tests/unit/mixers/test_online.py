"""What ADO and ODM share: when they change the mixture, and that shares are really drawn."""

import copy

import numpy as np
import pytest
import torch

from dograph.data.sampler import advance
from dograph.mixers.online import ODM
from dograph.mixers.registry import build_mixer
from dograph.testing import TinyLab, check_mixer
from dograph.types import Signals

NAMES = ["a", "b", "c"]
OPTIONS = [
    ("ado", {"refit_every": 12, "remix_every": 2, "warmup_steps": 1}),
    ("odm", {"remix_every": 1, "warmup_steps": 3}),
    ("odm", {"remix_every": 3, "update": "exp3"}),
]


def signals(losses, sources, step=0):
    return Signals(
        step=step,
        num_samples=len(losses),
        loss_B=torch.tensor(losses, dtype=torch.float64),
        source_B=torch.tensor(sources),
    )


def made_up(step, batch=8):
    random = torch.Generator().manual_seed(step)
    losses = 2 + torch.rand(batch, generator=random, dtype=torch.float64)
    return signals(losses.tolist(), torch.randint(3, (batch,), generator=random).tolist(), step)


@pytest.mark.parametrize(("name", "options"), [("ado", {}), ("odm", {}), *OPTIONS])
def test_contract(name, options):
    check_mixer(build_mixer(name, options))
    check_mixer(build_mixer(name, options), sources=["a"])


@pytest.mark.parametrize(("name", "more"), [("ado", {"refit_every": 22}), ("odm", {})])
def test_the_run_is_drawn_by_tokens_until_the_warm_up_is_over(name, more):
    mixer = build_mixer(name, {"remix_every": 1, "warmup_steps": 4, **more})
    assert mixer.plan(TinyLab(NAMES)).weights == {"a": 1 / 6, "b": 2 / 6, "c": 3 / 6}
    given = [mixer.remix(made_up(step)) for step in range(24)]
    assert [step for step, mixture in enumerate(given) if mixture is None] == [0, 1, 2, 3]
    assert mixer.weight_S.tolist() != pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=1e-3)


@pytest.mark.parametrize(
    ("steps", "every"), [(400, 10), (10_000, 10), (60_000, 60), (1_000_000, 1000)]
)
def test_a_run_of_any_length_has_at_most_a_thousand_mixtures(steps, every):
    mixer = ODM(sources=NAMES)
    mixer.warm_up(steps)
    assert mixer.remix_every == every
    assert mixer.warmup_steps == steps // 50


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_resumed_mixer_goes_on_bit_for_bit(name, options):
    whole = build_mixer(name, {"sources": NAMES, **options})
    whole.warm_up(60)
    for step in range(41):
        if step == 19:
            state = copy.deepcopy(whole.state_dict())
        mixture = whole.remix(made_up(step))
    resumed = build_mixer(name, options)
    resumed.load_state_dict(state)
    for step in range(19, 41):
        again = resumed.remix(made_up(step))
    assert again == mixture
    reports = whole.report(), resumed.report()
    assert reports[0].keys() == reports[1].keys()
    assert all(torch.equal(value, reports[1][key]) for key, value in reports[0].items())
    states = whole.state_dict(), resumed.state_dict()
    for key, value in states[0].items():
        same = torch.equal(value, states[1][key]) if torch.is_tensor(value) else None
        assert value == states[1][key] if same is None else same, key


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_the_order_of_the_sources_changes_nothing(name, options):
    order = [2, 0, 1]  # new number of each source
    one = build_mixer(name, {"sources": {"a": 5, "b": 3, "c": 2}, **options})
    other = build_mixer(name, {"sources": {"b": 3, "c": 2, "a": 5}, **options})
    for mixer in (one, other):
        mixer.warm_up(60)
    for step in range(30):
        seen = made_up(step)
        moved = signals(seen.loss_B.tolist(), [order[s] for s in seen.source_B.tolist()], step)
        mixtures = one.remix(seen), other.remix(moved)
        if mixtures[0] is not None:
            assert mixtures[1].weights == pytest.approx(mixtures[0].weights, abs=1e-9)
    assert max(one.weight_S) - min(one.weight_S) > 0.01


@pytest.mark.parametrize("every", [1, 3])
def test_a_source_is_drawn_by_its_share_though_every_mixture_starts_counting_anew(every):
    """Of 8 samples a share of 0.01 is never one; without what is owed the source is lost."""

    class Wanted(ODM):
        def shares(self, signals, loss_S, drawn_S):
            return torch.tensor([0.97, 0.02, 0.01], dtype=torch.float64)

    mixer = Wanted(sources=NAMES, remix_every=every)
    weight_S, since_S, total_S = np.full(3, 1 / 3), np.zeros(3, int), np.zeros(3, int)
    for step in range(1000):
        after_S = advance(since_S, weight_S, 8)
        count_S, since_S = after_S - since_S, after_S
        total_S += count_S
        mixture = mixer.remix(signals([3.0] * 8, np.repeat([0, 1, 2], count_S).tolist(), step))
        if mixture is not None:
            weight_S, since_S = np.array(list(mixture.weights.values())), np.zeros(3, int)
    # the first batch is wanted in equal parts
    assert total_S.tolist() == pytest.approx([7755.0, 162.5, 82.6], abs=1)


def test_what_is_owed_is_drawn_over_all_steps_until_the_next_mixture():
    """Two batches of source a alone: b is owed 4 of the 16 samples that the next two have."""

    class Wanted(ODM):
        def shares(self, signals, loss_S, drawn_S):
            return torch.tensor([0.75, 0.25], dtype=torch.float64)

    mixer = Wanted(sources={"a": 3, "b": 1}, remix_every=2)
    given = [mixer.remix(signals([3.0] * 8, [0] * 8, step)) for step in range(2)]
    assert given[0] is None
    assert given[1].weights == pytest.approx({"a": 0.5, "b": 0.25 + 4 / 16})


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_losses_that_are_no_numbers_change_nothing(name, options):
    mixer = build_mixer(name, {"sources": NAMES, **options})
    for step in range(24):
        mixer.remix(made_up(step))
    before, losses = mixer.weight_S, mixer.loss_S
    mixer.remix(signals([1.0, float("nan"), 2.0], [0, 1, 2], 24))
    assert torch.equal(mixer.weight_S, before)
    assert torch.equal(mixer.loss_S, losses)


def test_a_source_without_training_text_is_never_asked_for():
    mixer = ODM(sources={"a": 5, "b": 0, "c": 3}, remix_every=1)
    given = [mixer.remix(signals([3.0, 2.0], [0, 2], step)) for step in range(50)]
    assert all(mixture.weights["b"] == 0 for mixture in given)
    assert mixer.weight_S[1] == 0
    assert float(mixer.weight_S.sum()) == pytest.approx(1)


def test_an_absent_source_keeps_its_last_loss():
    mixer = build_mixer("ado", {"sources": NAMES})
    mixer.remix(signals([4.0, 2.0], [0, 1], 0))
    assert mixer.loss_S.tolist() == [4.0, 2.0, 3.0]  # never seen: the mean of the batch
    mixer.remix(signals([5.0, 1.0], [2, 1], 1))
    assert mixer.loss_S.tolist() == [4.0, 1.0, 5.0]
