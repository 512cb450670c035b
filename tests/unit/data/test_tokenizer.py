"""Tokenizers: found, trained, and never fooled by what a document spells."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from dograph.data import pipeline
from dograph.data.encode import (
    end_of_text,
    find_tokenizer,
    open_tokenizer,
    token_bytes,
    train_bpe,
)
from dograph.errors import ConfigError, CorpusError
from text_inputs import prepare, read_back, text, write_jsonl, write_tokenizer

EOT = "<|endoftext|>"


def test_special_tokens_in_a_document_stay_text(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    texts = [f"before {EOT} after", EOT, "plain"]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    prepare(tmp_path / "out", path, tokenizer=str(tokenizer), validation_fraction=0)
    assert read_back(tmp_path / "out") == {("train", "a"): texts}
    tokens = np.fromfile(tmp_path / "out" / "train" / "a.bin", np.uint16)
    assert (tokens == Tokenizer.from_file(str(tokenizer)).token_to_id(EOT)).sum() == 3


def test_truncation_and_padding_in_the_file_are_switched_off(tmp_path):
    path = write_tokenizer(tmp_path / "tokenizer.json")
    limited = Tokenizer.from_file(str(path))
    limited.enable_truncation(4)
    limited.enable_padding(length=4)
    limited.save(str(path))
    opened = open_tokenizer(path)
    long, short = opened.encode_batch_fast([text(1, 50), "a"], add_special_tokens=False)
    assert len(long.ids) > 4
    assert len(short.ids) == 1


def test_training_is_deterministic_and_complete():
    texts = [text(n) for n in range(200)]
    first = train_bpe(iter(texts), 400)
    assert first == train_bpe(iter(texts), 400)
    tokenizer = Tokenizer.from_str(first)
    assert sorted(tokenizer.get_vocab().values()) == list(range(400))
    odd = "unseen: \x00 \x7f ÿ 漢字 🦆"
    assert tokenizer.decode(tokenizer.encode(odd).ids) == odd


def test_the_default_tokenizer_learns_from_training_text_of_every_input(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "SAMPLE_BYTES", 4000)
    words = {"a": "zanzibar", "b": "quetzalcoatl"}
    for name, word in words.items():
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{n} {word}" * 3 for n in range(500)])
    held_out = write_jsonl(tmp_path / "v" / "a.jsonl", ["xylophone " * 200])
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    manifest = prepare(tmp_path / "out", *inputs, validation=(str(held_out),)).manifest
    vocabulary = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).get_vocab()
    spelled = " ".join(vocabulary)
    assert all(word in spelled for word in words.values())
    assert "xyloph" not in spelled
    assert manifest.tokenizer.name == "bpe"
    assert manifest.tokenizer.vocab_size == len(vocabulary) <= 4096
    again = prepare(tmp_path / "again", *inputs, validation=(str(held_out),)).manifest
    assert again.tokenizer.sha256 == manifest.tokenizer.sha256


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"eos_token": {"content": "<|im_end|>"}}, "<|im_end|>"),
        ({}, None),
        (None, None),
    ],
)
def test_a_folder_brings_its_end_of_sequence(tmp_path, config, expected):
    write_tokenizer(tmp_path / "t" / "tokenizer.json", eot="<|im_end|>")
    if config is not None:
        (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps(config))
    found = find_tokenizer(str(tmp_path / "t"))
    assert found.eos == expected
    tokenizer = Tokenizer.from_str(found.content)
    if expected:
        assert end_of_text(tokenizer, None, found.eos) == tokenizer.token_to_id("<|im_end|>")
    else:
        with pytest.raises(ConfigError, match="--eot"):
            end_of_text(tokenizer, None, found.eos)
    assert end_of_text(tokenizer, "a", found.eos) == tokenizer.token_to_id("a")
    with pytest.raises(ConfigError, match="<none>"):
        end_of_text(tokenizer, "<none>", found.eos)


@pytest.mark.parametrize("name", ["nowhere/tokenizer.json", "./nowhere"])
def test_a_missing_tokenizer_is_named(name):
    with pytest.raises(CorpusError, match=name):
        find_tokenizer(name)


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", b"[", b'{"model": {}}'])
def test_a_broken_tokenizer_is_named(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    path = write_jsonl(tmp_path / "a.jsonl", ["x", "y"])
    with pytest.raises(CorpusError, match=r"tokenizer\.json|t\.json"):
        prepare(tmp_path / "out", path, tokenizer=str(tmp_path / "t.json"))


def test_a_hugging_face_name_comes_from_the_cache_of_the_hub(tmp_path):
    """The layout of the hub's cache is public; with no network, a name is looked up there."""
    revision = "a" * 40
    repository = tmp_path / "hub" / "models--someone--small"
    snapshot = repository / "snapshots" / revision
    write_tokenizer(snapshot / "tokenizer.json", eot="<stop>")
    (snapshot / "tokenizer_config.json").write_text('{"eos_token": "<stop>"}')
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    code = (
        "from dograph.data.encode import find_tokenizer\n"
        "import sys\n"
        "print(find_tokenizer('someone/small').eos)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "find_tokenizer('someone/other')\n"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "<stop>\n"
    assert "CorpusError: cannot get the tokenizer 'someone/other'" in done.stderr


def test_bytes_behind_tokens_add_up_to_the_text(tmp_path):
    path = write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = open_tokenizer(path)
    eot = tokenizer.token_to_id(EOT)
    bytes_V = token_bytes(path, eot)
    for n in range(50):
        ids = tokenizer.encode(text(n)).ids
        assert bytes_V[ids].sum() == len(text(n).encode())
    assert bytes_V[eot] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
    ],
)
def test_bytes_stay_unknown_where_tokens_do_not_spell_the_text(tmp_path, change):
    path = write_tokenizer(tmp_path / "tokenizer.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert token_bytes(path, None) is None
