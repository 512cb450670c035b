"""How far a lab is: a live bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from dataclasses import dataclass, field
from typing import Protocol

LINE_SECONDS = 5.0
NAMED = 3  # running jobs told by name


@dataclass(slots=True)
class Tally:
    """Jobs of one round. Those that were there before count as done, and for no time."""

    total: int
    cached: int
    noun: str = "proxies"
    done: int = 0
    seconds: float = 0.0  # of training, in those that were made now
    running: list[str] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    def begun(self, label: str) -> None:
        if label not in self.running:  # one whose worker died begins again
            self.running.append(label)

    def ended(self, label: str, seconds: float) -> None:
        if label in self.running:
            self.running.remove(label)
        self.done += 1
        self.seconds += seconds

    @property
    def left(self) -> float:
        """Seconds until the last is done, if all take as long as those so far."""
        todo = self.total - self.cached - self.done
        elapsed = time.monotonic() - self.start
        return elapsed / self.done * todo if self.done else float("inf")

    def text(self) -> str:
        named = ", ".join(self.running[:NAMED])
        more = f" and {len(self.running) - NAMED} more" if len(self.running) > NAMED else ""
        parts = [f"{clock(self.seconds)} of training"]
        parts += [f"{self.cached} cached"] if self.cached else []
        parts += [f"running {named}{more}"] if named else []
        return "; ".join(parts)


class Progress(Protocol):
    """Shows a tally."""

    tally: Tally

    def update(self) -> None:
        """The tally has changed."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """No more is coming."""


class Lines:
    """Plain lines for logs."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.last = -LINE_SECONDS

    def update(self) -> None:
        tally, now = self.tally, time.monotonic()
        finished = tally.cached + tally.done == tally.total
        if now - self.last < LINE_SECONDS and not finished:
            return
        self.last = now
        left = "" if finished else f"; {clock(tally.left)} left"
        done = tally.cached + tally.done
        self.say(f"{done}/{tally.total} {tally.noun}; {tally.text()}{left}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bar:
    """A live bar."""

    def __init__(self, tally: Tally) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.tally = tally
        self.bar = RichProgress(
            MofNCompleteColumn(),
            TextColumn(tally.noun),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("lab", total=tally.total, completed=tally.cached, note="")
        self.bar.start()

    def update(self) -> None:
        tally = self.tally
        note = f"{tally.text()}; {clock(tally.left)} left"
        self.bar.update(self.task, completed=tally.cached + tally.done, note=note)

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.bar.stop()


def open_progress(tally: Tally) -> Progress:
    return Bar(tally) if sys.stderr.isatty() else Lines(tally)


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
