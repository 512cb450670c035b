"""The nine tasks: from a document to the texts that a model is asked to compare.

Prompts, choices and gold answers are those of lm-evaluation-harness (0.4.12 and 0.4.13), without
examples in the prompt. A text is `context + continuation`; the model scores the continuation.
Between question and choice the harness puts one space, COPA's choices bring one of their own.
"""

import inspect
import json
import lzma
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from dograph.errors import ConfigError, CorpusError, did_you_mean, require
from dograph.files import sha256_of


@dataclass(frozen=True, slots=True)
class Item:
    """One question: texts to compare, which of them is right, and how long each answer is."""

    pairs: tuple[tuple[str, str], ...]  # context, continuation
    gold: int
    lengths: tuple[int, ...]  # characters of each choice, by which acc_norm divides

    @property
    def gold_bytes(self) -> int:
        """UTF-8 bytes of the gold answer, without the white space that leads to it."""
        return max(1, len(self.pairs[self.gold][1].lstrip().encode()))


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark: where it is found, what it needs, how a document becomes an item."""

    name: str  # lm-evaluation-harness' own, and the folder's
    ask: Callable[..., Item]  # from the values of the columns
    columns: tuple[str, ...]
    hub: str
    config: str | None
    split: str  # the one that the harness scores
    size: int  # items in the whole split
    revision: str | None = None
    instead: str | None = None  # a split to score where a folder lacks that one
    normalised: bool = True  # whether the harness reports acc_norm
    cloze: bool = False  # no choices: right where every token is the likeliest

    @property
    def primary(self) -> str:
        """What enters the paper's average: normalised accuracy where available."""
        return "acc_norm" if self.normalised else "acc"

    def item(self, document: Mapping[str, Any]) -> Item:
        return self.ask(**{name: document[name] for name in self.columns})


TASKS: dict[str, Task] = {}  # in the order of the paper's tables


def _task(
    hub: str, config: str | None, split: str, size: int, **more: Any
) -> Callable[[Callable[..., Item]], Callable[..., Item]]:
    """Enter a function in TASKS under its name; its parameters are the columns that it needs."""

    def enter(ask: Callable[..., Item]) -> Callable[..., Item]:
        columns = tuple(inspect.signature(ask).parameters)
        TASKS[ask.__name__] = Task(ask.__name__, ask, columns, hub, config, split, size, **more)
        return ask

    return enter


def _choice(context: str, choices: Sequence[str], gold: int) -> Item:
    pairs = tuple((context, f" {choice}") for choice in choices)
    return Item(pairs, gold, tuple(len(choice) for choice in choices))


def _asked(question: str) -> str:
    return f"Question: {question}\nAnswer:"


@_task("Rowan/hellaswag", None, "validation", 10_042)
def hellaswag(activity_label: str, ctx_a: str, ctx_b: str, endings: list[str], label: str) -> Item:
    def cleaned(text: str) -> str:
        """WikiHow's titles become sentences, other marks in brackets go."""
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ")

    context = cleaned(f"{activity_label}: {ctx_a} {ctx_b.capitalize()}")
    return _choice(context, [cleaned(ending) for ending in endings], int(label))


@_task("baber/piqa", None, "validation", 1838)
def piqa(goal: str, sol1: str, sol2: str, label: int) -> Item:
    return _choice(_asked(goal), [sol1, sol2], int(label))


@_task("allenai/openbookqa", "main", "test", 500)
def openbookqa(question_stem: str, choices: dict[str, list[str]], answerKey: str) -> Item:
    return _choice(question_stem, choices["text"], choices["label"].index(answerKey.lstrip()))


@_task("EleutherAI/lambada_openai", "default", "test", 5153, normalised=False, cloze=True)
def lambada_openai(text: str) -> Item:
    context, _, word = text.rpartition(" ")
    return Item(((context, f" {word}"),), 0, (len(word),))


@_task("allenai/sciq", None, "test", 1000, instead="validation")
def sciq(
    support: str,
    question: str,
    distractor1: str,
    distractor2: str,
    distractor3: str,
    correct_answer: str,
) -> Item:
    choices = [distractor1, distractor2, distractor3, correct_answer]
    return _choice(f"{support.lstrip()}\n{_asked(question)}", choices, 3)


@_task("allenai/ai2_arc", "ARC-Easy", "test", 2376)
def arc_easy(question: str, choices: dict[str, list[str]], answerKey: str) -> Item:
    return _choice(_asked(question), choices["text"], choices["label"].index(answerKey))


@_task("aps/super_glue", "copa", "validation", 100, normalised=False)
def copa(premise: str, choice1: str, choice2: str, question: str, label: int) -> Item:
    connector = {"cause": "because", "effect": "therefore"}[question]
    choices = [f" {choice[0].lower()}{choice[1:]}" for choice in (choice1, choice2)]
    return _choice(f"{premise.strip()[:-1]} {connector}", choices, int(label))


# The repository holds a script, which `datasets` no longer runs; the hub converts it.
@_task("EleutherAI/logiqa", "logiqa", "test", 651, revision="refs/convert/parquet")
def logiqa(label: str, context: str, question: str, options: list[str]) -> Item:
    lettered = "".join(f"{letter}. {x}\n" for letter, x in zip("ABCD", options, strict=True))
    asked = f"Passage: {context}\nQuestion: {question}\nChoices:\n{lettered}Answer:"
    return _choice(asked, options, "abcd".index(label.strip()))


@_task("allenai/winogrande", "winogrande_xl", "validation", 1267, normalised=False)
def winogrande(sentence: str, option1: str, option2: str, answer: str) -> Item:
    """Partial scoring: each option fills the blank, and what follows the blank is scored."""
    blank = sentence.index("_")
    contexts = [sentence[:blank] + option for option in (option1, option2)]
    pairs = tuple((context, f" {sentence[blank + 1 :].strip()}") for context in contexts)
    return Item(pairs, {"1": 0, "2": 1}[answer], tuple(len(context) for context in contexts))


def pick_tasks(names: Sequence[str] | None) -> list[Task]:
    """Tasks by name, in the order of the paper's tables; all nine without names."""
    for name in names or []:
        if name not in TASKS:
            raise ConfigError(f'there is no task "{name}"; {did_you_mean(name, TASKS)}')
    return [task for task in TASKS.values() if not names or task.name in names]


def parse_limits(text: str | None, tasks: Sequence[Task]) -> dict[str, int | None]:
    """`200`, `hellaswag=500,copa=50`, or both: `200,hellaswag=500`; None: every item."""
    limits: dict[str, int | None] = dict.fromkeys((task.name for task in tasks), None)
    own: dict[str, int | None] = {}
    for part in text.split(",") if text else []:
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


# Documents of a task: from a folder of JSON Lines, or from the Hugging Face hub.


ENDINGS = (".jsonl", ".jsonl.xz")


@dataclass(frozen=True, slots=True)
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
    split, files, notes = task.split, _files(place, task.split), []
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
        opened: Callable[..., IO[str]] = lzma.open if file.suffix == ".xz" else open
        try:
            with opened(file, "rt", encoding="utf-8") as stream:
                lines = {n: json.loads(x) for n, x in enumerate(stream, start=1) if x.strip()}
        except (ValueError, lzma.LZMAError, EOFError) as error:
            raise CorpusError(f"{file} is damaged: {error}; fetch it again") from error
        rows += [_checked(row, task, f"{file}:{line}") for line, row in lines.items()]
        name = file.relative_to(folder).as_posix()
        described.append({"file": name, "sha256": sha256_of(file), "items": len(lines)})
    return _complete(task, split, rows, described, notes)


def _files(place: Path, split: str) -> list[Path]:
    first = [place / f"{split}{ending}" for ending in ENDINGS]
    found = [file for file in first if file.is_file()]
    if len(found) > 1:
        raise CorpusError(f"{found[0]} and {found[1]} may hold the same items; keep one of them")
    return found + sorted(x for ending in ENDINGS for x in place.glob(f"{split}-*{ending}"))


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
    return _complete(task, task.split, checked, described, [])


def _checked(row: Any, task: Task, where: str) -> dict[str, Any]:
    """The row's own columns, after a trial that they make an item."""
    missing = [name for name in task.columns if not isinstance(row, Mapping) or name not in row]
    if missing:
        raise CorpusError(
            f"{where}: {task.name} needs {', '.join(task.columns)}; {', '.join(missing)} missing"
        )
    try:
        item = task.item(row)
        if not 0 <= item.gold < len(item.pairs):
            raise ValueError(f"the gold answer is number {item.gold} of {len(item.pairs)}")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CorpusError(f"{where} is no item of {task.name}: {error!r}") from error
    return {name: row[name] for name in task.columns}


def _complete(
    task: Task,
    split: str,
    rows: list[dict[str, Any]],
    files: list[dict[str, Any]],
    notes: list[str],
) -> Documents:
    """The documents, with a note where they are not as many as the task has."""
    if not rows:
        raise CorpusError(f"{task.name}: its {split} split is empty; fetch it again")
    if len(rows) != task.size:
        notes = [*notes, f"{task.name}: the data have {len(rows)} items, the task {task.size}"]
    return Documents(task, split, rows, len(rows), files, notes)
