"""The nine tasks: from a document to the texts that a model is asked to compare.

Prompts, choices and gold answers are those of lm-evaluation-harness (0.4.12 and 0.4.13), without
examples in the prompt. A text is `context + continuation`; the model scores the continuation.
Between question and choice the harness puts one space, COPA's choices bring one of their own.
"""

import json
import lzma
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from dograph.errors import ConfigError, CorpusError, did_you_mean, require
from dograph.files import sha256_of

Document = Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark: where it is found, what it needs, how a document becomes an item."""

    name: str  # lm-evaluation-harness' own, and the folder's
    item: Callable[[Document], Item]
    columns: tuple[str, ...]
    hub: str
    config: str | None = None
    revision: str | None = None
    split: str  # the one that the harness scores
    instead: str | None = None  # a split to score where a folder lacks that one
    size: int  # items in the whole split
    normalised: bool = True  # whether the harness reports acc_norm
    cloze: bool = False  # no choices: right where every token is the likeliest

    @property
    def primary(self) -> str:
        """What enters the paper's average: normalised accuracy where available."""
        return "acc_norm" if self.normalised else "acc"


def _choice(context: str, choices: list[str], gold: int) -> Item:
    pairs = tuple((context, f" {choice}") for choice in choices)
    return Item(pairs, gold, tuple(len(choice) for choice in choices))


def _hellaswag(doc: Document) -> Item:
    context = f"{doc['activity_label']}: {doc['ctx_a']} {doc['ctx_b'].capitalize()}"
    return _choice(_cleaned(context), [_cleaned(x) for x in doc["endings"]], int(doc["label"]))


def _cleaned(text: str) -> str:
    """WikiHow's titles become sentences, other marks in brackets go."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _piqa(doc: Document) -> Item:
    return _choice(_asked(doc["goal"]), [doc["sol1"], doc["sol2"]], int(doc["label"]))


def _openbookqa(doc: Document) -> Item:
    gold = doc["choices"]["label"].index(doc["answerKey"].lstrip())
    return _choice(doc["question_stem"], doc["choices"]["text"], gold)


def _arc_easy(doc: Document) -> Item:
    gold = doc["choices"]["label"].index(doc["answerKey"])
    return _choice(_asked(doc["question"]), doc["choices"]["text"], gold)


def _sciq(doc: Document) -> Item:
    context = f"{doc['support'].lstrip()}\n{_asked(doc['question'])}"
    return _choice(context, [*(doc[name] for name in _WRONG), doc["correct_answer"]], 3)


def _asked(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _copa(doc: Document) -> Item:
    connector = {"cause": "because", "effect": "therefore"}[doc["question"]]
    choices = [f" {x[0].lower()}{x[1:]}" for x in (doc["choice1"], doc["choice2"])]
    return _choice(f"{doc['premise'].strip()[:-1]} {connector}", choices, int(doc["label"]))


def _logiqa(doc: Document) -> Item:
    options = "".join(f"{letter}. {x}\n" for letter, x in zip("ABCD", doc["options"], strict=True))
    context = f"Passage: {doc['context']}\nQuestion: {doc['question']}\nChoices:\n{options}Answer:"
    return _choice(context, doc["options"], "abcd".index(doc["label"].strip()))


def _winogrande(doc: Document) -> Item:
    """Partial scoring: each option fills the blank, and what follows the blank is scored."""
    blank = doc["sentence"].index("_")
    before, after = doc["sentence"][:blank], doc["sentence"][blank + 1 :].strip()
    contexts = [before + doc["option1"], before + doc["option2"]]
    pairs = tuple((context, f" {after}") for context in contexts)
    return Item(pairs, {"1": 0, "2": 1}[doc["answer"]], tuple(len(x) for x in contexts))


def _lambada(doc: Document) -> Item:
    context, _, word = doc["text"].rpartition(" ")
    return Item(((context, f" {word}"),), 0, (len(word),))


_WRONG = ("distractor1", "distractor2", "distractor3")
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="hellaswag",
            item=_hellaswag,
            columns=("activity_label", "ctx_a", "ctx_b", "endings", "label"),
            hub="Rowan/hellaswag",
            split="validation",
            size=10_042,
        ),
        Task(
            name="piqa",
            item=_piqa,
            columns=("goal", "sol1", "sol2", "label"),
            hub="baber/piqa",
            split="validation",
            size=1838,
        ),
        Task(
            name="openbookqa",
            item=_openbookqa,
            columns=("question_stem", "choices", "answerKey"),
            hub="allenai/openbookqa",
            config="main",
            split="test",
            size=500,
        ),
        Task(
            name="lambada_openai",
            item=_lambada,
            columns=("text",),
            hub="EleutherAI/lambada_openai",
            config="default",
            split="test",
            size=5153,
            normalised=False,
            cloze=True,
        ),
        Task(
            name="sciq",
            item=_sciq,
            columns=("support", "question", *_WRONG, "correct_answer"),
            hub="allenai/sciq",
            split="test",
            instead="validation",
            size=1000,
        ),
        Task(
            name="arc_easy",
            item=_arc_easy,
            columns=("question", "choices", "answerKey"),
            hub="allenai/ai2_arc",
            config="ARC-Easy",
            split="test",
            size=2376,
        ),
        Task(
            name="copa",
            item=_copa,
            columns=("premise", "choice1", "choice2", "question", "label"),
            hub="aps/super_glue",
            config="copa",
            split="validation",
            size=100,
            normalised=False,
        ),
        Task(
            name="logiqa",
            item=_logiqa,
            columns=("label", "context", "question", "options"),
            hub="EleutherAI/logiqa",
            config="logiqa",
            # The repository holds a script, which `datasets` no longer runs; the hub converts it.
            revision="refs/convert/parquet",
            split="test",
            size=651,
        ),
        Task(
            name="winogrande",
            item=_winogrande,
            columns=("sentence", "option1", "option2", "answer"),
            hub="allenai/winogrande",
            config="winogrande_xl",
            split="validation",
            size=1267,
            normalised=False,
        ),
    )
}


def pick_tasks(names: list[str] | None) -> list[Task]:
    """Tasks by name, in the order of the paper's tables; all nine without names."""
    for name in names or []:
        if name not in TASKS:
            raise ConfigError(f'there is no task "{name}"; {did_you_mean(name, TASKS)}')
    return [task for task in TASKS.values() if not names or task.name in names]


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
    return _complete(Documents(task, split, rows, len(rows), described, notes))


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
    return _complete(Documents(task, task.split, checked, len(checked), described))


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
    opened: Callable[..., IO[str]] = lzma.open if file.suffix == ".xz" else open
    with opened(file, "rt", encoding="utf-8") as stream:
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, json.loads(line)
        except (ValueError, lzma.LZMAError, EOFError) as error:
            raise CorpusError(f"{file} is damaged: {error}; fetch it again") from error


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


def _complete(found: Documents) -> Documents:
    """The documents, with a note where they are not as many as the task has."""
    if not found.rows:
        raise CorpusError(f"{found.task.name}: its {found.split} split is empty; fetch it again")
    if (num := len(found.rows)) != found.task.size:
        told = f"{found.task.name}: the data have {num} items, the task {found.task.size}"
        return replace(found, notes=[*found.notes, told])
    return found
