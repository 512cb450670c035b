"""Accuracies and standard errors from likelihoods whose answer is known beforehand."""

import math

import numpy as np
import pytest
from scipy import stats

from dograph.eval.scores import (
    ItemMean,
    Likelihood,
    TaskScore,
    average,
    log_likelihoods,
    score_task,
)
from dograph.eval.tasks import TASKS, Item


def item(gold, *choices):
    pairs = tuple(("context", f" {choice}") for choice in choices)
    return Item(pairs, gold)


def likelihoods(*nats, greedy=False):
    return [Likelihood(x, greedy) for x in nats]


def scored(task, items, values, truncated=0):
    return score_task(task, items, log_likelihoods(task, items, values), truncated)


def test_the_likeliest_choice_and_the_likeliest_per_character():
    items = [item(0, "ab", "abcd"), item(1, "ab", "abcd"), item(1, "ab", "abcd")]
    found = scored(
        TASKS["piqa"],
        items,
        [*likelihoods(-3, -4), *likelihoods(-3, -4), *likelihoods(-5, -4)],
    )
    # By sum 0, 0, 1; by character -1.5 or -1, so 1 each time.
    assert found.acc.value == pytest.approx(2 / 3)
    assert found.acc_norm.value == pytest.approx(2 / 3)
    assert found.acc == found.acc_norm
    only = scored(TASKS["piqa"], items[1:2], likelihoods(-3, -4))
    assert (only.acc.value, only.acc_norm.value, only.acc.se) == (0, 1, None)


def test_a_tie_goes_to_the_first():
    for gold, right in ((0, 1.0), (1, 0.0)):
        found = scored(TASKS["copa"], [item(gold, "ab", "cd")], likelihoods(-2, -2))
        assert found.acc.value == right
        assert found.acc_norm is None


def test_a_cloze_answer_is_right_where_every_token_was_the_likeliest():
    items = [item(0, "word"), item(0, "other")]
    found = scored(
        TASKS["lambada_openai"],
        items,
        [*likelihoods(-1, greedy=True), *likelihoods(-3)],
        truncated=1,
    )
    assert found.acc.value == 0.5
    assert (found.acc_norm, found.chance, found.truncated) == (None, 0.0, 1)
    assert found.perplexity.value == pytest.approx(math.exp(2))
    assert found.perplexity.se == pytest.approx(math.exp(2) * stats.sem([-1, -3]))


def test_bits_per_byte_are_those_of_the_gold_answer_item_by_item():
    items = [item(1, "a", "größer"), item(0, "abcd", "x")]
    nats = [*likelihoods(-9, -8 * math.log(2)), *likelihoods(-8 * math.log(2), -1)]
    found = scored(TASKS["piqa"], items, nats)
    assert found.bits_per_byte.value == pytest.approx((8 / 8 + 8 / 4) / 2)
    assert found.bits_per_byte.se == pytest.approx(stats.sem([1, 2]))


def test_chance_follows_the_number_of_choices():
    items = [item(0, "a", "b"), item(0, "a", "b", "c", "d")]
    found = scored(TASKS["arc_easy"], items, likelihoods(*range(-6, 0)))
    assert found.chance == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_standard_errors_cover_as_they_should():
    """Of 2000 accuracies over 200 questions, 95% lie within 1.96 standard errors of the truth."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        estimate = ItemMean.of((rng.random(200) < 0.4).astype(float))
        covered += abs(estimate.value - 0.4) <= 1.96 * estimate.se
    assert 0.935 <= covered / 2000 <= 0.965


def score(task, acc, se, norm=None):
    return TaskScore(
        task=task,
        items=10,
        acc=ItemMean(acc, se),
        acc_norm=norm and ItemMean(*norm),
        bits_per_byte=ItemMean(1.0, 0.1),
        perplexity=None,
        chance=0.25,
        truncated=0,
    )


def test_the_average_prefers_normalised_accuracy_and_adds_errors_in_quadrature():
    scores = [score("piqa", 0.9, 0.5, (0.6, 0.03)), score("copa", 0.5, 0.04)]
    found = average(scores)
    assert found.value == pytest.approx(0.55)
    assert found.se == pytest.approx(0.05 / 2)
    assert average([*scores, score("sciq", 0.1, None)]).se is None
