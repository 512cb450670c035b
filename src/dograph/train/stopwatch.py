"""Where a step's time goes, without waiting for the device."""

import time

import torch

Mark = float | torch.cuda.Event
Lap = tuple[str, Mark, Mark]


class Stopwatch:
    """Marks between the parts of a step: clock readings, or events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.start()

    def start(self) -> None:
        self.laps: list[Lap] = []
        self.last = self.mark()

    def lap(self, name: str) -> None:
        """The time since the last mark was spent on `name`."""
        now = self.mark()
        self.laps.append((name, self.last, now))
        self.last = now

    def mark(self) -> Mark:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Until the device has done all that it was given; for benchmarks, never in a step."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def milliseconds(laps: list[Lap]) -> dict[str, float]:
    """Time of each part; on a GPU, to be asked once the step is over."""
    total: dict[str, float] = {}
    for name, start, end in laps:
        if isinstance(start, float):
            spent = 1e3 * (end - start)  # type: ignore[operator]
        else:
            spent = start.elapsed_time(end)
        key = f"time/{name}_ms"
        total[key] = total.get(key, 0.0) + spent
    return total
