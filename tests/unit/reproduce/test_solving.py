"""How long an objective takes to solve, and the paper's claim about it."""

from types import SimpleNamespace

import pytest

from dograph.reproduce import outcomes as of_losses
from dograph.reproduce import outcomes as solving
from dograph.reproduce import paper
from dograph.reproduce.outcomes import example_domains, objectives
from dograph.stats import Estimate, Interval


def test_solves_are_of_eleven_domains_that_all_have_samples():
    domains = example_domains()
    assert domains.gram_MM.shape == (11, 11)
    assert bool(domains.present_M.all())


def test_solves_are_told_in_milliseconds(monkeypatch):
    """Every look at the clock is a quarter of a second after the last."""
    now = iter(range(10_000))
    clock = SimpleNamespace(perf_counter=lambda: next(now) / 4)
    monkeypatch.setattr(solving, "time", clock)
    monkeypatch.setattr(solving, "UNTIMED", 1)
    monkeypatch.setattr(solving, "TIMED", 8)
    times = solving.solve_times("cpu")
    assert list(times) == list(paper.OBJECTIVES)
    assert {(solve.low, solve.value, solve.high) for solve in times.values()} == {(250,) * 3}
    assert times["robust"].num == 8


@pytest.mark.parametrize(
    ("rivals", "word", "shown"),
    [
        ({"variance": (5, 6), "uncertainty": (4.5, 7), "alignment": (9, 9.5)}, "confirmed", "unc"),
        ({"variance": (5, 6), "uncertainty": (3.9, 7), "alignment": (9, 9.5)}, "unclear", "unc"),
        ({"variance": (1, 2.9), "uncertainty": (5, 7), "alignment": (9, 9.5)}, "opposite", "var"),
        # one that is surely faster counts before one whose interval only begins lower
        ({"variance": (2, 2.9), "uncertainty": (1, 7), "alignment": (9, 9.5)}, "opposite", "var"),
    ],
)
def test_the_cheapest_solve_is_below_all_others(by_hand, monkeypatch, rivals, word, shown):
    times = {name: Estimate(sum(ends) / 2, Interval(*ends)) for name, ends in rivals.items()}
    times["robust"] = Estimate(3.3, Interval(3.0, 4.0))
    monkeypatch.setattr(of_losses, "solve_times", lambda device: times)
    cells = by_hand.levels({"uniform": 5.0, "uncertainty": 4.9})
    found = objectives(by_hand.study("objectives", by_hand.findings(cells)))
    told = found.verdicts[-1]
    assert (told.of, told.verdict) == ("robust", word)
    assert f"3.300 [3.000,4.000] ms, {shown}" in told.line
