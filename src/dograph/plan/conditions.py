"""What a job runs under: alone in its folder, with one thread, printing to a log of its own."""

import contextlib
import fcntl
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dograph.errors import RunError

WAIT_SECONDS = 0.2
FREE_SECONDS = 120.0  # how long a run that another process holds is waited for


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep a run to one job: another that wants the same waits, however long, and finds it made.

    The claim lies beside the run, which may not be there yet; a process that dies lets it go.
    """
    with open(path.with_name(f".{path.name}.claim"), "a") as file:
        waits = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not waits:
                    print(f"another process makes {path}; waiting for it")
                waits = True
                time.sleep(WAIT_SECONDS)
        yield


def wait_until_free(path: Path) -> None:
    """Somebody trains it by hand, or a worker whose parent was killed is saving it."""
    deadline = time.monotonic() + FREE_SECONDS
    while (path / ".lock").is_file() and _is_held(path / ".lock"):
        if time.monotonic() > deadline:
            raise RunError(
                f"{path} has been in use by another process for {FREE_SECONDS:.0f} s; wait for it "
                "to end, then the same command goes on"
            )
        time.sleep(WAIT_SECONDS)


def _is_held(lock: Path) -> bool:
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    if device.type != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """What is printed meanwhile goes to a file: many jobs share one terminal."""
    with (
        open(path, "a", encoding="utf-8", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        try:
            yield
        except Exception:
            traceback.print_exc(file=sys.stderr)
            raise
