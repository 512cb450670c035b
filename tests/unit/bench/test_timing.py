import time
from itertools import count, groupby
from types import SimpleNamespace

import torch

from dograph.bench.arms import WARMUP_STEPS, Arm
from dograph.bench.session import (
    IN_A_ROW,
    UNTIMED,
    median_parts,
    run_segments,
    steps_alone,
    take_turns,
)
from dograph.train.step import Stopwatch

CPU = torch.device("cpu")


def sleeper(name, seconds, order):
    watch, done = Stopwatch(CPU), count()

    def step():
        order.append((name, next(done)))
        watch.start()
        time.sleep(seconds)
        watch.lap("asleep")
        return watch.laps

    return Arm(step, torch.nn.Identity())


def test_arms_take_turns_and_each_step_has_its_own_time():
    order = []
    arm, plain = sleeper("mode", 0.02, order), sleeper("plain", 0.005, order)
    take_turns(arm, plain, 4, Stopwatch(CPU))
    names = [name for name, _ in order[2 * UNTIMED :]]
    assert names == ["plain", "mode", "mode", "plain"] * 2
    assert [done for name, done in order if name == "mode"] == list(range(UNTIMED + 4))
    assert len(arm.ms) == len(plain.ms) == 4
    assert all(ms >= 20 for ms in arm.ms)
    assert all(ms >= 5 for ms in plain.ms)
    assert sorted(plain.ms)[1] < 20
    assert median_parts(arm.laps)["asleep"] >= 20
    assert 5 <= median_parts(plain.laps)["asleep"] < 20


def test_steps_in_a_row():
    order = []
    arm = sleeper("mode", 0.01, order)
    found = steps_alone(arm, Stopwatch(CPU), held_before=0)
    assert found["warmup_steps"] == WARMUP_STEPS
    assert found["warmup_seconds"] >= 0.01 * WARMUP_STEPS
    assert found["row_ms"] >= 10
    assert found["peak_bytes"] is None
    assert len(order) == WARMUP_STEPS + IN_A_ROW


def test_the_clock_of_a_cpu_is_in_seconds():
    """Between what passed inside its two marks and around them, however busy the machine is."""
    watch, before = Stopwatch(CPU), time.perf_counter()
    start, begin = watch.mark(), time.perf_counter()
    time.sleep(0.01)
    end, stop = time.perf_counter(), watch.mark()
    assert end - begin <= stop - start <= time.perf_counter() - before


class Run:
    """In place of a trainer: sleeps, and notes what it is asked to do."""

    def __init__(self, name, seconds, done, order):
        self.name, self.seconds, self.done, self.order = name, seconds, done, order
        self.config = SimpleNamespace(log=SimpleNamespace(every=5))
        self.step, self.due = SimpleNamespace(watch=Stopwatch(CPU)), None

    def advance(self, loader):
        time.sleep(self.seconds)
        if self.due is not None:
            self.order.append(f"{self.name} writes at {self.due[0]}")
            self.due = None
        self.done += 1
        self.order.append(self.name)


def test_segments_of_two_runs_alternate_and_write_their_metrics():
    order, arms = [], {}
    for name, seconds, done in (("mode", 0.02, 7), ("plain", 0.004, 12)):
        run = Run(name, seconds, done, order)
        arms[name] = Arm(None, torch.nn.Identity(), run, object())
    said = []
    found = run_segments(arms["mode"], arms["plain"], 20, 5, said.append)
    assert said == [f"{done} of 20 steps" for done in (5, 10, 15, 20)]
    writes = [line.split(" writes at ") for line in order if "writes" in line]
    assert [int(done) for name, done in writes if name == "mode"] == [10, 15, 20, 25]
    assert [int(done) for name, done in writes if name == "plain"] == [15, 20, 25, 30]
    turns = [name for name, _ in groupby(line.split()[0] for line in order)]
    assert turns == ["plain", "mode", *["plain", "mode"] * 2, "plain"]
    assert (found["steps"], found["segment_steps"], found["ratio"]["blocks"]) == (20, 5, 4)
    assert found["ms"] >= 20
    assert 4 <= found["plain_ms"] < 20
    assert found["host_ms"] >= 20
    ratio = found["ratio"]
    assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert ratio["half_width"] == (ratio["high"] - ratio["low"]) / 2
    assert 1 < ratio["median"] < 5.1
