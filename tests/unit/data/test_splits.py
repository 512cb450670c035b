"""Which files train, which validate, and what is said of those that do neither."""

import os
from pathlib import Path

import datasets
import pytest

from dograph.data.inputs import RECIPES, resolve_all, source_of, split_word
from dograph.errors import CorpusError
from text_inputs import resolve, write_jsonl


def split_up(root, *specs, validation=(), **options):
    """Names below `root` that train, that validate, and that are left out."""
    specs, validation = [str(spec) for spec in specs], [str(spec) for spec in validation]
    inputs, left_out = resolve_all(specs, validation, labelled=False, **options)
    sides = [[e.name for e in inputs if e.split == split] for split in ("train", "validation")]
    return tuple([name.removeprefix(f"{root}/") for name in names] for names in (*sides, left_out))


def write_all(root, *names):
    for name in names:
        write_jsonl(root / name, ["x"])


def test_the_pile_as_published(tmp_path):
    write_all(tmp_path, "train/00.jsonl.zst", "train/01.jsonl.zst")
    write_all(tmp_path, "val.jsonl.zst", "test.jsonl.zst", "notes.jsonl")
    assert split_up(tmp_path, tmp_path) == (
        ["train/00.jsonl.zst", "train/01.jsonl.zst"],
        ["val.jsonl.zst"],
        ["notes.jsonl", "test.jsonl.zst"],
    )


@pytest.mark.parametrize("spec", ["", "/*.jsonl"])
def test_a_pattern_is_read_like_its_folder(tmp_path, spec):
    write_all(tmp_path, "a.jsonl", "a_val.jsonl", "test.jsonl")
    assert split_up(tmp_path, f"{tmp_path}{spec}") == (
        ["a.jsonl"],
        ["a_val.jsonl"],
        ["test.jsonl"],
    )


@pytest.mark.parametrize("spec", ["", "/*/*/*.jsonl", "/**/*.jsonl", "/*/*/"])
def test_splits_inside_each_source(tmp_path, spec):
    names = [f"{s}/{w}/part.jsonl" for s in ("c4", "wiki") for w in ("train", "validation")]
    write_all(tmp_path, *names)
    inputs = resolve(f"{tmp_path}{spec}", "train", labelled=False)
    assert [(entry.split, entry.source) for entry in inputs] == [
        ("train", "c4"),
        ("train", "wiki"),
        ("validation", "c4"),
        ("validation", "wiki"),
    ]


def test_a_folder_has_the_first_word_on_the_split(tmp_path):
    write_all(tmp_path, "train/ab_test.jsonl", "train/b.jsonl", "val/train.jsonl")
    train, validation, _ = split_up(tmp_path, tmp_path)
    assert train == ["train/ab_test.jsonl", "train/b.jsonl"]
    assert validation == ["val/train.jsonl"]


def test_given_validation_leaves_the_folders_own_out_and_says_so(tmp_path):
    write_all(tmp_path, "in/train/a.jsonl", "in/val/a.jsonl", "other/a.jsonl", "other/b.jsonl")
    assert split_up(tmp_path, tmp_path / "in", validation=[tmp_path / "other"]) == (
        ["in/train/a.jsonl"],
        ["other/a.jsonl", "other/b.jsonl"],
        ["in/val/a.jsonl"],
    )


@pytest.mark.parametrize(
    ("recipe", "chosen", "other"),
    [(None, "validation", "test"), ("slimpajama-6b", "test", "validation")],
)
def test_a_recipe_validates_on_the_split_it_has_on_the_hub(tmp_path, recipe, chosen, other):
    write_all(tmp_path, *(f"in/{split}/a.jsonl" for split in ("train", "validation", "test")))
    options = {"recipe": RECIPES[recipe] if recipe else None}
    assert split_up(tmp_path, tmp_path / "in", **options) == (
        ["in/train/a.jsonl"],
        [f"in/{chosen}/a.jsonl"],
        [f"in/{other}/a.jsonl"],
    )
    one = datasets.Dataset.from_dict({"text": ["x"]})
    splits = dict.fromkeys(("train", "validation", "test"), one)
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    assert split_up(tmp_path, tmp_path / "set", **options) == (
        ["set@train"],
        [f"set@{chosen}"],
        [f"set@{other}"],
    )


def test_text_folders_below_split_folders(tmp_path):
    for name in ("train/poems", "train/letters", "val/poems", "test/poems"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text("x")
    assert split_up(tmp_path, tmp_path) == (
        ["train/letters", "train/poems"],
        ["val/poems"],
        ["test"],
    )


def test_nothing_to_train_on_is_refused(tmp_path):
    write_all(tmp_path, "val.jsonl", "test.jsonl")
    with pytest.raises(CorpusError, match="none to train on"):
        resolve(str(tmp_path), "train", labelled=False)
    assert split_up(tmp_path, "demo", validation=[tmp_path]) == (
        ["demo"],
        ["test.jsonl", "val.jsonl"],
        [],
    )


def test_an_empty_train_folder_is_refused(tmp_path):
    write_all(tmp_path, "val/a.jsonl")
    (tmp_path / "train").mkdir()
    with pytest.raises(CorpusError, match="train is empty"):
        resolve(str(tmp_path), "train", labelled=False)


def test_records_and_folders_of_text_do_not_mix(tmp_path):
    write_all(tmp_path, "web/a.jsonl")
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems" / "a.txt").write_text("x")
    with pytest.raises(CorpusError, match=r"web/a\.jsonl.*poems"):
        resolve(str(tmp_path), "train", labelled=False)


def test_loose_text_beside_records_is_told(tmp_path):
    write_all(tmp_path, "a.jsonl")
    (tmp_path / "b.txt").write_text("x")
    assert split_up(tmp_path, tmp_path) == (["a.jsonl"], [], ["b.txt"])


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write_all(tmp_path, "a/a.jsonl", "b/b.jsonl")
    scandir = os.scandir

    def refusing(path="."):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(CorpusError, match="/b "):
        resolve(str(tmp_path), "train", labelled=False)


def test_one_file_under_two_spellings_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    (tmp_path / "link.jsonl").symlink_to(path)
    for other in (str(path), "./a.jsonl", "link.jsonl"):
        with pytest.raises(CorpusError, match="named twice"):
            resolve_all(["a.jsonl"], [other], labelled=False)


def test_years_are_not_shards():
    assert source_of(Path("crawl-2019.jsonl")) == "crawl-2019"
    assert source_of(Path("crawl-00019.jsonl")) == "crawl"
    assert split_word(Path("fw_val_0000.bin")) == "val"
    assert split_word(Path("crawl-2019.jsonl")) is None
