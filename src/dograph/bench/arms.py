"""The steps that are measured, plain and DoGraph's in every mode, and how they are timed."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dograph.bench.options import Batches, BenchOptions
from dograph.mixers.registry import build_mixer
from dograph.models.build import build_model
from dograph.models.loss import PerSampleLoss, compile_regions
from dograph.train.distributed import World
from dograph.train.step import Lap, Mark, Stopwatch, TrainStep, build_optimizer, milliseconds

_GRAPHS = 64  # of one region: all arms share its code
IN_A_ROW = 4  # steps
UNTIMED = 2  # turns before those that are timed
PROFILED = 2  # steps
TOP = 10  # kernels


@dataclass(slots=True)
class Arm:
    """Something that makes a step, and says where its time went."""

    name: str
    advance: Callable[[int], list[Lap]]
    model: torch.nn.Module
    done: int = 0

    def step(self) -> list[Lap]:
        """One more step."""
        laps = self.advance(self.done)
        self.done += 1
        return laps


def open_model(options: BenchOptions, device: torch.device) -> PerSampleLoss:
    """The model of every arm, with the same weights in each."""
    with device:  # weights are drawn where they are wanted: a CPU takes long over a large model
        model = build_model(
            options.model,
            vocab_size=options.vocab_size,
            seq_len=options.seq_len,
            dropout=0.0,
            seed=options.seed,
        ).to(device)
    return model.train()


def open_arm(
    options: BenchOptions, mode: str | None, batches: Batches, device: torch.device
) -> Arm:
    """The trainer's own step, plain (None) or in a mode of the sketch."""
    config = options.config(mode)
    model = open_model(options, device)
    if options.compile:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _GRAPHS)
        compile_regions(model)
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    world = World(rank=0, size=1, device=device)
    step = TrainStep(config, world, model, build_optimizer(model, config.optim), mixer)
    return Arm(mode or "plain", lambda done: step(batches(done), done).laps, model)


def release(device: torch.device) -> None:
    """Give back what arms that are gone held."""
    gc.unfreeze()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def held_bytes(device: torch.device) -> int:
    """Bytes of a GPU that are in use."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


@dataclass(frozen=True, slots=True)
class Turns:
    """Milliseconds of two arms that took turns, pair by pair, and the laps of their parts."""

    ms: list[float]
    plain_ms: list[float]
    laps: list[list[Lap]]
    plain_laps: list[list[Lap]]


@dataclass(frozen=True, slots=True)
class Row:
    """Steps one after another with nothing between them: what a run would see."""

    ms: float
    peak_bytes: int | None  # of this arm alone; None on a CPU
    state_bytes: int | None  # what it holds between steps


def take_turns(arm: Arm, plain: Arm, steps: int, watch: Stopwatch) -> Turns:
    """`steps` pairs of steps, each with its own marks; who comes first changes.

    Nothing waits for the device between steps. A step that launches slower than it runs hides
    behind the other's: that is what `in_a_row` is for.
    """
    marks: dict[str, list[tuple[Mark, Mark]]] = {arm.name: [], plain.name: []}
    laps: dict[str, list[list[Lap]]] = {arm.name: [], plain.name: []}
    for one in (plain, arm) * UNTIMED:  # memory given back since is asked for again
        one.step()
    watch.wait()
    for turn in range(steps):
        for one in (arm, plain) if turn % 2 else (plain, arm):
            start = watch.mark()
            parts = one.step()
            marks[one.name].append((start, watch.mark()))
            laps[one.name].append(parts)
    watch.wait()
    ms, plain_ms = (
        [milliseconds([("step", *pair)])["time/step_ms"] for pair in marks[one.name]]
        for one in (arm, plain)
    )
    return Turns(ms, plain_ms, laps[arm.name], laps[plain.name])


def in_a_row(arm: Arm, watch: Stopwatch, held_before: int, steps: int = IN_A_ROW) -> Row:
    """Some steps without a pause, and the most memory they needed.

    `held_before` is what others held when the arm was built. They hold it still, so the peak less
    that is what the arm would need by itself.
    """
    watch.wait()
    if watch.on_gpu:
        torch.cuda.reset_peak_memory_stats(watch.device)
    state, start = held_bytes(watch.device), time.perf_counter()
    for _ in range(steps):
        arm.step()
    watch.wait()
    ms = 1e3 * (time.perf_counter() - start) / steps
    if not watch.on_gpu:
        return Row(ms, None, None)
    peak = torch.cuda.max_memory_allocated(watch.device)
    return Row(ms, peak - held_before, state - held_before)


def warm_up(arm: Arm, steps: int, watch: Stopwatch) -> float:
    """Seconds of the first steps, compilation included; then `gc.freeze()`, as a run does it.

    Else collections of garbage would be timed too.
    """
    watch.wait()
    start = time.perf_counter()
    for _ in range(steps):
        arm.step()
    watch.wait()
    spent = time.perf_counter() - start
    gc.collect()
    gc.freeze()
    return spent


def median_parts(laps: list[list[Lap]]) -> dict[str, float]:
    """Median milliseconds of every part of a step, by its name."""
    steps = [milliseconds(one) for one in laps]
    names = dict.fromkeys(name for step in steps for name in step)
    return {
        name.removeprefix("time/").removesuffix("_ms"): statistics.median(
            step.get(name, 0.0) for step in steps
        )
        for name in names
    }


def top_kernels(arm: Arm, watch: Stopwatch) -> dict[str, Any]:
    """The kernels (on a CPU: operations) that take the most time, in milliseconds a step."""
    watch.wait()
    kind = "CUDA" if watch.on_gpu else "CPU"
    with profile(activities=[getattr(ProfilerActivity, kind)]) as profiler:
        for _ in range(PROFILED):
            arm.step()
        watch.wait()
    found = []
    for event in profiler.key_averages():
        if event.device_type.name == kind and not event.is_user_annotation:
            micro = event.self_device_time_total if watch.on_gpu else event.self_cpu_time_total
            found.append((float(micro) / 1e3 / PROFILED, event.count / PROFILED, event.key))
    ranked = sorted(found, key=lambda entry: entry[0], reverse=True)
    return {
        "device_ms": sum(ms for ms, *_ in found),
        "launched": sum(calls for _, calls, _ in found),
        "top": [{"name": key, "ms": ms, "calls": calls} for ms, calls, key in ranked[:TOP]],
    }
