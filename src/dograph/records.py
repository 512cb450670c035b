"""Reads the record files of runs; what is damaged is skipped, counted and named.

metrics.jsonl, samples.jsonl, graph.jsonl, validation.jsonl, weights.jsonl and edits.jsonl have one
JSON object per line and may be larger than memory; env.json, eval.json, compare.json and probes are
one object. A crash, a full disk or a hand can leave lines cut, overwritten or filled with zeros.
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dograph.renamed import with_new_metrics

LONGEST = 2**26  # bytes of a line; zeros without an end must not fill the memory
NEWEST = 100  # lines in which the last whole one is looked for
NAMED = 3  # damaged lines of a file that are named
MOST_STEPS = 2**53
# What a parser raises on a value that it did not write.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
Row = dict[str, float]
Parsed = TypeVar("Parsed")
Parse = Callable[[dict[str, Any]], Parsed]  # raises any of DAMAGE if it cannot
Wanted = Callable[[bytes], bool] | None


@dataclass(slots=True)
class Skipped:
    """The damaged lines and files that readers skipped."""

    counts: dict[Path, int] = field(default_factory=dict)
    named: dict[Path, list[str]] = field(default_factory=dict)  # the first few of each file
    unfinished: dict[Path, int] = field(default_factory=dict)  # number of an incomplete last line
    notes: list[str] = field(default_factory=list)  # further warnings: gaps, runs left out

    def add(self, path: Path, error: Exception, line: int | None = None) -> None:
        """Count a line, or the whole file."""
        why = _reason(error)
        self.counts[path] = self.counts.get(path, 0) + 1
        named = self.named.setdefault(path, [])
        if len(named) < NAMED:
            named.append(why if line is None else f"line {line}: {why}")

    def warnings(self, *, live: bool = False) -> list[str]:
        """One sentence per file; a live run may still be writing an incomplete last line."""
        texts = []
        for path, count in self.counts.items():
            what = "1 damaged record" if count == 1 else f"{count} damaged records"
            more = "; ..." if count > NAMED else ""
            texts.append(f"{path}: skipped {what} ({'; '.join(self.named[path])}{more})")
        if not live:
            for path, line in self.unfinished.items():
                texts.append(f"{path}: skipped line {line}, the last, which is incomplete")
        return texts + self.notes


def read_lines(
    path: Path, parse: Parse[Parsed], skipped: Skipped | None = None, wanted: Wanted = None
) -> Iterator[Parsed]:
    """The records of a JSON Lines file, one at a time; none if there is no file.

    `parse` makes a record of an object. `wanted` looks at a line before it is parsed: parsing takes
    most of the time of a long file.
    """
    skipped = skipped or Skipped()
    yield from _parsed(_wanted_lines(path, skipped, wanted), path, parse, skipped)


def read_last(
    path: Path, parse: Parse[Parsed], skipped: Skipped | None = None, wanted: Wanted = None
) -> Parsed | None:
    """The last record that is not damaged; only the last few lines are parsed."""
    skipped = skipped or Skipped()
    newest = deque(_wanted_lines(path, skipped, wanted), maxlen=NEWEST)
    return next(_parsed(reversed(newest), path, parse, skipped), None)


def read_steps(path: Path) -> Iterator[tuple[int, int]]:
    """Of each whole line: where it ends, in bytes, and its step; damaged ones are left out."""
    if path.is_file():
        with open(path, "rb") as file:
            while line := file.readline(LONGEST):
                with suppress(*DAMAGE):
                    step = step_of(line)  # else of another program, or damaged
                    step = checked_step(parse_object(line)) if step is None else step
                    if line.endswith(b"\n"):
                        yield file.tell(), step


def _parsed(
    lines: Iterable[tuple[int, bytes]], path: Path, parse: Parse[Parsed], skipped: Skipped
) -> Iterator[Parsed]:
    for number, line in lines:
        try:
            record = parse(parse_object(line))
        except DAMAGE as error:
            skipped.add(path, error, number)
        else:
            yield record


def _wanted_lines(path: Path, skipped: Skipped, wanted: Wanted) -> Iterator[tuple[int, bytes]]:
    """Complete lines and their numbers; none if there is no file."""
    number = 0
    try:
        with open(path, "rb") as file:
            while line := file.readline(LONGEST):
                number += 1
                rest = line
                while len(rest) == LONGEST and not rest.endswith(b"\n"):
                    rest = file.readline(LONGEST)
                    line = line[:80] + rest[-1:]  # damaged, and complete if it has an end
                if not line.endswith(b"\n"):
                    skipped.unfinished[path] = number
                elif wanted is None or wanted(line):
                    yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        skipped.add(path, error)


def read_record(path: Path, parse: Parse[Parsed], skipped: Skipped | None = None) -> Parsed | None:
    """The record in a JSON file; None if there is no file, or if it is damaged."""
    try:
        return parse(parse_object(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGE) as error:
        if skipped is not None:
            skipped.add(path, error)
        return None


def read_metrics(
    path: Path, skipped: Skipped | None = None, wanted: Wanted = None
) -> Iterator[Row]:
    """The rows of metrics.jsonl."""
    return read_lines(path, metrics_row, skipped, wanted)


def metrics_row(values: dict[str, Any]) -> Row:
    """Numbers by name, one of them the step."""
    checked_step(values)
    row = unpacked(values)
    sum(row.values(), 0.0)  # the fastest check that all are numbers, and none beyond a float
    return row


def unpacked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics and graphs under the names of docs/runs.md, from the compact form on disk.

    There a quantity of all domains is one list, and so is a field of all nodes or edges. Values by
    source are one object, with * for the source in its name. Perplexity is not written: it follows
    from the loss.
    """
    row: dict[str, Any] = {}
    for name, value in values.items():
        if value.__class__ is list and "/" in name:
            area, _, quantity = name.partition("/")
            row |= {f"{area}/{j}/{quantity}": one for j, one in enumerate(value)}
        elif value.__class__ is dict and "*" in name:
            row |= unpacked({name.replace("*", own, 1): one for own, one in value.items()})
        elif value.__class__ is dict and name in ("nodes", "edges"):
            fields = zip(*value.values(), strict=True)
            row[name] = [dict(zip(value, one, strict=True)) for one in fields]
        else:
            row[name] = value
            if name.endswith("/loss_nats"):
                row[f"{name.removesuffix('loss_nats')}ppl"] = math.exp(min(value, 700.0))
    return row


def checked_step(values: dict[str, Any]) -> int:
    """The step of a record."""
    step = values["step"]
    if step.__class__ is not int or not 0 <= step <= MOST_STEPS:
        raise ValueError(f"step is {str(step)[:20]!r}, not a whole number")
    return int(step)


def step_of(line: bytes) -> int | None:
    """The step of a line that starts with it, as ours do, without parsing the line."""
    match = re.match(rb'{"step": ?(\d{1,16})[,}]', line)
    return None if match is None else int(match[1])


def parse_object(text: bytes) -> dict[str, Any]:
    """The object in a line or a file; raises one of `DAMAGE` if there is none."""
    values = json.loads(with_new_metrics(text).decode())
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    if b"\\u" in text:  # half of a surrogate pair could not be printed
        json.dumps(values, ensure_ascii=False).encode()
    return values


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """The same object; raises if a number of it is infinite or NaN, which pages cannot show."""
    json.dumps(values, allow_nan=False)
    return values


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON from character {error.pos} on"
    if isinstance(error, UnicodeError):
        return "not UTF-8"
    if isinstance(error, KeyError):
        return f"no {error.args[0]}"
    if isinstance(error, OSError):
        return error.strerror or "cannot be read"
    return (str(error).splitlines() or [type(error).__name__])[0][:80]


class StepGaps:
    """Finds steps without rows: every step has one."""

    def __init__(self) -> None:
        self.last = 0
        self.found: list[tuple[int, int]] = []  # first and last step that is missing

    def add(self, step: int) -> None:
        if step > self.last + 1:
            self.found.append((self.last + 1, step - 1))
        self.last = max(self.last, step)

    def warnings(self, path: Path) -> list[str]:
        """One sentence, if there are gaps."""
        if not self.found:
            return []
        shown = [f"{a} to {b}" if b > a else str(a) for a, b in self.found[:NAMED]]
        more = f" and {len(self.found) - NAMED} more gaps" if len(self.found) > NAMED else ""
        return [f"{path} has no rows of steps {', '.join(shown)}{more}: they are lost"]
