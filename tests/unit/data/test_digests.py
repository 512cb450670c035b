"""Damage to a corpus: what `data verify` finds, what every start refuses, what reading refuses."""

import os
import shutil
import time

import numpy as np
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.main import app
from dograph.config import resolve_config
from dograph.data.corpus import Corpus, Manifest, StratumTokens
from dograph.data.digests import DIGESTS, PAGE_BYTES, Digests, require_unchanged, verify
from dograph.data.digests import write_digests as write
from dograph.data.loader import Loader
from dograph.data.sampler import Sampler
from dograph.errors import CorpusError
from dograph.rng import stream
from dograph.train.trainer import resume_run, start_run
from dograph.types import Mixture
from text_inputs import lines, prepare, text, write_jsonl, write_tokenizer
from tiny_steps import ALONE, SETTINGS


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    path = write_jsonl(folder / "web.jsonl", [text(n) * 5 for n in range(40)])
    prepare(folder / "out", path, tokenizer=str(write_tokenizer(folder / "t" / "tokenizer.json")))
    return folder / "out"


@pytest.fixture
def corpus(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "corpus")


def flip(path, byte, bit=0):
    with open(path, "r+b") as file:
        file.seek(byte)
        (old,) = file.read(1)
        file.seek(byte)
        file.write(bytes([old ^ (1 << bit)]))


def files_of(corpus):
    return sorted(path for path in corpus.rglob("*") if path.is_file())


def test_every_file_has_digests_and_a_whole_corpus_passes(corpus):
    names = {str(path.relative_to(corpus)) for path in files_of(corpus)}
    assert set(Digests.read(corpus).files) == names - {DIGESTS}
    seen = []
    found = verify(corpus, lambda done, total: seen.append((done, total)))
    assert (found.damage, found.num_files) == ([], len(names) - 1)
    assert seen[-1] == (found.num_bytes, found.num_bytes)
    require_unchanged(Corpus(corpus))


def test_a_flipped_bit_in_any_file_is_found_and_refused(corpus):
    """The files are small, so that every page of them is among the sampled ones."""
    rng = stream(0, "flips")
    for path in files_of(corpus):
        for byte in {0, path.stat().st_size - 1, *rng.integers(path.stat().st_size, size=2)}:
            flip(path, byte, bit := int(rng.integers(8)))
            assert any(str(path) in line for line in verify(corpus).damage), (path, byte)
            with pytest.raises(CorpusError, match=r"(?i)prepare the corpus again") as refused:
                require_unchanged(Corpus(corpus))
            assert path.name in str(refused.value)
            flip(path, byte, bit)
    assert not verify(corpus).damage


def test_sampled_pages_are_a_part_and_blocks_are_all(tmp_path):
    content = stream(0, "content").bytes(3_000_000)
    corpus = write_corpus(tmp_path, {"alpha": 1_500_000})
    (tmp_path / "train-alpha.bin").write_bytes(content)
    entry = Manifest.read(corpus).train[0].model_copy(update={"sha256": "0" * 64})
    tokenizer = Manifest.read(corpus).tokenizer.model_copy(update={"vocab_size": 1 << 16})
    changed = {"train": [entry], "tokenizer": tokenizer}
    Manifest.read(corpus).model_copy(update=changed).write(corpus)
    write(corpus, [*Manifest.read(corpus).files(), "manifest.json"])
    path, opened = tmp_path / "train-alpha.bin", Corpus(corpus)
    for byte in (PAGE_BYTES - 1, 3_000_000 - PAGE_BYTES):  # the first page and the last one
        flip(path, byte)
        with pytest.raises(CorpusError, match=r"train-alpha\.bin has changed.*other content"):
            require_unchanged(opened)
        flip(path, byte)
    flip(path, 1_500_000, 3)
    begin = time.perf_counter()
    require_unchanged(opened)  # between two sampled pages: nothing is seen
    assert time.perf_counter() - begin < 0.1
    (line,) = verify(corpus).damage
    assert line == f"{path}: bytes 1048576 to 2097152 have changed (1 of 3 blocks in all)"


def test_sizes_and_missing_files_are_named(corpus):
    path = corpus / "train" / "web.bin"
    with open(path, "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(CorpusError, match=r"web\.bin has changed.*bytes, not"):
        require_unchanged(Corpus(corpus))
    assert "bytes, prepared were" in verify(corpus).damage[0]
    opened = Corpus(corpus)
    path.unlink()
    with pytest.raises(CorpusError, match=r"web\.bin has changed.*No such file"):
        require_unchanged(opened)
    assert verify(corpus).damage == [f"{path} is missing"]
    with pytest.raises(CorpusError, match=r"should hold at least .*No such file.*copy the whole"):
        Corpus(corpus)


def test_a_corpus_of_an_older_version_is_trained_on_but_not_verified(corpus):
    (corpus / DIGESTS).unlink()
    require_unchanged(Corpus(corpus))
    with pytest.raises(CorpusError, match=r"has no digests\.json.*older version; prepare it again"):
        verify(corpus)


def test_a_token_outside_of_the_vocabulary_is_refused_where_it_is_read(tmp_path):
    corpus = Corpus(write_corpus(tmp_path, vocab=100))
    np.memmap(tmp_path / "train-beta.bin", "u2", "r+")[1234] = 100
    sampler = Sampler(corpus.train, seq_len=16, batch_size=200, seed=0)
    sampler.remix(0, Mixture({"beta": 1.0}), "test")
    place = r"train-beta\.bin: the token at byte 2468 is 100, but ids must be in 0 to 99.*Restore"
    with pytest.raises(CorpusError, match=place):
        Loader(corpus, sampler).load(0, ahead=False)
    with pytest.raises(CorpusError, match=place):
        corpus.train[1].read_block(0, 3000)
    assert corpus.train[1].read_block(0, 1234).max() < 100


def test_equal_digests_mean_equal_tokens(tmp_path):
    """The third corpus has the names and sizes of the others, but other tokens."""
    one, same = (Corpus(write_corpus(tmp_path / name)).digest for name in ("one", "same"))
    other = Corpus(write_corpus(tmp_path / "other", document_tokens=41)).digest
    assert one == same
    assert one != other


def test_a_negative_token_is_refused_where_it_is_read(tmp_path):
    """Files of other tools may hold signed numbers."""
    entry = Corpus(write_corpus(tmp_path)).train[0].entry.model_copy(update={"dtype": "int16"})
    token_N = np.fromfile(tmp_path / entry.file, dtype=np.int16)
    token_N[77] = -3
    token_N.tofile(tmp_path / entry.file)
    stratum = StratumTokens(tmp_path, entry, 100)
    with pytest.raises(CorpusError, match="the token at byte 154 is -3, but ids must be in 0 to"):
        stratum.read_block(2, 32)
    assert stratum.read_block(1, 32).min() >= 0


def test_a_file_cut_while_it_is_read_is_an_error_and_a_deleted_one_is_not(tmp_path):
    """A map of a file that was cut kills the process on reading; a deleted file stays readable."""
    corpus = Corpus(write_corpus(tmp_path))
    sampler = Sampler(corpus.train, seq_len=16, batch_size=4, seed=0)
    sampler.remix(0, Mixture({"alpha": 1.0}), "test")
    loader = Loader(corpus, sampler)
    (tmp_path / "train-alpha.bin").rename(tmp_path / "gone")
    loader.load(0, ahead=False)
    (tmp_path / "gone").rename(tmp_path / "train-alpha.bin")
    os.truncate(tmp_path / "train-alpha.bin", 100)
    with pytest.raises(CorpusError, match=r"train-alpha\.bin should hold at least 12000 .*: 100;"):
        loader.load(1, ahead=False)
    with pytest.raises(CorpusError, match=r"train-alpha\.bin should hold at least 12000 .*: 100;"):
        Corpus(tmp_path)


def test_damaged_documents_are_named(tmp_path):
    path = write_corpus(tmp_path) / "train-alpha.docs.npy"
    whole = path.read_bytes()
    for content in (b"", whole[:50], whole[:-20], whole[:-20] + b"\1" * 20, b"\x93NUMPY\1\0" * 40):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=r"docs\.npy should hold 163 documents of 6000 tok"):
            _ = Corpus(tmp_path).train[0].documents


def test_the_command_names_the_place_and_exits_with_1(corpus, tmp_path):
    def run(folder):
        return CliRunner().invoke(app, ["data", "verify", str(folder)])

    assert run(corpus).exit_code == 0
    assert "is as it was prepared: 6 files" in run(corpus).stdout
    flip(corpus / "train" / "web.bin", 8)
    shown = run(corpus)
    assert shown.exit_code == 1
    assert "damage: " in shown.stderr
    assert "web.bin: bytes 0 to " in shown.stderr
    (corpus / DIGESTS).unlink()
    for folder in (corpus, tmp_path):  # of an older version, and no corpus at all
        assert isinstance(run(folder).exception, CorpusError)


def config_of(corpus, tmp_path):
    settings = [*SETTINGS, f"data.corpus={corpus}", f"run={tmp_path / 'run'}", "train.steps=2"]
    return resolve_config(None, settings)


def test_a_run_on_a_changed_corpus_does_not_start(corpus, tmp_path):
    flip(corpus / "validation" / "web.bin", 1)
    with pytest.raises(CorpusError, match=r"validation/web\.bin has changed"):
        start_run(config_of(corpus, tmp_path), ALONE)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_outlives_a_deleted_corpus_and_refuses_to_resume_on_a_changed_one(corpus, tmp_path):
    config = config_of(corpus, tmp_path)
    trainer = start_run(config, ALONE)
    shutil.move(corpus, tmp_path / "moved")
    assert trainer.train() == 0
    saved = Tokenizer.from_file(str(tmp_path / "run" / "model" / "tokenizer.json"))
    assert saved.encode(text(3)).ids == trainer.corpus.tokenizer.encode(text(3)).ids
    trainer.run._lock.close()  # as the end of the process does
    with pytest.raises(CorpusError, match=r"corpus is not a prepared corpus"):
        resume_run(config, ALONE)
    shutil.move(tmp_path / "moved", corpus)
    resume_run(config, ALONE).run._lock.close()
    flip(corpus / "train" / "web.bin", 1)
    with pytest.raises(CorpusError, match=r"train/web\.bin has changed"):
        resume_run(config, ALONE)


@pytest.mark.parametrize("name", ["mean", "natural", "worst"])
def test_names_of_summaries_are_no_names_of_sources(tmp_path, name):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1)])
    with pytest.raises(CorpusError, match=rf'"{name}", but metrics use .*rename it with NAME='):
        prepare(tmp_path / "out", f"{name}={path}")
    np.arange(100, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    with pytest.raises(CorpusError, match=rf'"{name}"'):
        prepare(tmp_path / "out", tmp_path / f"{name}.bin")
    path.write_bytes(lines([{"text": text(1), "set": name}]))
    tokenizer = str(write_tokenizer(tmp_path / "tokenizer.json"))
    with pytest.raises(CorpusError, match=rf'"{name}"'):
        prepare(tmp_path / "out", path, source_field="set", tokenizer=tokenizer)
