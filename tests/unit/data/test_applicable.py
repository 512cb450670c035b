"""Options that would do nothing are refused, and what is assumed is told."""

import logging

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from dograph.cli.data import composition
from dograph.cli.main import app
from dograph.errors import ConfigError, CorpusError
from text_inputs import lines, prepare, text, write_jsonl, write_tokenizer


def write_words(path, words, unknown=None):
    """A tokenizer of whole words, which has no bytes; without `unknown` others are an error."""
    vocabulary = {word: n for n, word in enumerate(("<eos>", *words))}
    model = models.WordLevel(vocabulary, **({"unk_token": unknown} if unknown else {}))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eot_id": 0}, "--eot 0 is a token id"),
        ({"noise": True}, "--noise"),
        ({"vocab_size": 300}, "--vocab-size"),
    ],
)
def test_options_that_do_nothing_for_text(tmp_path, options, message):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1), text(2)])
    tokenizer = str(write_tokenizer(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path / "out", path, tokenizer=tokenizer, **options)


@pytest.mark.parametrize(
    "options", [{"recipe": "pile"}, {"source_field": "s"}, {"text_field": "t"}, {"noise": True}]
)
def test_options_that_do_nothing_for_tokens(tmp_path, options):
    np.ones(10, np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(ConfigError, match=f"--{next(iter(options)).replace('_', '-')}"):
        prepare(tmp_path / "out", tmp_path / "a.bin", **options)


def test_strata_of_several_token_files_are_refused_for_what_they_are(tmp_path):
    for n in (1, 2):
        np.ones(10, np.uint16).tofile(tmp_path / f"fw_00000{n}.bin")
    inputs = [tmp_path / f"fw_00000{n}.bin" for n in (1, 2)]
    with pytest.raises(ConfigError, match=r'"fw".*2 token files'):
        prepare(tmp_path / "out", *inputs, strata=2)


def test_a_guess_and_what_is_not_read_are_told(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("train.bin", "val.bin", "test.bin"):
        np.array([1, 50256, 2, 50256], np.uint16).tofile(folder / name)
    arguments = ["data", "prepare", str(folder), "--out", str(tmp_path / "out")]
    for _ in range(2):  # also where it is found done
        shown = CliRunner().invoke(app, arguments).stdout
        assert "assumed end of documents: token 50256" in shown
        assert f"not read: {folder / 'test.bin'}" in shown
    given = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "b"), "--eot", "50256"])
    assert "assumed end" not in given.stdout


def test_strata_without_bytes_warn_and_are_not_compared_with_the_paper(tmp_path, caplog):
    words = [f"w{n}" for n in range(40)]
    tokenizer = write_words(tmp_path / "words.json", words)
    names = ["RedPajamaC4", "RedPajamaBook"]
    records = [
        {"text": " ".join(words[n : n + 5]), "meta": {"redpajama_set_name": names[n % 2]}}
        for n in range(20)
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    options = {"tokenizer": tokenizer, "recipe": "slimpajama-6b", "strata": 2}
    with caplog.at_level(logging.WARNING):
        manifest = prepare(tmp_path / "out", tmp_path / "a.jsonl", **options).manifest
    assert '"RedPajamaC4"' in caplog.text
    assert all(entry.bytes is None for entry in manifest.train)
    assert [row.paper_share for row in composition(manifest)] == [None, None]


def test_a_text_that_cannot_be_encoded_is_skipped_or_named(tmp_path):
    tokenizer = write_words(tmp_path / "words.json", ["a", "b"], unknown="[missing]")
    path = write_jsonl(tmp_path / "in.jsonl", ["a b", "a z", "b b"])
    options = {"tokenizer": tokenizer, "validation_fraction": 0}
    with pytest.raises(CorpusError, match=r"in\.jsonl:2: .*--bad-records repair, which skips it"):
        prepare(tmp_path / "out", path, **options)
    repaired = {**options, "bad_records": "repair"}
    manifest = prepare(tmp_path / "out", path, **repaired).manifest
    assert manifest.repairs == {"not encodable": 1}
    assert manifest.train[0].documents == 2


def test_a_bad_tokenizer_goes_by_the_name_it_was_given(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1), text(2)])
    (tmp_path / "my.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"^\S*/my\.json is not"):
        prepare(tmp_path / "out", path, tokenizer=str(tmp_path / "my.json"))
