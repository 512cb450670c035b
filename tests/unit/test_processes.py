"""Worker processes: fed, answered in order, named when they die, and never left behind."""

import os
import signal
import subprocess
import time

import pytest

from dograph.processes import Died, Workers

ECHO = """
import os, time
from dograph import processes

def answer(message):
    if message == "leave":
        os._exit(3)
    if message == "sleep":
        time.sleep(60)
    return os.getpid(), message

def serve(descriptor):
    processes.serve(descriptor, answer)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    with Workers(2, "echo_worker", {"ECHO": "yes"}) as pool:
        yield pool


def collect(pool, number):
    found = []
    while len(found) < number:
        found += pool.answers(None)
    return found


def ended(process, seconds=20):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def test_jobs_queue_up_and_are_answered_in_order(pool):
    """Also where neither side reads at once: messages that fill the pipe both ways."""
    worker = pool.start()
    messages = [bytes([n]) * 2_000_000 for n in range(4)]
    for number, message in enumerate(messages):
        pool.give(worker, number, message)
    assert worker.jobs[0] == 0
    found = collect(pool, 4)
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert [message for _, (_, message) in found] == messages
    assert {pid for _, (pid, _) in found} == {worker.process.pid}
    assert not worker.jobs


def test_work_goes_to_the_least_busy_and_to_new_workers_first(pool):
    first = pool.least_busy()
    pool.give(first, 0, "sleep")
    second = pool.least_busy()
    assert (first.place, second.place) == (0, 1)
    pool.give(second, 1, "sleep")
    pool.give(second, 2, "a")
    assert pool.least_busy() is first


@pytest.mark.parametrize("killed", [False, True])
def test_a_dead_worker_is_named_with_its_cause_and_its_place_is_free(pool, killed):
    worker = pool.start()
    pool.give(worker, 7, "sleep" if killed else "leave")
    if killed:
        os.kill(worker.process.pid, signal.SIGKILL)
    assert collect(pool, 1) == [(7, Died("signal 9" if killed else "exit status 3"))]
    again = pool.least_busy()
    assert again.place == 0
    pool.give(again, 8, "a")
    assert collect(pool, 1) == [(8, (again.process.pid, "a"))]


def test_a_worker_that_died_unseen_is_told_at_its_next_job(pool):
    worker = pool.start()
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    pool.give(worker, 0, "a")
    assert collect(pool, 1) == [(0, Died("signal 9"))]


def test_stopping_ends_the_busy_and_leaves_the_idle(pool):
    busy, idle = pool.start(), pool.start()
    pool.give(idle, 0, "a")
    collect(pool, 1)
    pool.give(busy, 1, "sleep")
    begin = time.monotonic()
    pool.stop()
    assert time.monotonic() - begin < 25  # asked, not waited out
    assert busy.process.returncode == -signal.SIGTERM
    assert idle.process.poll() is None
    pool.give(idle, 2, "b")
    assert collect(pool, 1) == [(2, (idle.process.pid, "b"))]


def test_a_worker_ends_with_its_parent_also_in_the_middle_of_a_job(pool):
    worker = pool.start()
    pool.give(worker, 0, "a")
    collect(pool, 1)
    pool.give(worker, 1, "sleep")
    worker.connection.close()  # what a kill of the parent does
    assert ended(worker.process) == -signal.SIGTERM


def test_leaving_the_pool_leaves_nobody_behind(pool):
    workers = [pool.start(), pool.start()]
    pool.give(workers[0], 0, "sleep")
    pool.__exit__()
    assert [worker.process.returncode for worker in workers] == [-signal.SIGKILL] * 2
