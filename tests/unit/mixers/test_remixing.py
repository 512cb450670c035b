"""Weights realised by sampling: the mixture that follows from domains, and its bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dograph.errors import ConfigError
from dograph.mixers.dograph import DoGraph, DoGraphOptions
from dograph.mixers.remixing import Remixing
from dograph.mixtures.proposals import bounded
from dograph.types import Domains, Mixture
from dograph_batches import batch

TOKENS = {"a": 600, "b": 300, "c": 100}


class Lab:
    tokens = strata = TOKENS
    budget = 1000
    steps = 100


def opened(budget=Lab.budget, **options) -> Remixing:
    lab = Lab()
    lab.budget = budget
    remixing = Remixing(
        DoGraphOptions(
            recipe="safe",
            num_domains=2,
            remix_every=10,
            half_life=1e6,
            **{"apply_weights_to": "sampling", **options},
        )
    )
    remixing.open(lab, Mixture.normalised(TOKENS))
    return remixing


LABEL = torch.tensor([0] * 60 + [1] * 40)
STRATUM = torch.tensor([0] * 45 + [1] * 15 + [1] * 10 + [2] * 30)


def test_strata_are_asked_for_by_the_domains_they_hold():
    remixing = opened(remix_min_fraction=0.0, max_epochs=100.0)
    remixing.add(LABEL, STRATUM)
    mixture = remixing.mixture(9, torch.tensor([0.2, 0.8]))
    # q_a = 0.2 * 45/60, q_b = 0.2 * 15/60 + 0.8 * 10/40, q_c = 0.8 * 30/40
    assert dict(mixture.weights) == pytest.approx({"a": 0.15, "b": 0.25, "c": 0.6}, abs=1e-6)


def test_only_when_due_and_only_where_sampling_realises():
    remixing = opened()
    remixing.add(LABEL, STRATUM)
    assert remixing.mixture(8, torch.tensor([0.5, 0.5])) is None
    assert remixing.mixture(9, None) is None
    assert not opened(apply_weights_to="loss").active


def test_counts_are_moved_to_what_the_new_mixture_should_give():
    """An emphasis that sampling already gives is not asked for again."""
    remixing = opened(remix_min_fraction=0.0, max_epochs=100.0)
    remixing.add(LABEL, STRATUM)
    mixture = remixing.mixture(9, torch.tensor([0.2, 0.8]))
    q = torch.tensor(list(mixture.weights.values()))
    # P(domain 1 | stratum): a 0, b 10/25, c 1
    expected_1 = float(q @ torch.tensor([0.0, 10 / 25, 1.0]))
    count_M = remixing.count_MS.sum(dim=1)
    torch.testing.assert_close(count_M / 100, torch.tensor([1 - expected_1, expected_1]))


def test_objectives_see_the_shares_of_the_first_mixture():
    """Else a weight that grows with a share would feed on what it asked for before."""
    remixing = opened(remix_min_fraction=0.0, max_epochs=100.0)
    remixing.add(LABEL, STRATUM)
    # P(domain 0 | stratum): a 1, b 15/25, c 0; drawn by tokens: 0.6, 0.3, 0.1
    first_0 = 0.6 * 1 + 0.3 * 15 / 25
    expected = torch.tensor([first_0, 1 - first_0])
    seen = _domains(torch.tensor([0.6, 0.4]))
    torch.testing.assert_close(remixing.at_first(seen).share_M, expected)
    for step in (9, 19, 29):  # whatever is drawn meanwhile
        remixing.mixture(step, torch.tensor([0.2, 0.8]))
        torch.testing.assert_close(remixing.at_first(seen).share_M, expected)


def test_equal_weights_leave_the_first_mixture_where_it_was():
    """w_j = the first shares: after any number of remixes the mixture is the first one."""
    remixing = opened(remix_min_fraction=0.0, max_epochs=100.0)
    remixing.add(*_as_drawn(TOKENS))
    domains = _domains(torch.tensor([0.5, 0.5]))
    for step in (9, 19, 29):
        mixture = remixing.mixture(step, remixing.at_first(domains).share_M)
        assert dict(mixture.weights) == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=1e-6)


def test_uniform_at_first():
    lab = Lab()
    lab.strata = {"a/0": 500, "a/1": 100, "b": 300, "c": 100}
    mixer = DoGraph("safe", num_domains=2, sampling="uniform", apply_weights_to="sampling")
    assert dict(mixer.plan(lab).weights) == pytest.approx(dict.fromkeys("abc", 1 / 3))
    first = {"a/0": 5 / 18, "a/1": 1 / 18, "b": 1 / 3, "c": 1 / 3}
    assert mixer.remixing.first == pytest.approx(first)


def test_weighing_without_a_plan_is_refused():
    mixer = DoGraph("safe", num_domains=4, apply_weights_to="sampling", warmup_steps=0)
    for step in range(10):  # until domains are known
        mixer.weigh(batch(step))
    with pytest.raises(ConfigError, match=r"mixer\.plan\(lab\) before the first step"):
        mixer.weigh(batch(10))


def test_floor_and_cap_hold():
    remixing = opened(remix_min_fraction=0.25, max_epochs=2.0)
    remixing.add(LABEL, STRATUM)
    weights = remixing.mixture(9, torch.tensor([0.0, 1.0])).weights
    assert weights["c"] <= 2.0 * 100 / 1000 + 1e-9  # at most twice through 100 of 1000 tokens
    assert weights["a"] >= 0.25 * 0.6 - 1e-9
    assert sum(weights.values()) == pytest.approx(1)


def test_the_cap_goes_by_the_tokens_that_the_run_draws():
    """250 tokens of a corpus of 1000, none more than once: at most 100 / 250 are of c."""
    remixing = opened(budget=250, remix_min_fraction=0.0, max_epochs=1.0)
    remixing.add(LABEL, STRATUM)
    weights = remixing.mixture(9, torch.tensor([0.0, 1.0])).weights
    assert dict(weights) == pytest.approx({"a": 0.0, "b": 0.6, "c": 0.4}, abs=1e-6)


def test_a_stratum_that_nobody_asks_for_keeps_a_part_of_its_first_share():
    remixing = opened(remix_min_fraction=0.25, max_epochs=100.0)
    remixing.add(LABEL, STRATUM)
    weights = remixing.mixture(9, torch.tensor([0.0, 1.0])).weights
    # domain 1 holds b and c, 10 to 30: they share what the floor of a leaves
    expected = {"a": 0.25 * 0.6, "b": 0.85 / 4, "c": 0.85 * 3 / 4}
    assert dict(weights) == pytest.approx(expected, abs=1e-6)


def test_counts_halve_in_a_half_life():
    remixing = Remixing(
        DoGraphOptions(recipe="safe", num_domains=2, apply_weights_to="sampling", half_life=3.0)
    )
    remixing.open(Lab(), Mixture.normalised(TOKENS))
    remixing.add(torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64))
    for left in (8 * 0.5 ** (n / 3) for n in (1, 2, 3, 4, 5, 6)):
        remixing.add(torch.ones(1, dtype=torch.int64), torch.full((1,), 2))
        assert float(remixing.count_MS[0, 0]) == pytest.approx(left, rel=1e-5)


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=6),
    st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
    st.floats(0.05, 5),
)
def test_bounded_shares(share, tokens, epochs):
    share_S = np.array(share) + 1e-6
    natural_S = np.array(tokens[: len(share)])
    natural_S /= natural_S.sum()
    low_S, high_S = 0.25 * natural_S, epochs * natural_S
    result_S = bounded(share_S / share_S.sum(), low_S=low_S, high_S=high_S)
    assert result_S.sum() == pytest.approx(1)
    if epochs >= 1:  # a corpus that can feed the budget
        assert (result_S >= low_S - 1e-6).all()
        assert (result_S <= np.maximum(high_S, low_S) + 1e-6).all()


def test_what_the_caps_leave_goes_to_strata_nobody_asked_for():
    low_S, high_S = np.array([0.0, 0.1, 0.1]), np.array([0.4, 0.5, 0.3])
    for dust in (0.0, 1e-13):  # what decay leaves of a count asks for nothing
        share_S = bounded(np.array([1 - dust, dust, 0.0]), low_S=low_S, high_S=high_S)
        # 0.4 missing, spread over rooms of 0.4 and 0.2
        np.testing.assert_allclose(share_S, [0.4, 0.1 + 0.8 / 3, 0.1 + 0.4 / 3], atol=1e-12)


def test_state():
    remixing, again = opened(), opened()
    remixing.add(LABEL, STRATUM)
    again.load_state_dict(remixing.state_dict())
    w = torch.tensor([0.3, 0.7])
    assert remixing.mixture(9, w) == again.mixture(9, w)


def _as_drawn(tokens):
    """Labels and strata of a batch drawn by tokens; domain 0 holds a and half of b."""
    strata = [s for s, n in enumerate(tokens.values()) for _ in range(n // 10)]
    labels = [0 if s == 0 or (s == 1 and i % 2) else 1 for i, s in enumerate(strata)]
    return torch.tensor(labels), torch.tensor(strata)


def _domains(share_M: torch.Tensor) -> Domains:
    zero = torch.zeros(2)
    return Domains(
        torch.zeros(1, dtype=torch.int64), share_M, torch.eye(2), zero, zero, zero, zero[0]
    )
