"""What `dograph data prepare` shows: a live bar on a terminal, now and then a line elsewhere."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dograph.data.corpus import Manifest
from dograph.data.finish import REPAIRS
from dograph.data.options import absent_sources, composition
from dograph.data.pipeline import Progress as Preparing
from dograph.data.pipeline import ensure_corpus
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dograph.plan.pool import Pool

# How commands print: tables, and how long something takes; where they may write.


PIPE_WIDTH = 200  # of what goes into a pipe or a file, in characters


def open_console(width: int = PIPE_WIDTH) -> "Console":
    """Standard output for tables: as wide as the terminal, or `width` where there is none.

    A pipe has no width to fit into, and what is cut off there is lost.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width)


def require_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the work, not after it; nothing is left there."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file in it")
    place = next(folder for folder in out.absolute().parents if folder.exists())
    trial = place / f".{out.name}.trial"
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written: {error.strerror}; name another place with --out"
        ) from error


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it: 90 s, 12 min, 3.5 h."""
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if round(seconds / 60) < 120 else f"{seconds / 3600:.1f} h"


LINE_SECONDS = 10.0


@contextmanager
def shown() -> Iterator[Callable[[Preparing], None]]:
    """Something to report progress to; it all goes to stderr."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _Lines()
        return
    stage, amounts = TextColumn("{task.description}"), TextColumn("{task.fields[amounts]}")
    columns = (stage, BarColumn(bar_width=12), amounts, TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("reading", amounts="")
        clock = _Clock()

        def report(now: Preparing) -> None:
            _, tokens = clock.rates(now)
            done = f"{_mebibytes(now, 0)} {now.documents:,} documents"
            bar.update(
                task,
                description=now.stage,
                completed=now.read_bytes,
                total=now.total_bytes,
                amounts=f"{done} {tokens:,.0f} tokens/s" if _seen(now) else "",
            )

        yield report


def ensured(name: str) -> Path:
    """The folder of a corpus, an embedded one prepared before the user's eyes."""
    with shown() as report:
        return ensure_corpus(name, report)


class _Lines:
    """Plain lines: one at each change of stage, and every LINE_SECONDS."""

    def __init__(self) -> None:
        self._stage = ""
        self._clock = _Clock()
        self._due = time.monotonic() + LINE_SECONDS

    def __call__(self, now: Preparing) -> None:
        if now.stage == self._stage and time.monotonic() < self._due:
            return
        self._stage = now.stage
        self._due = time.monotonic() + LINE_SECONDS
        done = ""
        if now.total_bytes and _seen(now):
            done = f" {100 * now.read_bytes / now.total_bytes:.0f} % read,"
        amounts = f":{done} {_amounts(now, self._clock)}" if _seen(now) else ""
        print(f"{now.stage}{amounts}", file=sys.stderr, flush=True)


class _Clock:
    """Rates since the first report: what was done before a resumption does not count."""

    def __init__(self) -> None:
        self._first: tuple[float, Preparing] | None = None

    def rates(self, now: Preparing) -> tuple[float, float]:
        """Text bytes gone through, kept or not, and tokens a second."""
        if self._first is None:
            self._first = (time.monotonic(), now)
        start, first = self._first
        seconds = max(time.monotonic() - start, 1e-9)
        text, tokens = _seen(now) - _seen(first), now.tokens - first.tokens
        return text / seconds, tokens / seconds


def _seen(now: Preparing) -> int:
    """Bytes of text gone through, kept or not."""
    return now.text_bytes + now.unkept_bytes


def _mebibytes(now: Preparing, digits: int) -> str:
    kept, seen = (f"{size / 2**20:.{digits}f}" for size in (now.text_bytes, _seen(now)))
    return f"kept {kept} of {seen} MiB" if now.unkept_bytes else f"{seen} MiB"


def _amounts(now: Preparing, clock: _Clock) -> str:
    text, tokens = clock.rates(now)
    documents = f"{now.documents:,}"
    if now.unkept_documents:
        documents += f" of {now.documents + now.unkept_documents:,}"
    amounts = f"{_mebibytes(now, 1)}, {documents} documents, {now.tokens:,} tokens"
    return f"{amounts}, {text / 2**20:.2f} MiB/s, {tokens:,.0f} tokens/s" if text else amounts


def print_composition(manifest: Manifest) -> None:
    """The table that a preparation ends with, and what a reader should know beside it."""
    rows = composition(manifest)
    by_bytes = all(row.bytes is not None for row in rows)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("source", no_wrap=True)
    titles = ["documents", "tokens", *(["MB"] if by_bytes else []), "share"]
    compared = by_bytes and manifest.recipe is not None
    titles += ["paper"] if compared else []
    for title in (*titles, "held out"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row.documents:,}", f"{row.tokens:,}"]
        cells += [f"{(row.bytes or 0) / 1e6:,.2f}"] if by_bytes else []
        cells += [_percent(row.share)]
        cells += [_percent(row.paper_share)] if compared else []
        table.add_row(row.source, *cells, f"{row.validation_tokens:,}")
    open_console().print(table, highlight=False)
    paper = "; paper: the same in the paper's data table" if compared else ""
    print(f"share: of the {'bytes' if by_bytes else 'tokens'}{paper}; held out: validation tokens")
    for note in _notes(manifest):
        print(note)
    lost = manifest.options.get("unkept_sources")
    if lost is not None:
        print(
            f"warning: --keep {manifest.options['keep']} left nothing to train on of these "
            f"sources: {lost}; a larger fraction or another --seed may keep some",
            file=sys.stderr,
        )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _notes(manifest: Manifest) -> Iterator[str]:
    rows = composition(manifest)
    absent = absent_sources(manifest)
    if absent:
        yield f"absent from this corpus, in the paper's table: {', '.join(absent)}"
    options = manifest.options
    if options.get("unkept_documents"):
        size = int(options["unkept_bytes"] or 0) / 1e6
        yield (
            f"--keep {options['keep']} left out {options['unkept_documents']:,} training "
            f"documents, {size:,.2f} MB"
        )
    untested = [row.source for row in rows if not row.validation_tokens]
    if untested:
        yield f"without validation text: {', '.join(untested)}"
    untrained = [row.source for row in rows if not row.tokens]
    if untrained:
        yield f"validation text only: {', '.join(untrained)}"
    if manifest.options.get("eot_guessed"):
        yield (
            f"documents were taken to end at token {manifest.tokenizer.eot_id}, GPT-2's end of "
            "text; --eot-id names another"
        )
    left_out = manifest.options.get("left_out")
    if left_out is not None:
        yield f"not read: {left_out} (name it as an input, or with --validation, to take it)"
    if manifest.repairs:
        counts = ", ".join(f"{kind}: {n:,}" for kind, n in sorted(manifest.repairs.items()))
        yield f"records mended or left out: {counts} (listed in {REPAIRS}, exclusions apart)"


# Progress of work in stages, on stderr.


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
        yield _Lines_of_stages(unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield report


class _Lines_of_stages:
    """Plain lines: one at each change of stage, and every STAGE_SECONDS."""

    def __init__(self, unit: str) -> None:
        self._unit, self._stage, self._due = unit, "", 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == self._stage and time.monotonic() < self._due and done < total:
            return
        self._stage, self._due = stage, time.monotonic() + STAGE_SECONDS
        counted = f"{stage}: {done}/{total} {self._unit}" if total else stage
        print(counted, file=sys.stderr, flush=True)


# What `dograph plan` and `dograph compare` share: how settings are read and where runs go.


Workers = Annotated[
    int | None,
    typer.Option(help="runs at once (default: one a GPU, else one a core)", show_default=False),
]
On = Annotated[str, typer.Option(metavar="local|ray", help="this machine's processes, or Ray")]
RayAddress = Annotated[
    str | None, typer.Option(help="a running Ray cluster; without it one is started here")
]


def open_pool(device: str, on: str, workers: int | None, address: str | None) -> "Pool":
    """Where many runs are made, as --on, --workers and --ray-address say."""
    if on not in ("local", "ray"):
        raise ConfigError(f'--on={on}: allowed are "local" and "ray"')
    if on == "ray":
        from dograph.plan.ray_pool import RayPool

        return RayPool(address, workers=workers)
    if address is not None:
        raise ConfigError(f"--ray-address={address} needs --on ray")
    from dograph.plan.pool import LocalPool, default_workers

    return LocalPool(default_workers(device) if workers is None else workers)


def split_settings(settings: list[str]) -> tuple[str | None, list[str]]:
    """[CONFIG] [NAME=VALUE]... as the name and the overrides."""
    name = settings[0] if settings and "=" not in settings[0] else None
    return name, settings[1:] if name else settings


def command() -> str:
    """What was typed."""
    return shlex.join(["dograph", *sys.argv[1:]])
