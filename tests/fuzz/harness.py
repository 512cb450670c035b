"""Random inputs for everything that reads one: no traceback, no hang, no wrong result in silence.

A module `inputs_*.py` in this folder registers targets, each a pair of functions:

    register("mixtures", inputs, run, share=2)

`inputs(rng)` makes a case from a `random.Random`: plain values that say all there is to know about
it. `run(case, folder)` tries it in an empty folder. It may return, after asserting that the result
is right; it may raise a DographError, whose message is judged; any other exception is a failure,
and so are `SECONDS` of computing. `command(...)` runs a command line and judges how it ends.
`damaged` changes the bytes of a file as disks, editors and kills do.
"""

import contextlib
import importlib
import io
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from dograph.cli import main
from dograph.errors import DographError

SECONDS = 20.0  # of computing, for one case
LINES = 12  # of a traceback, in a report


@dataclass(frozen=True)
class Target:
    """Something that reads inputs."""

    name: str
    inputs: Callable[[random.Random], Any]
    run: Callable[[Any, Path], None]
    share: float  # of all inputs, relative to the other targets


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    code: int
    out: str
    err: str


TARGETS: dict[str, Target] = {}


def register(
    name: str,
    inputs: Callable[[random.Random], Any],
    run: Callable[[Any, Path], None],
    *,
    share: float = 1.0,
) -> None:
    TARGETS[name] = Target(name, inputs, run, share)


def find_targets() -> dict[str, Target]:
    """All targets of this folder, by name."""
    for file in sorted(Path(__file__).parent.glob("inputs_*.py")):
        importlib.import_module(f"fuzz.{file.stem}")
    return TARGETS


class TookTooLong(BaseException):
    """Not an Exception, so that nothing on the way handles it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong after so many seconds of computing by this process."""

    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def fault_of(message: str) -> str | None:
    """What is wrong with an error message: it must say what was given, and what to do."""
    if "Traceback" in message:
        return "a traceback"
    if len(message) < 30 or not re.search(r"[:;,.?] \S", message):
        return "too short: what was given, what is allowed, what to do?"
    return None


def command(*arguments: object, allowed: tuple[int, ...] = (0, 1, 2)) -> Ending:
    """Run a command in this process; asserts that it ends as allowed, with a good message."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    typed = ["dograph", *(str(argument) for argument in arguments)]
    with (
        mock.patch.object(sys, "argv", typed),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main.main()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    ending = Ending(code, out.getvalue(), err.getvalue())
    assert code in allowed, f"exit code {code}: {ending.err}"
    if code == 2:
        fault = fault_of(ending.err)
        assert fault is None, f"{fault}: {ending.err!r}"
    return ending


def try_case(target: Target, number: int, seed: int) -> str | None:
    """Run a case; what went wrong, with how to repeat it, or None."""
    rng = random.Random(f"{seed} {target.name} {number}")
    case = target.inputs(rng)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        with contextlib.chdir(folder), time_limit(SECONDS):
            target.run(case, folder)
        return None
    except DographError as error:
        fault = fault_of(str(error))
        if fault is None:
            return None
        found = f"{fault}: {error}"
    except TookTooLong:
        found = f"more than {SECONDS:g} s"
    except Exception:
        found = "\n".join(traceback.format_exc().splitlines()[-LINES:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return f"{target.name} {number}, seed {seed}: {str(case)[:1000]}\n{found}"


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with one kind of damage."""
    size = len(content)
    first, second = sorted((rng.randrange(size + 1), rng.randrange(size + 1)))
    lines = content.splitlines(keepends=True)
    kind = rng.randrange(10)
    if kind == 0:
        return b""
    if kind == 1 or not size:
        return rng.randbytes(rng.choice((1, 16, 300)))
    if kind == 2:  # cut off
        return content[:first]
    if kind == 3:  # a hole of zeros, as after a crash of the machine
        return content[:first] + bytes(second - first) + content[second:]
    if kind == 4:  # a flipped bit
        place = min(first, size - 1)
        return (
            content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        )
    if kind == 5:  # a part twice
        return content[:second] + content[first:]
    if kind == 6:  # a part lost
        return content[:first] + content[second:]
    if kind == 7:  # foreign bytes
        return content[:first] + rng.randbytes(rng.randrange(1, 20)) + content[first:]
    if kind == 8:  # lines in another order, one of them lost
        rng.shuffle(lines)
        return b"".join(lines[1:])
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content[:100_000]))
    if not numbers:
        return content[first:]
    one = rng.choice(numbers)
    return content[: one.start()] + rng.choice(NUMBERS).encode() + content[one.end() :]


NUMBERS = ("-1", "0", "1e999", "NaN", "-Infinity", "null", "true", '"7"', "99999999999999999999")
NUMBERS += ("1.5", "9223372036854775808", "[]", "{}", "1e-320", "2147483648")
# Values as they are typed after a name, or stand in a YAML file.
VALUES = (*NUMBERS, "", "~", "yes", ".inf", "-.inf", ".nan", "0x10", "1_000", "1e3", "-0.0")
VALUES += ("0x" + 5000 * "f", 5000 * "9", "2024-01-01", "2024-13-45", "!!python/object:os.system x")
VALUES += (
    "&a [*a]",
    "&a {b: *a}",
    "[[[[]]]]",
    300 * "[",
    "{a: {b: {c: 1}}}",
    "'unclosed",
    "a: b: c",
)
VALUES += (
    300 * "x",
    "a/b/../c",
    "\0",
    "\ud800",
    "ü",
    "\u202e",
    "- 1",
    "*none",
    "!!binary ////",
    "<<",
)
VALUES += ("[1, two, 3.0]", "{1: 2}", "{null: 1}", "? [1]", "%", "@x", "`", "0o17", "1:30", "=")


def value(rng: random.Random) -> str:
    """A value that a setting may or may not take."""
    if rng.random() < 0.8:
        return rng.choice(VALUES)
    if rng.random() < 0.5:
        return str(rng.choice((rng.randrange(-3, 300), rng.gauss(0, 1), 10 ** rng.randrange(25))))
    return "".join(rng.choices("[]{}:,#&*!|>'\"%@- \t\nabc019.~", k=rng.randrange(1, 12)))
