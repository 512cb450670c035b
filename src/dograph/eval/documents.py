"""Documents of a task: from a folder of JSON Lines, or from the Hugging Face hub."""

import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from dograph.errors import ConfigError, CorpusError, require
from dograph.eval.tasks import Item, Task
from dograph.files import sha256_of

ENDINGS = (".jsonl", ".jsonl.xz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The documents of one task that are scored, and where they came from."""

    task: Task
    split: str
    rows: list[dict[str, Any]]  # of the task's columns alone
    available: int  # before a limit
    files: list[dict[str, Any]]  # name, sha256 and items of each; from the hub: name, fingerprint
    notes: list[str] = field(default_factory=list)

    @property
    def items(self) -> list[Item]:
        return [self.task.item(row) for row in self.rows]

    def limited(self, limit: int | None) -> "Documents":
        """At most `limit` documents, evenly spaced, so that every part of the task is in it.

        The harness' own limit takes the first ones, of which HellaSwag's are all ActivityNet.
        """
        if limit is None or limit >= len(self.rows):
            return self
        chosen = [k * len(self.rows) // limit for k in range(limit)]
        return replace(self, rows=[self.rows[k] for k in chosen])


def read_folder(folder: Path, task: Task) -> Documents:
    """`folder/<task>/<split>.jsonl`, or .jsonl.xz, then `<split>-*` in the order of their names."""
    place = folder / task.name
    split, files = task.split, _files(place, task.split)
    notes = []
    if not files and task.instead is not None:
        split, files = task.instead, _files(place, task.instead)
        notes.append(f"{task.name}: the {split} split, for want of {task.split}")
    if not files:
        raise CorpusError(
            f"{place} has no {task.split}.jsonl and no {task.split}.jsonl.xz; give --benchmarks a "
            f"folder laid out as <task>/<split>.jsonl, leave {task.name} out with --tasks, or "
            "leave --benchmarks out to read the hub"
        )
    rows, described = [], []
    for file in files:
        own = [_checked(row, task, f"{file}:{line}") for line, row in _lines(file)]
        rows += own
        name = file.relative_to(folder).as_posix()
        described.append({"file": name, "sha256": sha256_of(file), "items": len(own)})
    return _found(task, split, rows, described, notes)


def read_hub(task: Task) -> Documents:
    """The split that the harness scores, from the hub, or from the cache of an earlier visit."""
    datasets = require("datasets", "eval")
    name = f"{task.hub}{f' ({task.config})' if task.config else ''}"
    try:
        dataset = datasets.load_dataset(
            task.hub, task.config, split=task.split, revision=task.revision
        )
        rows = list(dataset.select_columns(list(task.columns)))
    # the library lets through what its file systems, parsers and network layers raise
    except Exception as error:
        raise CorpusError(
            f"cannot read {name} from the hub: {type(error).__name__}: {error}. Check the "
            "connection, or give a folder of local files: --benchmarks DIR"
        ) from error
    where = f"hf:{task.hub}@{task.split}"
    checked = [_checked(row, task, f"{where}, row {k}") for k, row in enumerate(rows)]
    described = [{"hub": name, "fingerprint": dataset._fingerprint, "items": len(rows)}]
    return _found(task, task.split, checked, described, [])


def parse_limits(text: str | None, tasks: list[Task]) -> dict[str, int | None]:
    """`200`, `hellaswag=500,copa=50`, or both: `200,hellaswag=500`; None: every item."""
    limits: dict[str, int | None] = dict.fromkeys((task.name for task in tasks), None)
    own: dict[str, int | None] = {}
    for part in (text or "").split(",") if text else []:
        name, _, number = part.strip().rpartition("=")
        if not number.removeprefix("-").isdecimal() or (name and name not in limits):
            raise ConfigError(
                f'--limit "{part}" is neither a number of items nor task=number; '
                f"the tasks of this call: {', '.join(limits)}"
            )
        if int(number) < 1:
            raise ConfigError(f'--limit "{part}" must be at least 1; leave it out for every item')
        if name:
            own[name] = int(number)
        else:
            limits = dict.fromkeys(limits, int(number))
    return limits | own


def _files(place: Path, split: str) -> list[Path]:
    first = [place / f"{split}{ending}" for ending in ENDINGS]
    found = [file for file in first if file.is_file()]
    if len(found) > 1:
        raise CorpusError(f"{found[0]} and {found[1]} may hold the same items; keep one of them")
    rest = [x for ending in ENDINGS for x in place.glob(f"{split}-*{ending}")]
    return found + sorted(rest)


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    with _opened(file) as stream:
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, json.loads(line)
        except (ValueError, lzma.LZMAError, EOFError) as error:
            raise CorpusError(f"{file} is damaged: {error}; fetch it again") from error


def _opened(file: Path) -> IO[str]:
    if file.suffix == ".xz":
        return lzma.open(file, "rt", encoding="utf-8")
    return open(file, encoding="utf-8")


def _checked(row: Any, task: Task, where: str) -> dict[str, Any]:
    """The row's own columns, after a trial that they make an item."""
    missing = [name for name in task.columns if not isinstance(row, Mapping) or name not in row]
    if missing:
        raise CorpusError(
            f"{where}: {task.name} needs {', '.join(task.columns)}; {', '.join(missing)} missing"
        )
    kept = {name: row[name] for name in task.columns}
    try:
        item = task.item(kept)
        if not 0 <= item.gold < len(item.pairs):
            raise ValueError(f"the gold answer is number {item.gold} of {len(item.pairs)}")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CorpusError(f"{where} is no item of {task.name}: {error!r}") from error
    return kept


def _found(
    task: Task,
    split: str,
    rows: list[dict[str, Any]],
    files: list[dict[str, Any]],
    notes: list[str],
) -> Documents:
    if not rows:
        raise CorpusError(f"{task.name}: its {split} split is empty; fetch it again")
    if len(rows) != task.size:
        notes = [*notes, f"{task.name}: the data have {len(rows)} items, the task {task.size}"]
    return Documents(
        task=task, split=split, rows=rows, available=len(rows), files=files, notes=notes
    )
