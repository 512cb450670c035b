"""What a slice of a corpus leaves out is told, and slices that cannot be are refused."""

import math
import shutil

import numpy as np
import pytest

from dograph.cli import console
from dograph.data import formats
from dograph.data import pipeline as outputs
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import PreparationProgress
from dograph.data.pipeline import prepare as prepare_corpus
from dograph.errors import ConfigError, CorpusError
from slices import TEXTS, is_kept, prepare_by_command
from text_inputs import lines, prepare, read_back, write_jsonl, write_tokenizer


def unkept(keep, number=5):
    """Texts that a slice does not have."""
    found = [t for t in TEXTS if not is_kept(t, keep)]
    return found[:number]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return str(write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


@pytest.mark.parametrize("validated", [False, True])
def test_a_source_that_vanishes_is_told_by_name(tmp_path, tokenizer, validated):
    big = write_jsonl(tmp_path / "big.jsonl", TEXTS)
    tiny = write_jsonl(tmp_path / "tiny.jsonl", unkept(0.2))
    arguments = [big, tiny, "--tokenizer", tokenizer, "--keep", 0.2, "--out", tmp_path / "out"]
    if validated:
        given = write_jsonl(tmp_path / "v" / "tiny.jsonl", TEXTS[:3])
        arguments += ["--validation", given]
    left = 5 + sum(not is_kept(t, 0.2) for t in TEXTS)
    for _ in range(2):  # also where it is found done
        shown = prepare_by_command(*arguments)
        assert "warning: --keep 0.2 left nothing to train on of these sources: tiny;" in (
            shown.stderr
        )
        assert f"--keep 0.2 left out {left} training documents, 0.03 MB" in shown.stdout
    found = read_back(tmp_path / "out")
    assert ("train", "tiny") not in found
    assert found["train", "big"]
    assert found.get(("validation", "tiny")) == (TEXTS[:3] if validated else None)


def test_a_source_without_text_is_still_refused(tmp_path, tokenizer):
    big = write_jsonl(tmp_path / "big.jsonl", TEXTS)
    hollow = write_jsonl(tmp_path / "hollow.jsonl", [""])
    with pytest.raises(CorpusError, match='"hollow"'):
        prepare(tmp_path / "out", big, hollow, tokenizer=tokenizer, keep=0.2)


def test_nothing_kept_at_all_says_what_to_do(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", unkept(0.2))
    with pytest.raises(
        CorpusError, match=r"--keep 0\.2 keeps none of the 5 .*delete .*\.preparing"
    ):
        prepare(tmp_path / "out", path, tokenizer=tokenizer, keep=0.2)
    shutil.rmtree(tmp_path / "out" / ".preparing")
    prepare(tmp_path / "out", path, tokenizer=tokenizer)


def test_a_label_that_is_no_source_is_found_out_in_a_slice(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_SOURCES", 5)
    records = [{"text": t, "url": f"https://site/{n}"} for n, t in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    options = {"tokenizer": tokenizer, "source_field": "url", "keep": 1e-6}
    with pytest.raises(CorpusError, match="more than 5 sources"):
        prepare(tmp_path / "out", tmp_path / "a.jsonl", **options)


@pytest.mark.parametrize("keep", [0, -0.1, 1.01, math.nan])
def test_a_fraction_that_is_none_is_refused(tmp_path, keep):
    with pytest.raises(ConfigError, match=r"--keep must be above 0 and at most 1, got"):
        prepare(tmp_path / "out", "demo", keep=keep)


@pytest.mark.parametrize("kind", ["nanogpt", "megatron"])
def test_tokens_made_elsewhere_are_refused(tmp_path, kind):
    np.ones(10, np.uint16).tofile(tmp_path / "a.bin")
    if kind == "megatron":
        (tmp_path / "a.idx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"--keep chooses documents by their text.*a\.bin"):
        prepare(tmp_path / "out", tmp_path / "a.bin", keep=0.5)


def test_progress_counts_what_was_gone_through(tmp_path, tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 4000)
    monkeypatch.setattr(formats, "READ_BYTES", 1000)
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    options = {"inputs": (str(path),), "tokenizer": tokenizer, "workers": 1, "keep": 0.1}
    seen = []
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **options), seen.append)
    last = [entry for entry in seen if entry.stage == "encoding"][-1]
    chosen = [t for t in TEXTS if is_kept(t, 0.1)]
    assert (last.read_bytes, last.total_bytes) == (path.stat().st_size,) * 2
    assert (last.documents, last.unkept_documents) == (len(chosen), len(TEXTS) - len(chosen))
    assert last.text_bytes == sum(len(t.encode()) for t in chosen)
    assert last.text_bytes + last.unkept_bytes == sum(len(t.encode()) for t in TEXTS)

    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with console.preparing() as report:
        report(PreparationProgress("encoding", 10, 100, 0, 0, 0, 2**20, 7))
        now = 10.0
        report(PreparationProgress("encoding", 60, 100, 2**20, 3, 500, 5 * 2**20, 47))
        report(PreparationProgress("finishing"))
    first, second, last = capsys.readouterr().err.splitlines()
    assert last == "finishing"  # it reads no text, so it has no speed
    assert first == "encoding: 10 % read, kept 0.0 of 1.0 MiB, 0 of 7 documents, 0 tokens"
    assert second == (  # the speed is that of reading: 5 MiB in 10 seconds
        "encoding: 60 % read, kept 1.0 of 6.0 MiB, 3 of 50 documents, 500 tokens, "
        "0.50 MiB/s, 50 tokens/s"
    )
