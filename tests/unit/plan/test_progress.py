import pytest

from dograph.plan import progress
from dograph.plan.progress import Lines, Tally, clock


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03"), (float("inf"), "?")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_a_tally_tells_what_runs_and_what_it_cost(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tally = Tally(total=6, cached=1, start=100.0)
    for label in ("a", "b", "b", "c", "d"):  # b's worker died once
        tally.begun(label)
    assert tally.left == float("inf")
    assert tally.text() == "0:00 of training; 1 cached; running a, b, c and 1 more"
    now[0] = 110.0
    tally.ended("a", 4.0)
    assert tally.left == 40.0  # 10 s for one, four to go
    assert tally.text() == "0:04 of training; 1 cached; running b, c, d"


def test_lines_come_now_and_then_and_at_the_end(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = Lines(Tally(total=3, cached=0, start=100.0))
    for label in "abc":
        lines.tally.begun(label)
        lines.update()
        now[0] += 2.0
        lines.tally.ended(label, 2.0)
        lines.update()
    shown = capsys.readouterr().err.splitlines()
    assert shown == [
        "0/3 proxies; 0:00 of training; running a; ? left",
        "3/3 proxies; 0:06 of training",
    ]
