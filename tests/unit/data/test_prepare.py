"""From inputs to a corpus, read back without the package's own reader."""

import json
import time

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dograph.data import formats
from dograph.data import pipeline as outputs
from dograph.data.corpus import Corpus
from dograph.data.encode import ChunkEncoder
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import prepare as prepare_corpus
from dograph.data.staging import lock
from dograph.errors import ConfigError, CorpusError
from text_inputs import (
    COMPRESS,
    files_of,
    lines,
    origins,
    prepare,
    read_back,
    text,
    write_jsonl,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return str(write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_lines_become_tokens_and_back(tmp_path, tokenizer, suffix):
    texts = {
        name: [text(n) for n in range(first, first + 30)] for name, first in (("a", 0), ("b", 90))
    }
    paths = [write_jsonl(tmp_path / f"{name}.jsonl{suffix}", texts[name]) for name in texts]
    prepared = prepare(tmp_path / "out", *paths, tokenizer=tokenizer, validation_fraction=0.2)
    found = read_back(tmp_path / "out")
    for name in texts:
        train, held_out = found["train", name], found["validation", name]
        assert sorted(train + held_out) == sorted(texts[name])
        assert train == [t for t in texts[name] if t in train]  # in the order of the input
    assert prepared.manifest.train[0].dtype == "uint16"
    records = origins(tmp_path / "out")["b"]
    assert [texts["b"][record] for _, record in records] == found["train", "b"]
    assert {name for name, _ in records} == {str(paths[1])}
    assert {entry.source for entry in Corpus(tmp_path / "out").manifest.train} == {"a", "b"}


def test_all_kinds_of_input_in_one_corpus(tmp_path, tokenizer):
    texts = [text(n) for n in range(8)]
    (tmp_path / "poems").mkdir()
    for n in range(8):
        (tmp_path / "poems" / f"{n}.txt").write_text(texts[n], newline="")
    pq.write_table(pa.table({"text": texts}), tmp_path / "columns.parquet")
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "saved")
    write_jsonl(tmp_path / "lines.jsonl", texts)
    inputs = [tmp_path / name for name in ("poems", "columns.parquet", "saved", "lines.jsonl")]
    prepare(tmp_path / "out", *inputs, tokenizer=tokenizer, validation_fraction=0)
    assert read_back(tmp_path / "out") == {
        ("train", name): texts for name in ("columns", "lines", "poems", "saved")
    }


def test_labelled_records_are_sorted_into_their_sources(tmp_path, tokenizer):
    records = [{"body": {"text": text(n)}, "tag": f"t{n % 3}"} for n in range(9)]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    options = {"text_field": "body.text", "source_field": "tag", "validation_fraction": 0}
    prepare(tmp_path / "out", tmp_path / "a.jsonl", tokenizer=tokenizer, **options)
    assert read_back(tmp_path / "out") == {
        ("train", f"t{k}"): [text(n) for n in range(k, 9, 3)] for k in range(3)
    }


def test_given_validation_text_is_used_and_nothing_is_held_out(tmp_path, tokenizer):
    write_jsonl(tmp_path / "in" / "train" / "a.jsonl", [text(n) for n in range(20)])
    write_jsonl(tmp_path / "in" / "validation" / "a.jsonl", [text(99)])
    prepare(tmp_path / "out", tmp_path / "in", tokenizer=tokenizer, validation_fraction=0.5)
    assert read_back(tmp_path / "out") == {
        ("train", "a"): [text(n) for n in range(20)],
        ("validation", "a"): [text(99)],
    }


def test_the_split_follows_the_text_alone(tmp_path, tokenizer):
    """The same text lands on the same side, wherever and however often it stands."""
    texts = [text(n) for n in range(300)]
    once = write_jsonl(tmp_path / "once.jsonl", texts)
    twice = write_jsonl(tmp_path / "twice.jsonl", [*reversed(texts), *texts])
    options = {"tokenizer": tokenizer, "validation_fraction": 0.3}
    prepare(tmp_path / "one", once, **options)
    prepare(tmp_path / "two", twice, **options)
    prepare(tmp_path / "other", once, seed=1, **options)
    held_out = set(read_back(tmp_path / "one")["validation", "once"])
    assert 60 < len(held_out) < 120
    again = read_back(tmp_path / "two")
    assert set(again["validation", "twice"]) == held_out
    assert len(again["validation", "twice"]) == 2 * len(held_out)
    assert not set(again["train", "twice"]) & held_out
    assert set(read_back(tmp_path / "other")["validation", "once"]) != held_out


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_every_source_of_two_texts_has_both_sides(tmp_path, tokenizer, fraction):
    texts = {"many": [text(n) for n in range(50)], "two": [text(100), text(101)]}
    texts |= {"single": [text(200)], "copies": [text(300)] * 3}
    texts |= {"mostly": [text(400), text(401), text(400)]}
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", texts[name]) for name in texts]
    prepare(tmp_path / "out", *paths, tokenizer=tokenizer, validation_fraction=fraction)
    found = read_back(tmp_path / "out")
    assert {source for split, source in found if split == "validation"} == {"many", "two", "mostly"}
    for name in texts:
        train, held_out = found["train", name], found.get(("validation", name), [])
        assert sorted(train + held_out) == sorted(texts[name])
        assert not set(train) & set(held_out)
    moved = "validation" if fraction < 0.5 else "train"
    assert len(found[moved, "many"]) == 1
    nearer = 0.1 if fraction < 0.5 else 0.9  # moves it as one of the first
    prepare(tmp_path / "nearer", paths[0], tokenizer=tokenizer, validation_fraction=nearer)
    others = read_back(tmp_path / "nearer")[moved, "many"]
    assert 1 < len(others) < 15
    assert found[moved, "many"][0] in others
    records = origins(tmp_path / "out", moved)["many"]
    assert [texts["many"][record] for _, record in records] == found[moved, "many"]


def test_any_number_of_workers_gives_the_same_corpus(tmp_path, tokenizer, monkeypatch):
    records = [{"text": text(n, 40), "meta": {"set": f"s{n % 5}"}} for n in range(300)]
    records[17]["text"] = ""
    (tmp_path / "a.jsonl").write_bytes(lines(records) + b"{broken\n")
    options = {"source_field": "meta.set", "bad_records": "repair", "tokenizer": tokenizer}
    prepare(tmp_path / "whole", tmp_path / "a.jsonl", **options)
    monkeypatch.setattr(formats, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(formats, "READ_BYTES", 1000)
    encode, started = ChunkEncoder.__call__, []

    def slow_at_first(self, chunk):
        started.append(chunk.first)
        time.sleep(0.05 if len(started) == 1 else 0)  # the first one of two threads ends last
        return encode(self, chunk)

    monkeypatch.setattr(ChunkEncoder, "__call__", slow_at_first)
    for number in (1, 2):
        started.clear()
        prepare(tmp_path / str(number), tmp_path / "a.jsonl", workers=number, **options)
    assert len(started) > 5
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2") == files_of(tmp_path / "whole")
    assert "repairs.jsonl" in files_of(tmp_path / "1")


def test_a_label_with_a_new_value_in_every_record_is_no_source(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_SOURCES", 5)
    records = [{"text": text(n), "url": f"https://site/{n}"} for n in range(40)]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    with pytest.raises(CorpusError, match="more than 5 sources"):
        prepare(tmp_path / "out", tmp_path / "a.jsonl", tokenizer=tokenizer, source_field="url")


def test_progress_runs_from_nothing_to_everything(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 1500)
    monkeypatch.setattr(formats, "READ_BYTES", 300)
    texts = [text(n) for n in range(100)]
    write_jsonl(tmp_path / "a.jsonl.xz", texts)
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet")
    (tmp_path / "poems").mkdir()
    for n in range(20):
        (tmp_path / "poems" / f"{n}.txt").write_text(texts[n])
    paths = [tmp_path / name for name in ("a.jsonl.xz", "b.parquet", "poems")]
    total = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    options = PrepareOptions(
        inputs=tuple(map(str, paths)), out=tmp_path / "out", tokenizer=tokenizer, workers=1
    )
    seen = []
    prepare_corpus(options, seen.append)
    encoding = [entry for entry in seen if entry.stage == "encoding"]
    assert {entry.total_bytes for entry in encoding} == {total}
    read = [entry.read_bytes for entry in encoding]
    assert read == sorted(read)
    assert 0 < read[0] < total / 4
    assert read[-1] == total
    assert encoding[-1].documents == 220
    assert seen[-1].stage == "finishing"


def test_sources_may_have_any_name(tmp_path, tokenizer):
    names = ["a/b", "..", "Wikipedia (en)", "wiki", "Wiki", "x" * 300, "数学", "con.txt", "-", " "]
    records = [{"text": text(n), "s": name} for n, name in enumerate(names)]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    options = {"source_field": "s", "tokenizer": tokenizer, "validation_fraction": 0}
    manifest = prepare(tmp_path / "out", tmp_path / "a.jsonl", **options).manifest
    found = read_back(tmp_path / "out")
    assert found == {("train", name): [text(n)] for n, name in enumerate(names)}
    stored = [entry.file.lower() for entry in manifest.train]
    assert len(set(stored)) == len(names)
    assert {path.parent.name for path in (tmp_path / "out").rglob("*.bin")} == {"train"}


def test_repeating_the_command_finds_the_corpus_done(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1), text(2)])
    assert not prepare(tmp_path / "out", path, tokenizer=tokenizer).already
    before = files_of(tmp_path / "out")
    assert prepare(tmp_path / "out", path, tokenizer=tokenizer, workers=2).already
    assert files_of(tmp_path / "out") == before
    with pytest.raises(CorpusError, match=r"--seed was 0, now 1.*delete the folder"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer, seed=1)
    write_jsonl(path, [text(3), text(4), text(5)])
    with pytest.raises(CorpusError, match=r"inputs.*delete the folder"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer)
    assert files_of(tmp_path / "out") == before


def test_a_folder_with_something_else_is_not_touched(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1), text(2)])
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(CorpusError, match="not empty"):
        prepare(tmp_path / "home", path, tokenizer=tokenizer)
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_large_vocabularies_take_four_bytes(tmp_path):
    vocabulary = {f"t{n}": n for n in range(70_000)}
    settings = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    (tmp_path / "t.json").write_text(json.dumps(settings))
    path = write_jsonl(tmp_path / "a.jsonl", ["t65537 t5", "t69999"])
    options = {"tokenizer": str(tmp_path / "t.json"), "eot": "t1", "validation_fraction": 0}
    manifest = prepare(tmp_path / "out", path, **options).manifest
    assert manifest.train[0].dtype == "uint32"
    tokens = np.fromfile(tmp_path / "out" / manifest.train[0].file, np.uint32)
    assert tokens.tolist() == [65537, 5, 1, 69999, 1]


def test_the_planted_corpus_needs_no_input(tmp_path):
    manifest = prepare(tmp_path / "out", "unigram").manifest
    found = read_back(tmp_path / "out")
    assert len({source for _, source in found}) == len(manifest.train) > 1
    assert {source for split, source in found if split == "validation"} == {
        entry.source for entry in manifest.train
    }


def test_strata_divide_every_source(tmp_path, tokenizer):
    texts = [("red " if n % 2 else "blue ") * 30 + text(n) for n in range(60)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    manifest = prepare(tmp_path / "out", path, tokenizer=tokenizer, strata=2).manifest
    assert {entry.stratum for entry in manifest.train} == {"a/0", "a/1"}
    found = read_back(tmp_path / "out")
    assert sorted(found["train", "a"] + found["validation", "a"]) == sorted(texts)
    stored = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    named = {e.file for e in (*manifest.train, *manifest.validation)}
    named |= {e.documents_file for e in (*manifest.train, *manifest.validation)}
    own = {"tokenizer.json", "manifest.json", "digests.json"}
    assert stored == {name.split("/")[-1] for name in named} | own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_fraction": 1.5}, "validation-fraction"),
        ({"recipe": "pyle"}, "pile"),
        ({"strata": 0}, "strata"),
        ({"workers": 0}, "workers"),
        ({"vocab_size": 100}, "257"),
        ({"recipe": "pile", "source_field": "x"}, "source-field"),
    ],
)
def test_wrong_options_are_refused_in_words(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path / "out", "demo", **options)


def test_a_second_preparation_of_one_folder_is_kept_out(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1), text(2)])
    with lock(tmp_path / "out" / ".preparing"), pytest.raises(CorpusError, match="another process"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer)
    prepare(tmp_path / "out", path, tokenizer=tokenizer)
    assert not (tmp_path / "out" / ".preparing").exists()
