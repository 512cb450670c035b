"""Progress of work in stages, on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STAGE_SECONDS = 5.0  # between lines where there is no terminal


@contextmanager
def stages_shown(unit: str, *, live: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Something to report progress to, on stderr: a live bar, or now and then a line.

    `unit` is what is counted. Not `live`: beside somebody else's bars, which a bar would tear.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(file=sys.stderr)
    if not (live and console.is_terminal):
        yield _Lines(unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield report


class _Lines:
    """Plain lines: one at each change of stage, and every STAGE_SECONDS."""

    def __init__(self, unit: str) -> None:
        self._unit, self._stage, self._due = unit, "", 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == self._stage and time.monotonic() < self._due and done < total:
            return
        self._stage, self._due = stage, time.monotonic() + STAGE_SECONDS
        counted = f"{stage}: {done}/{total} {self._unit}" if total else stage
        print(counted, file=sys.stderr, flush=True)
