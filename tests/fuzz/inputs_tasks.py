"""Local files of the nine benchmarks."""

import json
import lzma
import random
from pathlib import Path

from dograph.eval.tasks import COLUMNS, TASKS, read_task
from fuzz import bases
from fuzz.harness import command, damaged, register, value

CHOICES = {"text": ["rain", "snow", "ice"], "label": ["A", "B", "C"]}
# A value that most columns take; the rest is by name.
OWN = {"label": 1, "choices": CHOICES, "answerKey": "B", "endings": ["a", "b"], "answer": "1"}
OWN |= {"sentence": "Ann beat Eve, so _ was glad.", "text": "one two three"}
OF_TASK = {"copa": {"question": "cause"}, "logiqa": {"label": "c", "options": ["w", "x", "y", "z"]}}
Case = tuple[str, bytes, bool]


def rows(task: str) -> list[dict[str, object]]:
    row = {name: OWN.get(name, f"the {name}") for name in COLUMNS[task].split()}
    return [row | OF_TASK.get(task, {}) for _ in range(3)]


def files(rng: random.Random) -> Case:
    """A task, its file, and whether it is compressed."""
    task, packed = rng.choice(list(TASKS)), rng.random() < 0.3
    good = rows(task)
    if rng.random() < 0.5:  # another value in one field
        name = rng.choice(list(good[1]))
        good[1][name] = rng.choice((None, "", [], {}, 3, -1, 1e300, True, "\ud800", value(rng)))
        return task, b"".join(json.dumps(row).encode() + b"\n" for row in good), packed
    content = b"".join(json.dumps(row).encode() + b"\n" for row in good)
    return task, damaged(rng, lzma.compress(content) if packed else content), packed


def read(case: Case, folder: Path) -> None:
    name, content, packed = case
    task = TASKS[name]
    place = folder / name / f"{task.split}.jsonl{'.xz' if packed else ''}"
    place.parent.mkdir()
    place.write_bytes(content)
    if len(content) % 5 == 0:
        words = (bases.run() / "model", "--benchmarks", folder, "--tasks", name, "--batch-size", 8)
        command("eval", *words, "data.seq_len=16", "train.device=cpu", "--out", folder / "e.json")
        return
    for item in read_task(task, folder).items:
        assert 0 <= item.gold < len(item.pairs) == len(item.lengths)
        assert all(isinstance(text, str) for pair in item.pairs for text in pair)


register("benchmark files", files, read, share=2)
