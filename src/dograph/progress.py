"""Progress on stderr: a live bar on a terminal, a line every few seconds elsewhere."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import rich.progress

LINE_SECONDS = 5.0  # between plain lines
RECENT = 20  # updates of steady work whose speed counts
SLOW_SECONDS = 2.0  # work that takes longer shows its progress


def duration(seconds: float) -> str:
    """A duration in a suitable unit: 90 s, 12 min, 3.5 h, 2.5 days."""
    if not math.isfinite(seconds):
        return "?"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    if round(seconds / 60) < 120:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


class Progress:
    """Shows progress in one or several stages, as in "stage: count; note; 12 s left".

    `count` is a template with {done} and {total}, as in "step {done}/{total}"; without one, lines
    have only the stage and the note. `done`: finished earlier, so it does not count for the speed.
    `live=False`: no bar, for use next to other bars. `silent`: for ranks other than the first.
    `after`: nothing is shown of work that ends within so many seconds. `steady`: equal work, one
    after another, so the speed is that of the recent past, without the start, which may be slow.
    `work`: how much work the first so many are, if some are more work than others.
    """

    def __init__(
        self,
        count: str = "",
        total: int | None = None,
        *,
        done: int = 0,
        live: bool = True,
        silent: bool = False,
        transient: bool = False,
        after: float = 0.0,
        steady: bool = False,
        work: Callable[[int], float] = float,
        line_seconds: float = LINE_SECONDS,
    ) -> None:
        self.count, self.total, self.silent, self.transient = count, total, silent, transient
        self.line_seconds, self.due = line_seconds, -math.inf  # when the next line is
        self.stage, self.first, self.steady, now = "", done, steady, time.monotonic()
        self.marks = deque([(now, done)], maxlen=RECENT)  # the first may have been slow
        self.updated, self.note, self.work = now, "", work
        self.shown_from, self.live = now + after, live and sys.stderr.isatty()
        self.bar: rich.progress.Progress | None = None  # from the first update shown on

    def _start_bar(self) -> None:
        from rich import progress
        from rich.console import Console

        head = progress.TextColumn("{task.description}", markup=False)
        note = progress.TextColumn("{task.fields[note]}", markup=False)
        columns, console = (head, progress.BarColumn(16), note), Console(stderr=True)
        self.bar = progress.Progress(*columns, console=console, transient=self.transient)
        self.task = self.bar.add_task("", total=self.total, completed=self.first, note="")
        self.bar.start()

    def update(
        self, done: int, note: str = "", *, stage: str = "", total: int | None = None
    ) -> None:
        """`done` of `total` are done in this stage; without a total, the last one is used."""
        if self.silent:
            return
        now, begins = time.monotonic(), stage != self.stage
        self.updated, self.note = now, note
        if begins:
            self.stage = stage
            self.marks.clear()
        if begins or (self.steady and done > self.marks[-1][1]):
            self.marks.append((now, done))
        self.total = self.total if total is None else total
        if now < self.shown_from:
            return
        if self.live and self.bar is None:
            self._start_bar()
        count = self.count.format(done=done, total=self.total) if self.total else ""
        head = ": ".join(filter(None, [stage, count]))
        left = ""
        if self.total and done < self.total:
            start, first = self.marks[len(self.marks) > 2]
            begun, made, every = map(self.work, (first, done, self.total))
            known = (now - start) / (made - begun) if made > begun else math.inf
            seconds = known * (every - made)
            left = f"{duration(seconds)} left"
        if self.bar is not None:
            text = "; ".join(filter(None, [note, left]))
            self.bar.update(
                self.task, description=head, completed=done, total=self.total or None, note=text
            )
        elif begins or (count and done == self.total) or now >= self.due:
            self.due = now + self.line_seconds
            if count:
                self.say("; ".join(filter(None, [head, note, left])))
            else:
                self.say(": ".join(filter(None, [head, note])))

    def tick(self, done: int) -> None:
        """As `update`, with the note of the last one, if that was a while ago."""
        if time.monotonic() >= self.updated + LINE_SECONDS:
            self.update(done, self.note, stage=self.stage)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        elif not self.silent:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop the bar."""
        if self.bar is not None:
            self.bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def counted(count: str, total: int | None = None) -> Progress:
    """The progress of work that is mostly short: nothing is shown of the first two seconds."""
    return Progress(count, total, after=SLOW_SECONDS, transient=True)
