"""The nine tasks: how a document becomes the texts that a model compares, and where it is read.

Prompts, choices and gold answers are those of lm-evaluation-harness (0.4.12 and 0.4.13), zero-shot.
"""

import json
import lzma
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from dograph.errors import CorpusError, require, require_known
from dograph.files import sha256_of
from dograph.records import DAMAGE

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One question: the texts to compare, and the index of the right one.

    A text is `context + continuation`; the model scores the continuation.
    """

    pairs: tuple[tuple[str, str], ...]  # context, continuation
    gold: int

    @property
    def lengths(self) -> list[int]:
        """Characters of each choice without the space before it; acc_norm divides by them."""
        return [len(continuation) - 1 for _, continuation in self.pairs]

    @property
    def gold_bytes(self) -> int:
        """UTF-8 bytes of the gold answer without leading white space."""
        return max(1, len(self.pairs[self.gold][1].lstrip().encode()))


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark: where its data are, which columns it needs, and what its average counts."""

    name: str  # as in lm-evaluation-harness; also the name of its folder
    hub: str
    config: str | None
    split: str  # the one that the harness scores
    size: int  # items in the whole split
    metric: Literal["acc_norm", "acc"] = "acc_norm"  # counted in the paper's average
    cloze: bool = False  # no choices: right if every token has the highest probability
    fallback: str | None = None  # a split to score if a folder lacks `split`
    revision: str | None = None

    @property
    def columns(self) -> list[str]:
        return COLUMNS[self.name].split()

    def item(self, row: Mapping[str, Any]) -> Item:
        """The prompt and choices of a row; a choice is joined to the prompt with one space."""
        match self.name:
            case "hellaswag":
                context = f"{row['ctx_a']} {row['ctx_b'].capitalize()}"
                prompt = _clean(f"{row['activity_label']}: {context}")
                choices, gold = [_clean(ending) for ending in row["endings"]], int(row["label"])
            case "piqa":
                prompt = f"Question: {row['goal']}\nAnswer:"
                choices, gold = [row["sol1"], row["sol2"]], int(row["label"])
            case "openbookqa":
                prompt, choices = row["question_stem"], row["choices"]["text"]
                gold = row["choices"]["label"].index(row["answerKey"].lstrip())
            case "lambada_openai":
                prompt, _, word = row["text"].rpartition(" ")
                choices, gold = [word], 0
            case "sciq":
                prompt = f"{row['support'].lstrip()}\nQuestion: {row['question']}\nAnswer:"
                names = ("distractor1", "distractor2", "distractor3", "correct_answer")
                choices, gold = [row[name] for name in names], 3
            case "arc_easy":
                prompt, choices = f"Question: {row['question']}\nAnswer:", row["choices"]["text"]
                gold = row["choices"]["label"].index(row["answerKey"])
            case "copa":
                connector = {"cause": "because", "effect": "therefore"}[row["question"]]
                prompt = f"{row['premise'].strip()[:-1]} {connector}"
                # A second space, as in the harness.
                choices = [f" {x[0].lower()}{x[1:]}" for x in (row["choice1"], row["choice2"])]
                gold = int(row["label"])
            case "logiqa":
                choices, gold = row["options"], "abcd".index(row["label"].strip())
                lettered = "".join(f"{a}. {x}\n" for a, x in zip("ABCD", choices, strict=True))
                asked = f"Passage: {row['context']}\nQuestion: {row['question']}\n"
                prompt = f"{asked}Choices:\n{lettered}Answer:"
            case _:  # winogrande: each option fills the blank, and the text after it is scored
                before, after = row["sentence"].split("_", maxsplit=1)
                prompts = [before + row[option] for option in ("option1", "option2")]
                pairs = tuple((prompt, f" {after.strip()}") for prompt in prompts)
                return Item(pairs, {"1": 0, "2": 1}[row["answer"]])
        return Item(tuple((prompt, f" {choice}") for choice in choices), gold)


def _clean(text: str) -> str:
    """HellaSwag's WikiHow titles become sentences, other marks in brackets are removed."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


# What each task reads of a row, in the order of the paper's tables.
COLUMNS = {
    "hellaswag": "activity_label ctx_a ctx_b endings label",
    "piqa": "goal sol1 sol2 label",
    "openbookqa": "question_stem choices answerKey",
    "lambada_openai": "text",
    "sciq": "support question distractor1 distractor2 distractor3 correct_answer",
    "arc_easy": "question choices answerKey",
    "copa": "premise choice1 choice2 question label",
    "logiqa": "label context question options",
    "winogrande": "sentence option1 option2 answer",
}
PARQUET = "refs/convert/parquet"  # LogiQA's dataset is a script, which `datasets` no longer runs
_ROWS = (
    Task("hellaswag", "Rowan/hellaswag", None, "validation", 10_042),
    Task("piqa", "baber/piqa", None, "validation", 1838),
    Task("openbookqa", "allenai/openbookqa", "main", "test", 500),
    Task("lambada_openai", "EleutherAI/lambada_openai", "default", "test", 5153, "acc", cloze=True),
    Task("sciq", "allenai/sciq", None, "test", 1000, fallback="validation"),
    Task("arc_easy", "allenai/ai2_arc", "ARC-Easy", "test", 2376),
    Task("copa", "aps/super_glue", "copa", "validation", 100, "acc"),
    Task("logiqa", "EleutherAI/logiqa", "logiqa", "test", 651, revision=PARQUET),
    Task("winogrande", "allenai/winogrande", "winogrande_xl", "validation", 1267, "acc"),
)
TASKS = {task.name: task for task in _ROWS}


def pick_tasks(names: Sequence[str] | None) -> list[Task]:
    """Tasks by name, in the order of the paper's tables; all nine if no names are given."""
    for name in names or []:
        require_known(name, TASKS, f'there is no task "{name}"')
    return [task for task in TASKS.values() if not names or task.name in names]


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one task that are scored, and where they came from."""

    task: Task
    split: str
    rows: list[Row]  # only the task's columns
    available: int  # before a limit
    files: list[Row]  # name, sha256 and items of each; from the hub: name, fingerprint
    notes: list[str]

    @property
    def items(self) -> list[Item]:
        return [self.task.item(row) for row in self.rows]

    def limited(self, limit: int | None) -> "Documents":
        """At most `limit` documents, evenly spaced so that they represent the whole task.

        The harness' own limit takes the first ones, and HellaSwag's are all from ActivityNet.
        """
        if limit is None or limit >= len(self.rows):
            return self
        chosen = [k * len(self.rows) // limit for k in range(limit)]
        return replace(self, rows=[self.rows[k] for k in chosen])


def read_task(task: Task, folder: Path | None) -> Documents:
    """All documents of a task, checked: from JSON Lines in `folder/<task>`, or from the hub.

    The files are `<split>.jsonl` or `<split>.jsonl.xz`, then `<split>-*` in alphabetical order.
    """
    split, notes = task.split, []
    if folder is None:
        rows, files = _hub_rows(task)
    else:
        paths = _split_files(folder / task.name, split)
        if not paths and task.fallback is not None:
            split = task.fallback
            paths = _split_files(folder / task.name, split)
            notes.append(f"{task.name}: {split} split, because there is no {task.split} split")
        if not paths:
            raise CorpusError(
                f"{folder / task.name} has no {task.split}.jsonl and no {task.split}.jsonl.xz; "
                "give --benchmarks a folder with files <task>/<split>.jsonl, leave "
                f"{task.name} out with --tasks, or omit --benchmarks to download from the hub"
            )
        rows, files = _file_rows(task, folder, paths)
    if not rows:
        raise CorpusError(f"{task.name}: its {split} split is empty; download it again")
    if len(rows) != task.size:
        notes.append(f"{task.name}: the data have {len(rows)} items, the task {task.size}")
    return Documents(task, split, rows, len(rows), files, notes)


def _split_files(place: Path, split: str) -> list[Path]:
    endings = (".jsonl", ".jsonl.xz")
    first = [file for ending in endings if (file := place / f"{split}{ending}").is_file()]
    if len(first) > 1:
        raise CorpusError(f"{first[0]} and {first[1]} may hold the same items; keep one of them")
    return first + sorted(file for ending in endings for file in place.glob(f"{split}-*{ending}"))


def _file_rows(task: Task, folder: Path, paths: list[Path]) -> tuple[list[Row], list[Row]]:
    rows, files = [], []
    for file in paths:
        opened: Callable[..., IO[str]] = lzma.open if file.suffix == ".xz" else open
        try:
            with opened(file, "rt", encoding="utf-8") as stream:
                lines = {n: json.loads(x) for n, x in enumerate(stream, start=1) if x.strip()}
        except (ValueError, lzma.LZMAError, EOFError) as error:
            raise CorpusError(f"{file} is damaged: {error}; download it again") from error
        rows += [_checked(row, task, f"{file}:{line}") for line, row in lines.items()]
        name = file.relative_to(folder).as_posix()
        files.append({"file": name, "sha256": sha256_of(file), "items": len(lines)})
    return rows, files


def _hub_rows(task: Task) -> tuple[list[Row], list[Row]]:
    datasets = require("datasets", "eval")
    name = f"{task.hub}{f' ({task.config})' if task.config else ''}"
    try:
        place = {"split": task.split, "revision": task.revision}
        dataset = datasets.load_dataset(task.hub, task.config, **place)
        loaded = list(dataset.select_columns(task.columns))
    # the library passes on whatever its file systems, parsers and network layers raise
    except Exception as error:
        raise CorpusError(
            f"cannot read {name} from the hub: {type(error).__name__}: {error}. Check the "
            "connection, or give a folder of local files: --benchmarks DIR"
        ) from error
    where = f"hf:{task.hub}@{task.split}"
    rows = [_checked(row, task, f"{where}, row {k}") for k, row in enumerate(loaded)]
    return rows, [{"hub": name, "fingerprint": dataset._fingerprint, "items": len(rows)}]


def _checked(row: Any, task: Task, where: str) -> Row:
    """The row with only the task's columns, after checking that they make an item."""
    missing = [name for name in task.columns if not isinstance(row, Mapping) or name not in row]
    if missing:
        raise CorpusError(
            f"{where}: {task.name} needs {', '.join(task.columns)}; {', '.join(missing)} missing"
        )
    try:
        item = task.item(row)
        if not 0 <= item.gold < len(item.pairs):
            raise ValueError(f"the gold answer is number {item.gold} of {len(item.pairs)}")
        "".join(text for pair in item.pairs for text in pair).encode()  # raises for half surrogates
    except DAMAGE as error:
        raise CorpusError(f"{where} is not an item of {task.name}: {error!r}") from error
    return {name: row[name] for name in task.columns}
