import time

import pytest
import torch

from dograph.bench.arms import UNTIMED, Arm, in_a_row, median_parts, take_turns, warm_up
from dograph.train.step import Stopwatch

CPU = torch.device("cpu")


def sleeper(name, seconds, order):
    watch = Stopwatch(CPU)

    def advance(done):
        order.append((name, done))
        watch.start()
        time.sleep(seconds)
        watch.lap("asleep")
        return watch.laps

    return Arm(name, advance, torch.nn.Identity())


def test_arms_take_turns_and_each_step_has_its_own_time():
    order = []
    arm, plain = sleeper("mode", 0.02, order), sleeper("plain", 0.005, order)
    turns = take_turns(arm, plain, 4, Stopwatch(CPU))
    names = [name for name, _ in order[2 * UNTIMED :]]
    assert names == ["plain", "mode", "mode", "plain"] * 2
    assert [done for name, done in order if name == "mode"] == list(range(UNTIMED + 4))
    assert len(turns.ms) == len(turns.plain_ms) == 4
    assert all(ms >= 20 for ms in turns.ms)
    assert all(ms >= 5 for ms in turns.plain_ms)
    assert sorted(turns.plain_ms)[1] < 20
    assert median_parts(turns.laps)["asleep"] >= 20
    assert 5 <= median_parts(turns.plain_laps)["asleep"] < 20


def test_steps_in_a_row():
    order = []
    arm = sleeper("mode", 0.01, order)
    assert warm_up(arm, 2, Stopwatch(CPU)) >= 0.02
    row = in_a_row(arm, Stopwatch(CPU), held_before=0, steps=3)
    assert row.ms >= 10
    assert (row.peak_bytes, row.state_bytes) == (None, None)
    assert len(order) == 5


def test_the_clock_of_a_cpu_is_in_milliseconds():
    watch = Stopwatch(CPU)
    start = watch.mark()
    time.sleep(0.01)
    assert watch.mark() - start == pytest.approx(0.01, abs=0.02)
