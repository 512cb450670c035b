"""Bad input to a preparation: refused with its place named, or repaired and counted."""

import json

import pytest

from dograph.data import formats, pipeline
from dograph.errors import CorpusError
from text_inputs import (
    COMPRESS,
    files_of,
    lines,
    prepare,
    read_back,
    text,
    write_jsonl,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return str(write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


def test_repairs_are_counted_and_listed(tmp_path, tokenizer):
    content = lines([{"text": "one"}, {"text": ""}]) + b'{"text": "caf\xe9"}\n{"no": 1}\n{"text"\n'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(COMPRESS[".gz"](content + lines([{"text": "two"}]))[:-4])
    options = {"tokenizer": tokenizer, "validation_fraction": 0, "bad_records": "repair"}
    manifest = prepare(tmp_path / "out", path, **options).manifest
    assert read_back(tmp_path / "out") == {("train", "a"): ["one", "caf\ufffd", "two"]}
    assert manifest.repairs == {
        "empty": 1,
        "invalid UTF-8": 1,
        "missing text": 1,
        "broken JSON": 1,
        "broken archive": 1,
    }
    listed = [json.loads(line) for line in (tmp_path / "out" / "repairs.jsonl").open()]
    assert {(entry["place"], entry["kind"]) for entry in listed} == {
        (f"{path}:2", "empty"),
        (f"{path}:3", "invalid UTF-8"),
        (f"{path}:4", "missing text"),
        (f"{path}:5", "broken JSON"),
        (f"{path}:7", "broken archive"),
    }


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"text": "caf\xe9"}', 3),
        (b'{"text": "x"', 3),
        (b'{"other": "x"}', 3),
        (b"null", 3),
    ],
)
def test_a_bad_record_is_refused_with_its_place(tmp_path, tokenizer, content, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines([{"text": "one"}, {"text": "two"}]) + content + b"\n")
    with pytest.raises(CorpusError, match=rf"{path}:{line}: .*--bad-records repair"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_cut_archive_is_refused_with_its_place(tmp_path, tokenizer, suffix):
    path = write_jsonl(tmp_path / f"a.jsonl{suffix}", [text(n, 60) for n in range(200)])
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CorpusError, match=rf"{path}:\d+: the archive ends too early"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer)


def test_a_refused_preparation_goes_on_under_repair(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 500)
    monkeypatch.setattr(pipeline, "COMMIT_SECONDS", 0.0)
    good = write_jsonl(tmp_path / "a.jsonl", [text(n) for n in range(50)])
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(lines([{"text": "b"}]) + b"{\n")
    with pytest.raises(CorpusError, match=r"b\.jsonl:2"):
        prepare(tmp_path / "out", good, bad, tokenizer=tokenizer)
    journal = json.loads((tmp_path / "out" / ".preparing" / "journal.json").read_text())
    assert sum(output["documents"] for output in journal["outputs"]) >= 50
    options = {"tokenizer": tokenizer, "bad_records": "repair"}
    prepare(tmp_path / "out", good, bad, **options)
    prepare(tmp_path / "fresh", good, bad, **options)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n'])
def test_an_empty_source_is_refused_by_name_or_dropped(tmp_path, tokenizer, content):
    good = write_jsonl(tmp_path / "good.jsonl", [text(1), text(2)])
    (tmp_path / "hollow.jsonl").write_bytes(content)
    with pytest.raises(CorpusError, match="hollow"):
        prepare(tmp_path / "out", good, tmp_path / "hollow.jsonl", tokenizer=tokenizer)
    options = {"tokenizer": tokenizer, "bad_records": "repair"}
    manifest = prepare(tmp_path / "out", good, tmp_path / "hollow.jsonl", **options).manifest
    assert {entry.source for entry in manifest.train} == {"good"}
    assert manifest.repairs["empty source"] == 1
    with pytest.raises(CorpusError, match="no training text"):
        prepare(tmp_path / "none", tmp_path / "hollow.jsonl", **options)


def test_text_that_the_tokenizer_cannot_take_is_named(tmp_path):
    settings = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "?"},
    }
    (tmp_path / "t.json").write_text(json.dumps(settings))
    path = write_jsonl(tmp_path / "a.jsonl", ["a", "a a", "a b"])
    with pytest.raises(CorpusError, match=rf"{path}:3: .*cannot encode"):
        prepare(tmp_path / "out", path, tokenizer=str(tmp_path / "t.json"))
