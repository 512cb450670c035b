"""Micro-batches whose weights depend on one another, three ways, against one big batch.

    two_sweeps   a sweep that only looks, then one that learns
    keep         every micro-batch's halves wait for the weights
    lagged       each micro-batch is weighed by the domains as they were before the step

Dropout is drawn from (seed, step, rank, micro-batch), so only equal splits can be compared there.

Shapes: B samples of the step, K sketch, M domains.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.sketch.gradients import unwrapped
from several_ranks import on_ranks
from tiny_steps import (
    ALONE,
    PAPER,
    PERIOD,
    STREAM,
    assert_same_gradients,
    early_domains,
    open_steps,
    relative,
    take_steps,
)

MODES = ("full", "twopass", "exact", "topdown", "head")
KEPT = ("full", "exact", "topdown")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module", autouse=True)
def domains_soon():
    with early_domains():
        yield


def settings(mode, accumulation, *others, micro=3):
    split = (f"train.micro_batch_size={micro}", f"sketch.accumulation={accumulation}")
    return (f"sketch.mode={mode}", *split, *others)


def assert_same_steps(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert relative(one.loss_B, other.loss_B) < 1e-6
        assert relative(one.sketch_BK, other.sketch_BK) < 1e-6
        assert relative(one.weight_B, other.weight_B) < 1e-6
        assert_same_gradients(one.gradients, other.gradients)
        assert other.weight_B.max() - other.weight_B.min() > 1e-5  # or nothing is weighed


@pytest.mark.parametrize(("mode", "scope"), [*((mode, PAPER) for mode in MODES), ("full", STREAM)])
def test_exact_ways_equal_one_big_batch(corpus, mode, scope):
    runs = {"big": (f"sketch.mode={mode}", *scope), "A": settings(mode, "two_sweeps", *scope)}
    if mode in KEPT:
        runs["B"] = settings(mode, "keep", *scope)
    taken = take_steps(ALONE, corpus, runs)
    for way in runs:
        assert_same_steps(taken[way], taken["big"])


@pytest.mark.parametrize("mode", KEPT)
def test_both_exact_ways_drop_the_same(corpus, mode):
    dropping = (*PAPER, "model.dropout=0.3")
    runs = {
        "A": settings(mode, "two_sweeps", *dropping),
        "B": settings(mode, "keep", *dropping),
        "none": settings(mode, "keep", *PAPER),
    }
    taken = take_steps(ALONE, corpus, runs)
    assert_same_steps(taken["A"], taken["B"])
    assert relative(taken["B"][0].loss_B, taken["none"][0].loss_B) > 1e-3  # dropout was on


def test_the_first_of_two_sweeps_holds_no_activations(corpus):
    for mode in MODES:
        steps = open_steps(corpus, *settings(mode, "two_sweeps", *PAPER))
        held, signals = [], steps.step.signals

        def watching(results, *given, held=held, signals=signals):
            held.extend(results)
            return signals(results, *given)

        steps.step.signals = watching
        steps.take()
        assert [len(result.loss_B) for result in held] == [3, 3, 1]
        assert all(result.pending is None for result in held), mode
        assert not any(result.loss_B.requires_grad for result in held), mode
        assert not any(result.sketch_BK.requires_grad for result in held), mode


def stream_weights(state, sketch_BK, objective_weights):
    """c_i = w_j / (N p_j): p_j the share of domain j so far, j the domain nearest by angle."""
    unit_BK = F.normalize(sketch_BK)
    centre_K = state["scope:sums/centre_K"] / state["scope:sums/centre_count"]
    cosine_BM = F.normalize(unit_BK - centre_K) @ F.normalize(state["scope:sums/direction_MK"]).T
    share_M = state["scope:sums/count_M"] / state["scope:sums/count_M"].sum()
    label_B = cosine_BM.argmax(dim=1)
    return objective_weights[label_B] / (len(sketch_BK) * share_M[label_B])


def epoch_weights(state, sketch_BK, objective_weights):
    """The same with the shares of the last period; domains without samples take nobody."""
    centroid_MK, share_M = state["scope:centroid_MK"], state["scope:domains/share_M"]
    cosine_BM = F.normalize(sketch_BK) @ F.normalize(centroid_MK).T
    label_B = torch.where(share_M > 0, cosine_BM, -2.0).argmax(dim=1)
    return objective_weights[label_B] / (len(sketch_BK) * share_M[label_B])


@pytest.mark.parametrize(
    ("mode", "scope", "formula"),
    [
        ("full", PERIOD, epoch_weights),
        *((mode, STREAM, stream_weights) for mode in ("full", "twopass", "topdown", "head")),
    ],
)
def test_lagged_weights_are_those_of_the_state_before(corpus, mode, scope, formula):
    steps = open_steps(corpus, *settings(mode, "lagged", *scope))
    mixer = steps.step.mixer
    for _ in range(2):  # no domains yet
        assert torch.equal(steps.take().weight_B, torch.full((7,), 1 / 7))
    for _ in range(2):
        before = copy.deepcopy(mixer)
        state = copy.deepcopy(mixer.state_dict())
        taken = steps.take()

        domains = before.scope.assign(taken.sketch_BK, steps.done - 1, 0)
        expected_B = formula(state, taken.sketch_BK, before.objective(domains))
        assert torch.allclose(taken.weight_B, expected_B, rtol=1e-5)
        assert expected_B.max() - expected_B.min() > 1e-5

        model = unwrapped(steps.model)  # and the gradient is that of these weights
        model.zero_grad()
        token_BT = steps.loader.load(steps.done - 1).token_BT
        (expected_B * model(token_BT)).sum().backward()
        plain = {name: p.grad for name, p in model.named_parameters()}
        assert_same_gradients(taken.gradients, plain)
        model.zero_grad()


@pytest.mark.parametrize("scope", [STREAM, PERIOD], ids=["stream", "period"])
def test_a_lagged_step_leaves_the_state_of_the_whole_batch(corpus, scope):
    steps = open_steps(corpus, *settings("full", "lagged", *scope))
    mixer = steps.step.mixer
    for _ in range(4):
        before = copy.deepcopy(mixer)
        record = steps.step(steps.loader.load(steps.done), steps.done)
        steps.done += 1
        before.weigh(record.signals)
        got, expected = mixer.state_dict(), before.state_dict()
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            same = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
            assert same(got[name], value), name


def test_lagged_weights_keep_their_effective_floor_in_the_mean(corpus):
    """c_i = (1 + t (w_j / p_j - 1)) / N, with sum_j p_j (1 + t (w_j / p_j - 1))^2 = 1 / floor."""
    floor = 0.999999
    free, bound = (
        open_steps(
            corpus, *settings("full", "lagged", *STREAM, f"mixer.min_effective_fraction={value}")
        )
        for value in ("null", floor)
    )
    for _ in range(3):
        one, other = free.take(), bound.take()
    apart_B = 7 * one.weight_B.double() - 1
    pull = (7 * other.weight_B.double() - 1) / apart_B
    assert pull.max() - pull.min() < 1e-3 * pull.max()
    assert pull.max() < 0.9
    domains = bound.step.mixer.domains  # as they were before the last step
    share_M = domains.share_M.double() / domains.share_M.double().sum()
    times_M = bound.step.mixer.weight_M.double() / share_M
    effective = 1 / float((share_M * (1 + pull.mean() * (times_M - 1)).square()).sum())
    assert effective == pytest.approx(floor, abs=1e-8)


@pytest.mark.parametrize(
    "option", ["mixer.apply_weights_to=sampling", "mixer.min_effective_fraction=1"]
)
def test_lagged_weights_heed_options_that_make_them_equal(corpus, option):
    steps = open_steps(corpus, *settings("full", "lagged", *STREAM, option))
    for _ in range(4):
        assert torch.allclose(steps.take().weight_B, torch.full((7,), 1 / 7))


def test_lagged_needs_domains_that_last(corpus):
    for scope in (
        PAPER,
        (*PAPER, "mixer.warmup_ratio=0.5"),
    ):  # before training, not in the middle of it
        with pytest.raises(ConfigError) as caught:
            open_steps(corpus, *settings("full", "lagged", *scope))
        for part in ("sketch.accumulation=lagged", "mixer.scope=batch", "stream", "two_sweeps"):
            assert part in str(caught.value)


def test_lagged_cannot_keep_the_shares_of_sources(corpus):
    with pytest.raises(ConfigError, match=r"mixer.keep_source_shares=true.*two_sweeps"):
        open_steps(corpus, *settings("full", "lagged", *STREAM, "mixer.keep_source_shares=true"))


def test_lagged_needs_a_mixer_that_knows_domains(corpus):
    class BySketch(Mixer):
        needs = frozenset({"sketch"})

    with pytest.raises(ConfigError, match=r"accumulation=lagged with mixer\.name"):
        open_steps(corpus, *settings("full", "lagged"), mixer=BySketch())


@pytest.mark.parametrize("mode", ["twopass", "head"])
def test_graphs_of_every_micro_batch_are_not_kept(mode):
    with pytest.raises(ConfigError, match=rf"accumulation=keep .* mode {mode}; use two_sweeps"):
        resolve_config(None, [f"sketch.mode={mode}", "sketch.accumulation=keep"])


@pytest.mark.slow
def test_two_ranks_that_make_different_numbers_of_micro_batches(corpus):
    """Nine samples: five on the first rank, in three micro-batches, and four in two."""
    nine = ("train.batch_size=9",)
    split = {
        "A full": settings("full", "two_sweeps", *PAPER, *nine, micro=2),
        "A head": settings("head", "two_sweeps", *PAPER, *nine, micro=2),
        "B topdown": settings("topdown", "keep", *PAPER, *nine, micro=2),
        "D twopass": settings("twopass", "lagged", *STREAM, *nine, micro=2),
    }
    whole = {
        # Lagged weights are not those of a big batch: one process splits as well.
        name: run if name.startswith("D") else (run[0], *PAPER, *nine)
        for name, run in split.items()
    }
    alone = take_steps(ALONE, corpus, whole)
    ranks = on_ranks(2, take_steps, corpus, split)
    for name, expected in alone.items():
        for rank in ranks:
            assert_same_steps(rank[name], expected)
            for i in range(2):
                assert torch.equal(rank[name][i].weight_B, ranks[0][name][i].weight_B)
