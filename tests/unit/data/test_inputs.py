"""What an argument of the command line stands for."""

import json
from pathlib import Path

import datasets
import pytest

from dograph.data.inputs import resolve_all, source_of, split_word
from dograph.errors import CorpusError
from text_inputs import resolve, write_jsonl


def kinds(resolved):
    return [(entry.kind, entry.split, entry.source) for entry in resolved]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("c4.jsonl", "c4"),
        ("data/c4.jsonl.zst", "c4"),
        ("c4-00001-of-00010.parquet", "c4"),
        ("fineweb_train_000001.bin", "fineweb"),
        ("fineweb_val_000000.bin", "fineweb"),
        ("wiki/train-00000-of-00002.parquet", "wiki"),
        ("wiki/data/validation.jsonl.gz", "wiki"),
        ("spj/data/train-00000-of-00048-ab2b35705f029d94.parquet", "spj"),
        ("c4-00001-of-00010-0123456789abcdef.parquet", "c4"),
        ("notes-0123456789abcdef.jsonl", "notes-0123456789abcdef"),
        ("web/train/00001.jsonl", "web"),
        ("books/part-00017.jsonl.xz", "books"),
        ("gpt4.jsonl", "gpt4"),
        ("v1.2.jsonl", "v1.2"),
        ("c4_text_document.bin", "c4"),
        ("latest.jsonl", "latest"),
    ],
)
def test_a_source_is_named_after_its_file_or_folder(path, source):
    assert source_of(Path("/corpora") / path) == source


def test_the_split_in_a_file_name():
    assert split_word(Path("fineweb_val_000001.bin")) == "val"
    assert split_word(Path("train.jsonl.gz")) == "train"
    assert split_word(Path("latest.jsonl")) is None
    assert split_word(Path("test-00000-of-00001-9f769cf7ce219017.parquet")) == "test"
    assert split_word(Path("train-00003-of-00048-0dd6d32660874d8a.parquet")) == "train"
    assert split_word(Path("test-0123456789abcdef.parquet")) is None


def test_a_name_before_the_path(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    assert kinds(resolve(f"web={path}", "train", labelled=False)) == [("lines", "train", "web")]
    odd = write_jsonl(tmp_path / "a=b.jsonl", ["x"])
    assert kinds(resolve(str(odd), "train", labelled=False)) == [("lines", "train", "a=b")]


def test_records_that_name_their_source_leave_it_open(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    assert kinds(resolve(str(path), "train", labelled=True)) == [("lines", "train", None)]
    assert kinds(resolve(f"n={path}", "train", labelled=True)) == [("lines", "train", "n")]


def test_embedded_names_win_over_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "a.txt").write_text("x")
    assert kinds(resolve("demo", "train", labelled=False)) == [("embedded", "train", None)]
    assert kinds(resolve("./demo", "train", labelled=False)) == [("text", "train", "demo")]


def test_recipes_know_their_splits():
    inputs = resolve("slimpajama-6b", "train", labelled=True)
    assert [(e.name, e.split) for e in inputs] == [
        ("hf:DKYoon/SlimPajama-6B@train", "train"),
        ("hf:DKYoon/SlimPajama-6B@test", "validation"),
    ]


def test_a_dataset_name_with_config_and_split():
    (entry,) = resolve("hf:allenai/c4:en@train", "train", labelled=False)
    assert (entry.hub, entry.part, entry.source) == (("allenai/c4", "en"), "train", "c4")


def test_a_folder_with_train_and_validation(tmp_path):
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / split / "b.jsonl", ["x"])
        write_jsonl(tmp_path / split / "a.jsonl.xz", ["x"])
    assert kinds(resolve(str(tmp_path), "train", labelled=False)) == [
        ("lines", "train", "a"),
        ("lines", "train", "b"),
        ("lines", "validation", "a"),
        ("lines", "validation", "b"),
    ]
    given = resolve(str(tmp_path), "validation", labelled=False)
    assert {Path(entry.name).parent.name for entry in given} == {"validation"}


def test_files_of_a_folder_named_after_splits(tmp_path):
    folder = tmp_path / "owt"
    folder.mkdir()
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(b"\1\0")
    assert kinds(resolve(str(folder), "train", labelled=False)) == [
        ("nanogpt", "train", "owt"),
        ("nanogpt", "validation", "owt"),
    ]


def test_an_explicit_validation_replaces_the_one_in_the_folder(tmp_path):
    for split in ("train", "validation"):
        write_jsonl(tmp_path / "in" / split / "a.jsonl", ["x"])
    other = write_jsonl(tmp_path / "other" / "a.jsonl", ["x"])
    inputs = resolve_all([str(tmp_path / "in")], [str(other)], labelled=False)[0]
    assert [(entry.name, entry.split) for entry in inputs] == [
        (str(tmp_path / "in" / "train" / "a.jsonl"), "train"),
        (str(other), "validation"),
    ]


def test_a_folder_of_text_folders(tmp_path):
    for name in ("poems", "letters", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text("x")
    assert kinds(resolve(str(tmp_path), "train", labelled=False)) == [
        ("text", "train", "letters"),
        ("text", "train", "poems"),
    ]
    (tmp_path / "README.md").write_text("x")
    with pytest.raises(CorpusError, match="both text files and folders"):
        resolve(str(tmp_path), "train", labelled=False)
    assert len(resolve(f"{tmp_path}/*/", "train", labelled=False)) == 2


def test_a_dataset_saved_on_disk(tmp_path):
    one = datasets.Dataset.from_dict({"text": ["x"]})
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "two")
    assert kinds(resolve(str(tmp_path / "one"), "train", labelled=False)) == [
        ("disk", "train", "one")
    ]
    assert kinds(resolve(str(tmp_path / "two"), "train", labelled=False)) == [
        ("disk", "train", "two"),
        ("disk", "validation", "two"),
    ]


@pytest.mark.parametrize("spec", ["nothing.jsonl", "no/such.parquet", "empty", "*.jsonl", "a.tar"])
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.tar").write_bytes(b"x")
    with pytest.raises(CorpusError) as error:
        resolve(spec, "train", labelled=False)
    assert spec in str(error.value)
    assert ".jsonl" in str(error.value)


def test_an_input_named_twice_is_refused(tmp_path):
    path = str(write_jsonl(tmp_path / "a.jsonl", ["x"]))
    with pytest.raises(CorpusError, match="named twice"):
        resolve_all([path, path], [], labelled=False)


def test_the_stamp_follows_every_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("x")
    (entry,) = resolve(str(tmp_path), "train", labelled=False)
    before = entry.stamp
    assert entry.stamp == before
    (tmp_path / "a" / "two.txt").write_text(json.dumps("y"))
    assert entry.stamp != before
