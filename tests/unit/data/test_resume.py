"""A stopped preparation continues, and its result is the same as without the stop."""

import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from disk_calls import DiskCalls
from dograph.data import formats, staging
from dograph.data import pipeline as preparation
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import prepare as prepare_corpus
from dograph.errors import CorpusError
from text_inputs import COMPRESS, files_of, lines, prepare, text, write_jsonl, write_tokenizer


class Killed(BaseException):
    """Stands for a kill: nothing but the operating system sees it."""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A corpus of many chunks, with repairs, a cut archive and labels; and its true outcome."""
    monkeypatch.setattr(formats, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(formats, "READ_BYTES", 500)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    records = [{"text": text(n, 30), "s": f"s{n % 3}"} for n in range(60)]
    content = lines(records[:30]) + b"{broken\n" + lines(records[30:])
    (tmp_path / "a.jsonl.gz").write_bytes(COMPRESS[".gz"](content)[:-300])
    (tmp_path / "b.jsonl").write_bytes(lines(records))
    write_jsonl(tmp_path / "c.jsonl.zst", [text(n) for n in range(100, 140)], s="rare")
    options = {
        "inputs": tuple(str(tmp_path / name) for name in ("a.jsonl.gz", "b.jsonl", "c.jsonl.zst")),
        "tokenizer": str(tokenizer),
        "source_field": "s",
        "bad_records": "repair",
        "validation_fraction": 0.05,
        "workers": 1,
    }
    prepare_corpus(PrepareOptions(out=tmp_path / "true", **options))
    return options, files_of(tmp_path / "true")


def prepare_until(options, out, reports, monkeypatch, *, commit):
    """Prepare, and die at a given report; `commit` says whether the journal was kept up."""
    left = iter(range(reports))

    def report(_progress):
        if next(left, None) is None:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "COMMIT_SECONDS", 0.0 if commit else 1e9)
        with pytest.raises(Killed):
            prepare_corpus(PrepareOptions(out=out, **options), report)


@pytest.mark.parametrize("reports", [0, 1, 5, 9, 14, 15, 22])
@pytest.mark.parametrize("commit", [True, False])
def test_stopped_anywhere(tmp_path, job, monkeypatch, reports, commit):
    options, truth = job
    prepare_until(options, tmp_path / "out", reports, monkeypatch, commit=commit)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not prepare_corpus(PrepareOptions(out=tmp_path / "out", **options)).already
    assert files_of(tmp_path / "out") == truth


@pytest.mark.slow
@pytest.mark.parametrize(("reports", "commit"), [(9, True), (15, False)])
def test_a_slice_stopped_anywhere(tmp_path, job, monkeypatch, reports, commit):
    options = {**job[0], "keep": 0.3}
    prepare_corpus(PrepareOptions(out=tmp_path / "slice", **options))
    truth = files_of(tmp_path / "slice")
    assert truth != job[1]
    prepare_until(options, tmp_path / "out", reports, monkeypatch, commit=commit)
    with pytest.raises(CorpusError, match=r"--keep was 0\.3, now 0\.4.*delete .*\.preparing"):
        prepare_corpus(PrepareOptions(out=tmp_path / "out", **{**options, "keep": 0.4}))
    with pytest.raises(CorpusError, match=r"--keep was 0\.3, now 1\.0.*delete .*\.preparing"):
        prepare_corpus(PrepareOptions(out=tmp_path / "out", **job[0]))
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **options))
    assert files_of(tmp_path / "out") == truth


def test_stopped_again_and_again(tmp_path, job, monkeypatch):
    options, truth = job
    for reports in (3, 1, 4, 0, 2):
        prepare_until(options, tmp_path / "out", reports, monkeypatch, commit=True)
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **options))
    assert files_of(tmp_path / "out") == truth


@pytest.mark.parametrize("step", range(1, 45, 5))
def test_stopped_while_finishing(tmp_path, job, monkeypatch, step):
    """At every rename, removal and write of the last step."""
    options, truth = job
    out = tmp_path / "out"
    left = iter(range(step))

    def dying(function):
        def call(*arguments, **keywords):
            if next(left, None) is None:
                raise Killed
            return function(*arguments, **keywords)

        return call

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(os, "replace", dying(os.replace))
        patch.setattr(staging, "link", dying(staging.link))
        patch.setattr(staging, "clear", dying(staging.clear))
        patch.setattr(staging.Path, "unlink", dying(staging.Path.unlink))
        patch.setattr(preparation, "COMMIT_SECONDS", 1e9)
        prepare_corpus(PrepareOptions(out=out, **options))
    prepare_corpus(PrepareOptions(out=out, **options))
    assert files_of(out) == truth


def test_a_corpus_is_on_disk_before_its_manifest(tmp_path, job, monkeypatch):
    options, truth = job
    disk = DiskCalls(monkeypatch)
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **options))
    paths = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(paths) == len(truth)
    for path in paths:
        disk.assert_outlasts_a_crash(path)
    last = max(paths, key=lambda path: disk.places("renamed", path)[-1])
    assert last.name == "manifest.json"


def test_what_a_journal_speaks_of_is_on_disk_before_it(tmp_path, job, monkeypatch):
    disk = DiskCalls(monkeypatch)
    prepare_until(job[0], tmp_path / "out", 15, monkeypatch, commit=True)
    journal = tmp_path / "out" / ".preparing" / "journal.json"
    disk.assert_outlasts_a_crash(journal)
    written = disk.places("renamed", journal)[-1]
    own = [path for path in journal.parent.rglob("*") if path.is_file()]
    spoken_of = [p for p in own if p.suffix in (".tokens", ".documents") or p.stem == "repairs"]
    assert len(spoken_of) > 6
    for path in spoken_of:
        assert min(disk.places("forced", path), default=written) < written, path


def test_other_options_are_refused_and_named(tmp_path, job, monkeypatch):
    options, truth = job
    out = tmp_path / "out"
    prepare_until(options, out, 12, monkeypatch, commit=True)
    for change, message in (
        ({"seed": 5}, "--seed was 0, now 5"),
        ({"text_field": "s"}, "--text-field was text, now s"),
        ({"keep": 0.5}, "--keep was 1.0, now 0.5"),
        ({"inputs": options["inputs"][:2]}, r"c\.jsonl\.zst was left out"),
        ({"bad_records": "refuse"}, "bad records were repaired"),
    ):
        with pytest.raises(CorpusError, match=rf"{message}.*delete .*\.preparing"):
            prepare_corpus(PrepareOptions(out=out, **{**options, **change}))
    prepare_corpus(PrepareOptions(out=out, **{**options, "workers": 2}))
    assert files_of(out) == truth


def test_a_changed_input_is_refused_until_the_progress_is_deleted(tmp_path, job, monkeypatch):
    options, _ = job
    out = tmp_path / "out"
    prepare_until(options, out, 3, monkeypatch, commit=True)
    with open(tmp_path / "b.jsonl", "ab") as file:
        file.write(lines([{"text": "one more", "s": "s0"}]))
    with pytest.raises(CorpusError, match=r"b\.jsonl has changed"):
        prepare_corpus(PrepareOptions(out=out, **options))
    shutil.rmtree(out / ".preparing")
    prepare_corpus(PrepareOptions(out=out, **options))
    prepare_corpus(PrepareOptions(out=tmp_path / "fresh", **options))
    assert files_of(out) == files_of(tmp_path / "fresh")


def test_a_damaged_journal_says_what_to_do(tmp_path, job, monkeypatch):
    options, truth = job
    out = tmp_path / "out"
    prepare_until(options, out, 9, monkeypatch, commit=True)
    staging = out / ".preparing"
    tokens = next(staging.glob("*.tokens"))
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:10])
    with pytest.raises(CorpusError, match=r"\.tokens.*delete .*\.preparing"):
        prepare_corpus(PrepareOptions(out=out, **options))
    (staging / "journal.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(CorpusError, match=r"journal\.json.*delete .*\.preparing"):
        prepare_corpus(PrepareOptions(out=out, **options))
    shutil.rmtree(staging)
    prepare_corpus(PrepareOptions(out=out, **options))
    assert files_of(out) == truth


def test_another_order_of_inputs_is_refused(tmp_path, job, monkeypatch):
    options, truth = job
    out = tmp_path / "out"
    prepare_until(options, out, 12, monkeypatch, commit=True)
    other = {**options, "inputs": options["inputs"][::-1]}
    with pytest.raises(
        CorpusError, match=r"order was.*a\.jsonl.*now.*c\.jsonl.*delete .*\.preparing"
    ):
        prepare_corpus(PrepareOptions(out=out, **other))
    prepare_corpus(PrepareOptions(out=out, **options))
    assert files_of(out) == truth
    with pytest.raises(CorpusError, match="delete the folder"):
        prepare_corpus(PrepareOptions(out=out, **other))


def test_interrupted_between_two_steps_of_a_write(tmp_path, job, monkeypatch):
    """What was committed before it stays valid: half a chunk is never taken for a whole one."""
    options, truth = job
    append = preparation.Preparation.append_groups
    left = iter(range(12))

    def dying(self, groups):
        append(self, groups)
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "COMMIT_SECONDS", 0.0)
        patch.setattr(preparation.Preparation, "append_groups", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(PrepareOptions(out=tmp_path / "out", **options))
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **options))
    assert files_of(tmp_path / "out") == truth


def test_tokens_do_not_sweep_away_text_half_done(tmp_path, job, monkeypatch):
    options, truth = job
    out = tmp_path / "out"
    prepare_until(options, out, 12, monkeypatch, commit=True)
    np.ones(10, np.uint16).tofile(tmp_path / "t.bin")
    with pytest.raises(CorpusError, match=r"delete .*\.preparing"):
        prepare(out, tmp_path / "t.bin")
    prepare_corpus(PrepareOptions(out=out, **options))
    assert files_of(out) == truth


def test_a_damaged_manifest_says_what_to_delete(tmp_path, job):
    options, truth = job
    out = tmp_path / "out"
    prepare_corpus(PrepareOptions(out=out, **options))
    (out / "manifest.json").write_text("{")
    with pytest.raises(CorpusError, match=rf"(?s)manifest\.json.*delete {out}"):
        prepare_corpus(PrepareOptions(out=out, **options))
    shutil.rmtree(out)
    prepare_corpus(PrepareOptions(out=out, **options))
    assert files_of(out) == truth
