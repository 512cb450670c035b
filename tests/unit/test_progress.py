"""What is shown of work under way: plain lines here, a live bar on a terminal."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dograph import progress
from dograph.plan.jobs import Job, JobProgress
from dograph.progress import Progress, counted, duration
from lab_runs import config_of

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def now(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


def job(label):
    return Job(label, config_of("corpus"))


class Seconds:
    """All that is read of a result."""

    def __init__(self, seconds):
        self.seconds = seconds


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "0 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (7169, "119 min"),
        (7199, "2.0 h"),
        (12_600, "3.5 h"),
        (216_000, "2.5 days"),
        (float("inf"), "?"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds, told):
    assert duration(seconds) == told


def test_jobs_are_counted_and_named_and_timed(now, capsys):
    shown = JobProgress("proxies", total=6, cached=1)
    for label in ("a", "b", "b", "c", "d"):  # b's worker died once
        shown.on_start(job(label))
    now[0] = 105.0
    shown.show()
    now[0] = 110.0
    shown.on_done(job("a"), Seconds(4.0))
    assert capsys.readouterr().err.splitlines() == [
        "1/6 proxies; 0 s of training; 1 cached; running a; ? left",
        "1/6 proxies; 0 s of training; 1 cached; running a, b, c and 1 more; ? left",
        "2/6 proxies; 4 s of training; 1 cached; running b, c, d; 40 s left",  # 10 s for one
    ]


def test_lines_come_now_and_then_and_at_the_end(now, capsys):
    shown = JobProgress("proxies", total=3, cached=0)
    for label in "abc":
        shown.on_start(job(label))
        now[0] += 2.0
        shown.on_done(job(label), Seconds(2.0))
    assert capsys.readouterr().err.splitlines() == [
        "0/3 proxies; 0 s of training; running a; ? left",
        "3/3 proxies; 6 s of training",
    ]


def test_what_was_done_before_tells_nothing_of_the_speed(now, capsys):
    shown = Progress("step {done}/{total}", 100, done=50)
    now[0] += 10.0
    shown.update(60, "loss 3.1")
    shown.say("a line that stays")
    assert capsys.readouterr().err.splitlines() == [
        "step 60/100; loss 3.1; 40 s left",
        "a line that stays",
    ]


def test_the_time_left_of_steady_work_is_that_of_recent_steps(now, capsys):
    """Not of the first, which compiles, and at any speed: intervals of a minute have it too."""
    shown = Progress("step {done}/{total}", 1000, steady=True)
    for seconds in [300.0] + 3 * [60.0] + 40 * [10.0]:
        now[0] += seconds
        shown.update(shown.marks[-1][1] + 10)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 10/1000; 8.2 h left"  # all that is known
    assert lines[1:3] == ["step 20/1000; 98 min left", "step 30/1000; 97 min left"]
    assert lines[-1] == "step 440/1000; 9 min left"


def test_between_updates_a_slow_step_is_shown_with_the_last_note(now, capsys):
    shown = Progress("step {done}/{total}", 100, steady=True)
    for done in range(1, 6):
        now[0] += 3.0
        shown.tick(done)
    shown.update(6, "loss 3.1")
    for done in (7, 8):
        now[0] += 40.0
        shown.tick(done)
    assert capsys.readouterr().err.splitlines() == [
        "step 2/100; 5 min left",
        "step 4/100; 5 min left",
        "step 7/100; loss 3.1; 15 min left",
        "step 8/100; loss 3.1; 23 min left",
    ]


def test_every_stage_is_told_and_has_its_own_speed(now, capsys):
    with Progress("{done}/{total} rows") as shown:
        shown.update(0, stage="loading", total=0)
        now[0] += 1.0
        for done in range(5):
            shown.update(done, stage="sketching", total=4)
            now[0] += 3.0
    assert capsys.readouterr().err.splitlines() == [
        "loading",
        "sketching: 0/4 rows; ? left",
        "sketching: 2/4 rows; 6 s left",
        "sketching: 4/4 rows",
    ]


def test_silence(capsys):
    shown = Progress("{done}/{total}", 2, silent=True)
    shown.update(1)
    shown.say("nothing")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress("step {done}/{total}", 4) as shown:
        shown.update(4, "loss [3.1]")
        shown.say("a line that stays")
    written = progress.sys.stderr.getvalue()
    assert "step 4/4" in written
    assert "loss [3.1]" in written
    assert "a line that stays" in written


def test_the_time_left_stays_on_a_terminal_when_steps_are_slow():
    """On a pseudo-terminal, with a clock on which an interval takes 40 s."""
    code = (
        "import time; from dograph import progress\n"
        "real, skipped = time.monotonic, [0.0]\n"
        "progress.time = type('', (), {'monotonic': staticmethod(lambda: real() + skipped[0])})\n"
        "with progress.Progress('step {done}/{total}', 100, steady=True) as shown:\n"
        "    for done in (10, 20, 30):\n"
        "        skipped[0] += 40.0\n"
        "        shown.update(done, 'loss')\n"
        "        time.sleep(0.25)\n"  # the bar is redrawn ten times a second
    )
    ours, theirs = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": SOURCE}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stderr=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                written += part
    os.close(ours)
    assert process.returncode == 0
    text = written.decode()
    assert "step 10/100" in text
    for left in ("6 min left", "5 min left"):  # 40 s for ten steps, and 90, 80, 70 steps to go
        assert left in text


def test_work_that_ends_soon_shows_nothing(now, capsys):
    def work(steps):
        with counted("{done}/{total} fits", 4) as shown:
            for done in range(1, steps + 1):
                now[0] += 0.7
                shown.update(done, "ridge")

    work(2)
    assert capsys.readouterr().err == ""
    work(4)
    assert capsys.readouterr().err.splitlines() == [
        "3/4 fits; ridge; 1 s left",
        "4/4 fits; ridge",
    ]


def test_steps_of_unlike_size_count_by_their_work(now, capsys):
    """Ten steps of one sample, then ten of nine samples: half the steps are a tenth of the work."""
    work = [*range(11), *(10 + 9 * n for n in range(1, 11))]
    shown = Progress("step {done}/{total}", 20, steady=True, work=lambda done: work[done])
    for done in (5, 10, 15):
        now[0] += 6.0 if done <= 10 else 54.0
        shown.update(done)
    assert capsys.readouterr().err.splitlines() == [
        "step 5/20; 114 s left",
        "step 10/20; 108 s left",
        "step 15/20; 54 s left",
    ]
