"""Bytes of a stratum, worked out from its tokens, against the text that the tokens came from."""

import json
import lzma
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dograph.data import strata
from dograph.data.corpus import TokenizerEntry
from dograph.rng import stream
from token_corpora import documents_of, write_manifest, write_split

SHARED = Path(__file__).parents[4] / "shared" / "data"


def byte_level_tokenizer(directory, normalizer=None):
    """A small byte-level tokenizer with an end-of-text token, saved beside a corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["the quick brown fox", "größer", "日本語"] * 10,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer


def write_text_corpus(directory, tokenizer, texts, eot_id):
    tokens = [[*tokenizer.encode(text).ids, eot_id] for text in texts]
    entry = TokenizerEntry(
        name="test",
        file="tokenizer.json",
        sha256=None,
        vocab_size=tokenizer.get_vocab_size(),
        eot_id=eot_id,
    )
    num_bytes = sum(len(text.encode()) for text in texts)
    train = write_split(directory, "train", "web", tokens, num_bytes)
    return write_manifest(directory, [train], tokenizer=entry)


def assert_bytes_are_those_of_the_text(directory, divided, texts):
    for entry in divided.train:
        (documents,) = documents_of(directory, [entry]).values()
        assert entry.bytes == sum(len(texts[record // 10].encode()) for record, _ in documents)


def test_bytes_of_a_stratum_are_those_of_its_text(tmp_path):
    tokenizer = byte_level_tokenizer(tmp_path)
    rng = stream(0, "texts")
    words = ["the", "fox", "größer", "日本語", "🦊🦊", "\n\n", "x\ty", "é̈"]
    texts = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(120)]
    eot_id = tokenizer.token_to_id("<|endoftext|>")
    manifest = write_text_corpus(tmp_path, tokenizer, texts, eot_id)
    divided = strata.split_into_strata(tmp_path, manifest, 3, seed=0)
    assert len(divided.train) == 3
    assert_bytes_are_those_of_the_text(tmp_path, divided, texts)


def test_bytes_are_unknown_where_the_tokenizer_changes_the_text(tmp_path, caplog):
    tokenizer = byte_level_tokenizer(tmp_path, normalizers.Strip())
    texts = [f"  the fox {index}  " for index in range(30)]
    eot_id = tokenizer.token_to_id("<|endoftext|>")
    manifest = write_text_corpus(tmp_path, tokenizer, texts, eot_id)
    divided = strata.split_into_strata(tmp_path, manifest, 2, seed=0)
    assert [entry.bytes for entry in divided.train] == [None, None]
    assert '"web"' in caplog.text


def test_bytes_are_unknown_to_a_tokenizer_that_does_not_work_on_bytes(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert strata.token_bytes(tmp_path / "tokenizer.json", None) is None


@pytest.mark.shared
def test_bytes_add_up_on_real_text_with_the_gpt2_tokenizer(tmp_path):
    archive = SHARED / "slimpajama-mini/validation/RedPajamaGithub.jsonl.xz"
    original = SHARED / "gpt2-tokenizer/tokenizer.json"
    if not (archive.is_file() and original.is_file()):
        pytest.skip("needs slimpajama-mini and gpt2-tokenizer in ../shared/data")
    with lzma.open(archive, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    shutil.copyfile(original, tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(original))
    manifest = write_text_corpus(tmp_path, tokenizer, texts, eot_id=50256)
    divided = strata.split_into_strata(tmp_path, manifest, 4, seed=0)
    assert_bytes_are_those_of_the_text(tmp_path, divided, texts)
