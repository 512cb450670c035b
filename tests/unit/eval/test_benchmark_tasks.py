"""What the nine tasks ask, against texts written out by hand; and how their files are read."""

import json
import lzma
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from dograph.errors import ConfigError, CorpusError
from dograph.eval.tasks import TASKS, pick_tasks, read_task

SHARED = Path(__file__).parents[4] / "shared" / "data" / "benchmarks"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder is not there")
LETTERED = {"text": ["rain", "snow", "ice"], "label": ["1", "2", "3"]}

DOCUMENTS = {
    "hellaswag": {
        "activity_label": "Baking",
        "ctx_a": "How to bake [title] Heat the oven. [step] Wait.",
        "ctx_b": "then YOU",
        "endings": ["sit [substeps]  down.", " stand  up."],
        "label": "1",
    },
    "piqa": {"goal": "boil an egg", "sol1": "in water", "sol2": "in sand", "label": 0},
    "openbookqa": {"question_stem": "Frozen water is", "choices": LETTERED, "answerKey": " 3"},
    "lambada_openai": {"text": "one  two\n\nthree four"},
    "sciq": {
        "support": " Ice floats.",
        "question": "What floats?",
        "distractor1": "lead",
        "distractor2": "gold",
        "distractor3": "iron",
        "correct_answer": "ice",
    },
    "arc_easy": {"question": "What falls?", "choices": LETTERED, "answerKey": "2"},
    "copa": {
        "premise": "The lamp broke. ",
        "choice1": "It fell.",
        "choice2": "I read.",
        "question": "cause",
        "label": 0,
    },
    "logiqa": {
        "context": "A is B.",
        "question": "So?",
        "options": ["w", "x", "y", "z"],
        "label": "c ",
    },
    "winogrande": {
        "sentence": "Ann beat Eve, so _  was glad.",
        "option1": "Ann",
        "option2": "Eve",
        "answer": "1",
    },
}
QUESTIONS = {
    "piqa": ("Question: boil an egg\nAnswer:", [" in water", " in sand"], 0),
    "openbookqa": ("Frozen water is", [" rain", " snow", " ice"], 2),
    "lambada_openai": ("one  two\n\nthree", [" four"], 0),
    "sciq": (
        "Ice floats.\nQuestion: What floats?\nAnswer:",
        [" lead", " gold", " iron", " ice"],
        3,
    ),
    "arc_easy": ("Question: What falls?\nAnswer:", [" rain", " snow", " ice"], 1),
    # Its choices bring a space of their own, and the harness puts another before them.
    "copa": ("The lamp broke because", ["  it fell.", "  i read."], 0),
    "logiqa": (
        "Passage: A is B.\nQuestion: So?\nChoices:\nA. w\nB. x\nC. y\nD. z\nAnswer:",
        [" w", " x", " y", " z"],
        2,
    ),
    "hellaswag": (
        "Baking: How to bake. Heat the oven. Wait. Then you",
        [" sit  down.", " stand up."],  # of three spaces two stay: one pass, as there
        1,
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_those_of_the_harness(name):
    context, continuations, gold = QUESTIONS[name]
    item = TASKS[name].item(DOCUMENTS[name])
    assert item.pairs == tuple((context, continuation) for continuation in continuations)
    assert item.gold == gold


def test_winogrande_scores_what_follows_the_blank():
    item = TASKS["winogrande"].item(DOCUMENTS["winogrande"])
    assert item.pairs == (
        ("Ann beat Eve, so Ann", " was glad."),
        ("Ann beat Eve, so Eve", " was glad."),
    )
    assert item.gold == 0


def test_lengths_count_characters_of_the_choice_and_bytes_of_the_gold_answer():
    doc = DOCUMENTS["piqa"] | {"sol1": "größer"}
    item = TASKS["piqa"].item(doc)
    assert (item.lengths, item.gold_bytes) == ([6, 7], 8)
    assert TASKS["copa"].item(DOCUMENTS["copa"]).gold_bytes == len("it fell.")


def test_tasks_keep_the_papers_order_whatever_was_asked():
    assert [task.name for task in pick_tasks(["winogrande", "piqa"])] == ["piqa", "winogrande"]
    assert len(pick_tasks(None)) == 9
    with pytest.raises(ConfigError, match='did you mean "winogrande"'):
        pick_tasks(["winogrand"])


def write(folder, task, name, *documents):
    file = folder / task / name
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(document) + "\n" for document in documents)
    file.write_bytes(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())
    return file


def test_a_second_file_follows_the_first_whatever_its_kind(tmp_path):
    texts = [{"text": f"word {n}", "other": [n]} for n in range(5)]
    write(tmp_path, "lambada_openai", "test-rest.jsonl.xz", *texts[2:])
    write(tmp_path, "lambada_openai", "test.jsonl", *texts[:2])
    found = read_task(TASKS["lambada_openai"], tmp_path)
    assert [row["text"] for row in found.rows] == [f"word {n}" for n in range(5)]
    assert [file["file"] for file in found.files] == [
        "lambada_openai/test.jsonl",
        "lambada_openai/test-rest.jsonl.xz",
    ]
    assert [file["items"] for file in found.files] == [2, 3]
    assert all(set(row) == {"text"} for row in found.rows)
    assert found.notes == ["lambada_openai: the data have 5 items, the task 5153"]


def test_only_sciq_may_stand_in_with_another_split(tmp_path):
    write(tmp_path, "sciq", "validation.jsonl", *[DOCUMENTS["sciq"]] * 1000)
    found = read_task(TASKS["sciq"], tmp_path)
    assert found.split == "validation"
    assert found.notes == ["sciq: validation split, because there is no test split"]
    write(tmp_path, "arc_easy", "validation.jsonl", DOCUMENTS["arc_easy"])
    with pytest.raises(CorpusError, match=r"has no test\.jsonl and no test\.jsonl\.xz"):
        read_task(TASKS["arc_easy"], tmp_path)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"goal": "x", "sol1": "a", "label": 0}, "sol2 missing"),
        (DOCUMENTS["piqa"] | {"label": 2}, "number 2 of 2"),
        (DOCUMENTS["piqa"] | {"label": -1}, "number -1 of 2"),
        (["not", "a", "mapping"], "missing"),
        (DOCUMENTS["piqa"] | {"label": math.inf}, "infinity"),
        (DOCUMENTS["piqa"] | {"goal": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_wrong_document_is_named_by_its_line(tmp_path, document, said):
    write(tmp_path, "piqa", "validation.jsonl", DOCUMENTS["piqa"], document)
    with pytest.raises(CorpusError, match=f"validation.jsonl:2.*{said}"):
        read_task(TASKS["piqa"], tmp_path)


def test_damaged_double_and_empty_files_are_refused(tmp_path):
    file = write(tmp_path, "piqa", "validation.jsonl.xz", *[DOCUMENTS["piqa"]] * 50)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"validation.jsonl.xz is damaged"):
        read_task(TASKS["piqa"], tmp_path)
    write(tmp_path, "piqa", "validation.jsonl", DOCUMENTS["piqa"])
    with pytest.raises(CorpusError, match="may hold the same items"):
        read_task(TASKS["piqa"], tmp_path)
    write(tmp_path, "copa", "validation.jsonl")
    with pytest.raises(CorpusError, match="validation split is empty"):
        read_task(TASKS["copa"], tmp_path)


def test_a_limit_takes_documents_from_all_over_the_task(tmp_path):
    write(tmp_path, "lambada_openai", "test.jsonl", *[{"text": f"n {n}"} for n in range(10)])
    found = read_task(TASKS["lambada_openai"], tmp_path)
    few = found.limited(4)
    assert [row["text"] for row in few.rows] == ["n 0", "n 2", "n 5", "n 7"]
    assert (few.available, few.files) == (10, found.files)
    assert found.limited(10) is found.limited(None) is found


class HubDataset(list):
    """As much of a `datasets.Dataset` as is used."""

    _fingerprint = "f00d"

    def select_columns(self, columns):
        return [{name: row[name] for name in columns} for row in self]


def test_the_hub_is_asked_for_the_split_that_the_harness_scores(monkeypatch):
    asked = {}

    def load_dataset(path, name, *, split, revision):
        asked[path] = (name, split, revision)
        task = next(task for task in TASKS.values() if task.hub == path)
        return HubDataset([DOCUMENTS[task.name] | {"surplus": 1}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    for task in TASKS.values():
        found = read_task(task, None)
        assert found.items == [task.item(DOCUMENTS[task.name])]
        assert found.files[0]["fingerprint"] == "f00d"
    assert asked == {
        "Rowan/hellaswag": (None, "validation", None),
        "baber/piqa": (None, "validation", None),
        "allenai/openbookqa": ("main", "test", None),
        "EleutherAI/lambada_openai": ("default", "test", None),
        "allenai/sciq": (None, "test", None),
        "allenai/ai2_arc": ("ARC-Easy", "test", None),
        "aps/super_glue": ("copa", "validation", None),
        "EleutherAI/logiqa": ("logiqa", "test", "refs/convert/parquet"),
        "allenai/winogrande": ("winogrande_xl", "validation", None),
    }


def test_a_hub_out_of_reach_is_told_with_the_way_around(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(CorpusError, match=r"no route.*--benchmarks DIR"):
        read_task(TASKS["piqa"], None)


# Gold answers by index, counted by whoever collected the files.
GOLD = {
    "hellaswag": (521 + 1994, 469 + 2016, 521 + 2063, 489 + 1969),
    "piqa": (910, 928),
    "openbookqa": (138, 126, 132, 104),
    "lambada_openai": (5153,),
    "sciq": (0, 0, 0, 1000),
    "arc_easy": (596, 585, 633, 561, 1),
    "copa": (55, 45),
    "logiqa": (132, 159, 179, 181),
    "winogrande": (628, 639),
}


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize("name", GOLD)
def test_the_collected_files_are_whole(name):
    task = TASKS[name]
    found = read_task(task, SHARED)
    counts = Counter(item.gold for item in found.items)
    assert tuple(counts[k] for k in range(len(GOLD[name]))) == GOLD[name]
    assert len(found.rows) == sum(GOLD[name]) == task.size
    assert found.notes == (
        ["sciq: validation split, because there is no test split"] if name == "sciq" else []
    )
    assert all(
        context and continuation.strip() for x in found.items for context, continuation in x.pairs
    )
