import time

import torch

from dograph.bench.arms import Arm
from dograph.bench.session import IN_A_ROW, UNTIMED, median_parts, steps_alone, take_turns
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

    return Arm(advance, torch.nn.Identity())


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
    found = steps_alone(arm, 2, Stopwatch(CPU), held_before=0)
    assert found["warmup_seconds"] >= 0.02
    assert found["row_ms"] >= 10
    assert found["peak_bytes"] is None
    assert len(order) == 2 + IN_A_ROW


def test_the_clock_of_a_cpu_is_in_seconds():
    """Between what passed inside its two marks and around them, however busy the machine is."""
    watch, before = Stopwatch(CPU), time.perf_counter()
    start, begin = watch.mark(), time.perf_counter()
    time.sleep(0.01)
    end, stop = time.perf_counter(), watch.mark()
    assert end - begin <= stop - start <= time.perf_counter() - before
