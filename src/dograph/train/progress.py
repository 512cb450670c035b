"""How far a run is: a live bar on a terminal, a plain line now and then elsewhere."""

import re
import sys
import time
from collections.abc import Mapping
from typing import Protocol

LINE_SECONDS = 5.0


class Progress(Protocol):
    """Shows a number of steps being made."""

    def update(self, done: int, note: str) -> None:
        """`done` steps are made; `note` says how they went."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """No more is coming."""


def step_note(row: Mapping[str, float]) -> str:
    """What a row of metrics says in a line: loss, speed, and how many domains weigh how evenly."""
    note = f"loss {row['train/loss_nats']:.3f}  {row['time/tokens_per_second']:,.0f} tokens/s"
    sizes = [x for name, x in row.items() if re.fullmatch(r"domains/\d+/samples", name)]
    if sizes and "weights/entropy_nats" in row:
        note += f"  {sum(x > 0 for x in sizes)} domains, entropy {row['weights/entropy_nats']:.2f}"
    return note


class Lines:
    """Plain lines for logs."""

    def __init__(self, total: int, first: int) -> None:
        self.total, self.first = total, first
        self.start, self.last = time.monotonic(), -LINE_SECONDS

    def update(self, done: int, note: str) -> None:
        now = time.monotonic()
        if now - self.last < LINE_SECONDS and done < self.total:
            return
        self.last = now
        rate = (done - self.first) / max(now - self.start, 1e-9)
        left = (self.total - done) / rate if rate else float("inf")
        self.say(f"step {done}/{self.total}  {note}  {_clock(left)} left")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bar:
    """A live bar."""

    def __init__(self, total: int, first: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("train", total=total, completed=first, note="")
        self.bar.start()

    def update(self, done: int, note: str) -> None:
        self.bar.update(self.task, completed=done, note=note)

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.bar.stop()


class Silent:
    """For ranks that are not the first."""

    def update(self, done: int, note: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def open_progress(total: int, first: int, *, main: bool) -> Progress:
    if not main:
        return Silent()
    return Bar(total, first) if sys.stderr.isatty() else Lines(total, first)


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
