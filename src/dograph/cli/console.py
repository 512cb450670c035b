"""Shared by the commands: options, settings, tables, progress, where many runs are trained."""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dograph.errors import ConfigError
from dograph.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

    from dograph.config import RunConfig
    from dograph.data.pipeline import PreparationProgress as Preparing
    from dograph.plan.pool import Pool

PIPE_WIDTH = 200  # characters, for pipes and files: a narrower table would lose its end
Record = TypeVar("Record")


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    """An option as the default of a parameter; `...` if it must be given."""
    return typer.Option(default, *names, help=help, **more)


def argument(default: Any, help: str, metavar: str | None = None) -> Any:
    """An argument as the default of a parameter; `...` if it must be given."""
    return typer.Argument(default, help=help, metavar=metavar)


CONFIG = "[CONFIG] [NAME=VALUE]..."
WORKERS = option(None, "runs at the same time (default: one per GPU, else one per core)")
ON = option(
    "local",
    "where runs are trained: processes of this machine, or a Ray cluster; ray: the cluster of "
    "$RAY_ADDRESS, else one that is started for this command",
    metavar="local|ray|ray://HOST:PORT",
)
PROXY = option(None, "a setting of the proxies of plans; may be repeated", metavar="NAME=VALUE")
LAB = option(Path("runs/lab"), "folder that keeps the proxies of plans, to be used again")
DRY_RUN = option(False, "print the cost and stop", "--dry-run")
# Of the commands that score downstream tasks.
BENCHMARKS = option(None, "folder with TASK/SPLIT.jsonl or .jsonl.xz (default: from the hub)")
TASKS = option(None, "some of the nine tasks, separated by commas")
LIMIT = option(None, "items of each task, evenly spaced (default: all)", min=1)
USING = option("builtin", "scorer: builtin, or lm-eval (pip install 'dograph\\[eval]')", "--with")
BATCH_SIZE = option(32, "texts scored at the same time", min=1)
SEEDS = "how many, or which: 5, or 10,11,12"


def options_as(kind: type[Record], given: dict[str, Any], **own: Any) -> Record:
    """A dataclass from a command's options of the same names; options not given keep defaults."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    known = {name: given[name] for name in names if given.get(name) is not None}
    known = {n: tuple(value) if isinstance(value, list) else value for n, value in known.items()}
    return kind(**known | own)


def open_console(width: int = PIPE_WIDTH) -> "Console":
    """Standard output for tables, `width` characters wide if it is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str]],
    left: Sequence[str] = ("source",),
    **style: Any,
) -> None:
    """Print a table of plain text; columns not in `left` are right-aligned and never wrapped."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(**style)
    for column in columns:
        is_number = column not in left
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        table.add_row(*map(escape, row))
    open_console().print(table)


def say(text: str) -> None:
    """Print a line to standard error, unbuffered."""
    print(text, file=sys.stderr, flush=True)


def warn(texts: Iterable[str], kind: str = "warning") -> None:
    """Print a line for each text to standard error."""
    for text in texts:
        say(f"{kind}: {text}")


def require_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before the work and not after it."""
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


@contextmanager
def preparing() -> Iterator[Callable[["Preparing"], None]]:
    """A function that shows the progress of a preparation."""
    first: tuple[float, Preparing] | None = None

    def report(now: "Preparing") -> None:
        nonlocal first  # speeds count from here, not from the start of a resumed preparation
        first = first or (time.monotonic(), now)
        seconds, begun = max(time.monotonic() - first[0], 1e-9), first[1]
        seen = now.text_bytes + now.unkept_bytes
        speed = (seen - begun.text_bytes - begun.unkept_bytes) / seconds
        notes = []
        if seen:
            if now.total_bytes:
                notes.append(f"{100 * now.read_bytes / now.total_bytes:.0f} % read")
            kept = f"kept {now.text_bytes / 2**20:.1f} of " if now.unkept_bytes else ""
            every = f" of {now.documents + now.unkept_documents:,}" if now.unkept_documents else ""
            notes.append(f"{kept}{seen / 2**20:.1f} MiB, {now.documents:,}{every} documents")
            notes.append(f"{now.tokens:,} tokens")
        if speed > 0:  # 0 at first, and negative in a stage that counts no text
            tokens = (now.tokens - begun.tokens) / seconds
            notes.append(f"{speed / 2**20:.2f} MiB/s, {tokens:,.0f} tokens/s")
        display.update(now.read_bytes, ", ".join(notes), stage=now.stage, total=now.total_bytes)

    with Progress(line_seconds=10.0) as display:
        yield report


@contextmanager
def stages(unit: str, *, live: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows the progress of work in stages, counted in `unit`."""
    with Progress(f"{{done}}/{{total}} {unit}", live=live, transient=True) as display:
        yield lambda stage, done, total: display.update(done, stage=stage, total=total)


def ensured(name: str) -> Path:
    """The folder of a corpus; an embedded one is prepared first, with its progress shown."""
    from dograph.data.pipeline import ensure_corpus

    with preparing() as report:
        return ensure_corpus(name, report)


def with_corpus(config: "RunConfig", *, resolve: bool = False) -> "RunConfig":
    """The configuration with the folder of its corpus, prepared if it is an embedded one."""
    folder = ensured(config.data.corpus)
    data = config.data.model_copy(update={"corpus": str(folder.resolve() if resolve else folder)})
    return config.model_copy(update={"data": data})


def open_pool(device: str, on: str, workers: int | None) -> "Pool":
    """Where many runs are trained, as --on and --workers say."""
    if on == "ray" or on.startswith("ray://"):
        from dograph.plan.pool import RayPool

        address = {"ray": None, "ray://auto": "auto"}.get(on, on)
        return RayPool(address, workers=workers)
    if on != "local":
        raise ConfigError(f"--on={on}: allowed are local, ray and ray://HOST:PORT")
    from dograph.plan.pool import LocalPool, default_workers

    return LocalPool(default_workers(device) if workers is None else workers)


@contextmanager
def stoppable(kept: str) -> Iterator[None]:
    """Around many runs: if a signal stops them, say where finished ones are, and exit."""
    from dograph.plan.jobs import Stopped

    try:
        yield
    except Stopped as stopped:
        say(f"{stopped}; {kept}")
        sys.exit(128 + stopped.number)


def print_page(folder: Path) -> None:
    """Write the page of a finished run or comparison into its folder, and print its name.

    An error here is only a warning: training is complete, and its files are written.
    """
    from dograph.report.render import PAGE, write_page

    out = folder / PAGE
    try:
        write_page([folder], out)
        print(f"page: {out}")
    except Exception as error:  # must not turn a finished run into a failed one
        why = f"the page could not be written ({type(error).__name__}: {error})"
        warn([f"{why}; try: dograph report {folder} --out {out}"])


def split_settings(settings: list[str]) -> tuple[str | None, list[str]]:
    """[CONFIG] [NAME=VALUE]... as the name (or None) and the settings."""
    name = settings[0] if settings and "=" not in settings[0] else None
    return name, settings[1:] if name else settings


def chosen_settings(settings: Sequence[str] | None, fields: Mapping[str, str]) -> dict[str, Any]:
    """Checked values of NAME=VALUE, under the names of a request's `fields` by setting."""
    from dograph.config import resolve_config

    names = [setting.partition("=")[0] for setting in settings or []]
    for name, setting in zip(names, settings or [], strict=True):
        if name not in fields:
            raise ConfigError(f'"{setting}": the settings of this command are {", ".join(fields)}')
    config = resolve_config(None, settings or [])
    return {fields[name]: reduce(getattr, name.split("."), config) for name in names}


def split_names(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",")) if names else ()


def command() -> str:
    """The command line as typed."""
    return shlex.join(["dograph", *sys.argv[1:]])
