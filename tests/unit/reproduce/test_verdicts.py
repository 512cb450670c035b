"""Verdicts of differences whose answer is known, and figures against scipy."""

import math

import pytest
from scipy import stats

from dograph.reproduce.verdicts import Claim, RunMetric
from dograph.stats import Estimate, Interval


def figure(mean, low=None, high=None, seeds=5):
    interval = None if low is None else Interval(low, high)
    return Estimate(mean, interval, seeds, interval)


@pytest.mark.parametrize(
    ("ours", "sign", "paper", "word", "told"),
    [
        (figure(-1.0, -1.1, -0.9), -1, -1.04, "confirmed", ": confirmed"),
        (figure(-0.5, -0.6, -0.4), -1, -1.04, "sign only", "in sign, not in size"),
        (figure(-0.5, -0.6, -0.4), -1, None, "confirmed", ": confirmed"),
        (figure(0.05, 0.03, 0.07), -1, -1.04, "opposite", "not confirmed, the opposite"),
        (
            figure(-0.1, -0.3, 0.1),
            -1,
            -1.04,
            "unclear",
            "not confirmed, the interval contains zero",
        ),
        (figure(0.0, 0.0, 0.0), -1, None, "unclear", "the interval contains zero"),
        (figure(0.5, 0.4, 0.6), 1, 0.45, "confirmed", ": confirmed"),
        (figure(-0.5, -0.6, -0.4), 1, 0.45, "opposite", "the opposite holds"),
        (figure(-1.0, -1.1, -0.9, seeds=4), -1, None, "no verdict", "4 of 5 seeds"),
        (figure(-1.0, seeds=1), -1, None, "no verdict", "1 of 5 seeds"),
        (figure(math.nan), -1, None, "no verdict", "a value is not finite"),
    ],
)
def test_an_interval_decides(ours, sign, paper, word, told):
    found = Claim("DoGraph below Uniform", sign, paper=paper).judge({"": ours})
    assert found.verdict == word
    assert told in found.line
    assert found.record()["verdict"] == word


def test_a_line_says_what_is_claimed_and_what_is_here():
    found = Claim("DoGraph below Uniform", -1, paper=-1.04).judge({"": figure(0.05, 0.03, 0.07)})
    assert found.line == (
        "paper: DoGraph below Uniform by 1.040; here +0.050 [+0.030, +0.070]: "
        "not confirmed, the opposite holds"
    )
    ours = Claim("x", 1, "dograph", shape=".1f", unit=" %").judge({"": figure(1.0, 0.5, 1.5)})
    assert ours.line == (
        "the same claim for our default recipe: x; here +1.0 [+0.5, +1.5] %: confirmed"
    )
    assert Claim("x", 1).untested("no run").line == "paper: x: not tested, no run"


def test_the_best_of_all_must_beat_everybody():
    beats, ties, loses = figure(-1, -2, -0.5), figure(-0.1, -0.2, 0.1), figure(0.2, 0.1, 0.3)
    assert Claim("x", -1).judge({"a": beats, "b": beats}).verdict == "confirmed"
    found = Claim("x", -1).judge({"a": beats, "b": ties})
    assert (found.verdict, "against b" in found.line) == ("unclear", True)
    found = Claim("x", -1).judge({"a": loses, "b": ties, "c": beats})
    assert (found.verdict, "against a" in found.line) == ("opposite", True)
    few = Claim("x", -1).judge({"a": beats, "b": figure(-1, -2, -0.5, seeds=3)})
    assert few.verdict == "no verdict"
    assert few.line.endswith("against b, -1.000 [-2.000, -0.500]: no verdict, 3 of 5 seeds")
    assert Claim("x", -1).judge({}).verdict == "no verdict"


def test_a_rival_that_is_surely_better_is_shown_before_one_that_is_perhaps():
    """The larger mean has the wider interval, and would hide the claim that is refuted."""
    sure, perhaps = figure(0.1, 0.05, 0.15), figure(0.3, -0.2, 0.8)
    found = Claim("x", -1).judge({"perhaps": perhaps, "sure": sure})
    assert (found.verdict, "against sure" in found.line) == ("opposite", True)


def test_against_several_it_is_the_simultaneous_interval_that_decides():
    one = Estimate(-1.0, Interval(-1.5, -0.5), 5, Interval(-2.5, 0.5))
    found = Claim("x", -1).judge({"a": one})
    assert found.verdict == "unclear"
    assert "-1.000 [-2.500, +0.500]" in found.line


@pytest.mark.parametrize("sign", [-1, 1])
def test_of_rivals_alike_the_nearest_is_shown(sign):
    rivals = {
        "far": figure(sign * 2.0, *sorted((sign * 1.0, sign * 3.0))),
        "near": figure(sign * 0.2, *sorted((sign * 0.1, sign * 0.3))),
        "middle": figure(sign * 1.0, *sorted((sign * 0.5, sign * 1.5))),
    }
    found = Claim("x", sign).judge(rivals)
    assert (found.verdict, found.ours) == ("confirmed", rivals["near"])


def test_a_rival_without_a_figure_leaves_no_verdict_unless_another_refutes():
    broken, ties, loses = figure(math.nan), figure(-0.1, -0.2, 0.1), figure(0.2, 0.1, 0.3)
    found = Claim("x", -1).judge({"ties": ties, "broken": broken})
    assert (found.verdict, "against broken" in found.line) == ("no verdict", True)
    assert found.line.endswith("no verdict, a value is not finite")
    assert Claim("x", -1).judge({"broken": broken, "loses": loses}).verdict == "opposite"


def test_figures_are_paired_t_intervals():
    a = {1: 3.0, 2: 3.5, 3: 2.5, 9: 100.0}  # seed 9 has no partner
    b = {1: 2.0, 2: 3.0, 3: 2.2}
    pairs = [1.0, 0.5, 0.3]
    found = RunMetric({"a": a, "b": b}).difference("a", "b", family=4)
    low, high = stats.t.interval(0.95, 2, loc=stats.tmean(pairs), scale=stats.sem(pairs))
    assert (found.value, found.num) == (pytest.approx(0.6), 3)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high))
    reach = stats.t.ppf(1 - 0.05 / 8, 2) * stats.sem(pairs)
    assert found.simultaneous.high == pytest.approx(0.6 + reach)
    own = RunMetric({"b": b}).mean("b")
    assert own.value == pytest.approx(2.4)
    assert own.interval.high - own.value == pytest.approx(
        stats.t.ppf(0.975, 2) * stats.sem([2, 3, 2.2])
    )
    per_cent = RunMetric({"a": a, "b": b}, in_per_cent=True).difference("a", "b")
    assert per_cent.value == pytest.approx(100 * (0.5 + 0.5 / 3 + 0.3 / 2.2) / 3)
    assert RunMetric({"a": a}).difference("a", "b").num == 0


def test_how_figures_are_written():
    assert figure(5.1234, 5.1, 5.1468).plus_minus(".3f") == "5.123 ± 0.023"
    assert figure(5.1234, seeds=1).plus_minus(".3f") == "5.123"
    assert figure(-0.5, -0.6, -0.4).text("+.2f") == "-0.50 [-0.60,-0.40]"
    none = Estimate(math.nan, None, 0)
    assert none.plus_minus(".3f") == none.text("+.3f") == "-"
