"""Which kernels a step's time goes to."""

from typing import Any

from torch.profiler import ProfilerActivity, profile

from dograph.bench.arms import Arm
from dograph.bench.timing import Timer

TOP = 10
STEPS = 2


def top_kernels(arm: Arm, timer: Timer) -> dict[str, Any]:
    """The kernels (on a CPU: operations) that take the most time, in milliseconds a step."""
    activities = [ProfilerActivity.CUDA] if timer.on_gpu else [ProfilerActivity.CPU]
    timer.wait()
    with profile(activities=activities) as profiler:
        for _ in range(STEPS):
            arm.step()
        timer.wait()
    wanted = "CUDA" if timer.on_gpu else "CPU"
    events = [
        event
        for event in profiler.key_averages()
        if event.device_type.name == wanted and not event.is_user_annotation
    ]

    def ms(event: Any) -> float:
        micro = event.self_device_time_total if timer.on_gpu else event.self_cpu_time_total
        return float(micro) / 1e3 / STEPS

    ranked = sorted(events, key=ms, reverse=True)
    return {
        "device_ms": sum(map(ms, events)),
        "launched": sum(event.count for event in events) / STEPS,
        "top": [
            {"name": event.key, "ms": ms(event), "calls": event.count / STEPS}
            for event in ranked[:TOP]
        ],
    }
