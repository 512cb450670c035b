"""Tokens made elsewhere: used where they are, checked, and indexed."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dograph.data import staging
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, CorpusError, DographError
from text_inputs import files_of, prepare, text, write_jsonl, write_tokenizer
from token_corpora import span

CODES = {np.uint8: 1, np.int16: 3, np.int32: 4, np.int64: 5, np.uint16: 8}


def write_megatron(prefix, documents, dtype=np.uint16):
    """The published layout, written out: `documents` are lists of sequences of tokens."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    itemsize = np.dtype(dtype).itemsize
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * itemsize
    bounds = np.cumsum([0, *(len(document) for document in documents)])
    with open(f"{prefix}.bin", "wb") as file:
        for sequence in sequences:
            file.write(np.array(sequence, dtype).tobytes())
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00")
        file.write(struct.pack("<Q", 1))
        file.write(struct.pack("<B", CODES[dtype]))
        file.write(struct.pack("<Q", len(sequences)))
        file.write(struct.pack("<Q", len(bounds)))
        file.write(lengths.tobytes())
        file.write(pointers.astype(np.int64).tobytes())
        file.write(bounds.astype(np.int64).tobytes())


def random_documents(seed, count, eot=None, vocab=120):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(1, vocab, rng.integers(1, 40)).tolist() for _ in range(count)]
    return [[*document, eot] if eot is not None else document for document in documents]


def documents_in(directory, split):
    """Every document of a split as a list of tokens, through the package's own memory maps."""
    found = []
    for stratum in Corpus(directory).strata(split):
        spans = [slice(*span(stratum, n)) for n in range(stratum.entry.documents)]
        found += [stratum.token_N[own].tolist() for own in spans]
        data = stratum.token_N.tobytes()
        assert hashlib.sha256(data).hexdigest() == stratum.entry.sha256
    return found


@pytest.mark.parametrize("dtype", list(CODES))
@pytest.mark.parametrize(
    "name", ["c4_text_document", "c4_text_document.bin", "c4_text_document.idx"]
)
def test_megatron_files_are_used_in_place(tmp_path, monkeypatch, dtype, name):
    monkeypatch.setattr(staging, "PIECE", 64)
    flat = random_documents(1, 50)
    documents = [[doc[: len(doc) // 2], doc[len(doc) // 2 :]] for doc in flat]
    write_megatron(tmp_path / "c4_text_document", documents, dtype)
    before = files_of(tmp_path)
    prepared = prepare(tmp_path / "out", tmp_path / name, validation_fraction=0.2, vocab_size=120)
    (train,), (held_out,) = prepared.manifest.train, prepared.manifest.validation
    assert train.source == train.stratum == "c4"
    assert train.file == held_out.file == str((tmp_path / "c4_text_document.bin").resolve())
    assert held_out.first_token == train.tokens
    assert (
        documents_in(tmp_path / "out", "train") + documents_in(tmp_path / "out", "validation")
        == flat
    )
    total = sum(map(len, flat))
    assert 0.1 * total < held_out.tokens <= 0.2 * total
    assert prepared.manifest.tokenizer.vocab_size == 120
    assert train.bytes is None
    assert {k: v for k, v in files_of(tmp_path).items() if not k.startswith("out/")} == before
    assert not list((tmp_path / "out").rglob("*.bin"))


@pytest.mark.parametrize("header", [None, (20240520, 1, np.uint16), (20240801, 7, np.uint32)])
def test_flat_files_are_cut_at_the_end_of_text(tmp_path, monkeypatch, header):
    monkeypatch.setattr(staging, "PIECE", 7)
    flat = [*random_documents(2, 40, eot=50256, vocab=50000), [1, 2, 3]]  # the last without an end
    tokens = np.concatenate(flat)
    dtype = header[2] if header else np.uint16
    content = tokens.astype(dtype).tobytes()
    if header:
        ints = np.zeros(256, np.int32)
        ints[:3] = header[0], header[1], len(tokens)
        content = ints.tobytes() + content
    (tmp_path / "fw_train_000001.bin").write_bytes(content)
    options = {"eot_id": 50256} if dtype == np.uint32 else {}
    manifest = prepare(tmp_path / "out", tmp_path / "fw_train_000001.bin", **options).manifest
    found = documents_in(tmp_path / "out", "train") + documents_in(tmp_path / "out", "validation")
    assert found == flat
    assert manifest.train[0].source == "fw"
    assert manifest.train[0].header_bytes == (1024 if header else 0)
    assert manifest.tokenizer.eot_id == 50256
    assert manifest.tokenizer.vocab_size == 50257


def test_a_flat_file_without_end_of_text_is_one_document(tmp_path):
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    manifest = prepare(tmp_path / "out", tmp_path / "a.bin").manifest
    assert manifest.train[0].documents == 1
    assert not manifest.validation
    assert manifest.tokenizer.eot_id is None


def test_given_validation_and_several_files_of_one_source(tmp_path):
    flat = [random_documents(n, 10, eot=50256) for n in range(3)]
    for n, name in enumerate(("fw_train_000001", "fw_train_000002", "fw_val_000000")):
        np.concatenate(flat[n]).astype(np.uint16).tofile(tmp_path / f"{name}.bin")
    inputs = [tmp_path / f"fw_train_00000{n}.bin" for n in (1, 2)]
    validation = (str(tmp_path / "fw_val_000000.bin"),)
    manifest = prepare(tmp_path / "out", *inputs, validation=validation).manifest
    assert [entry.stratum for entry in manifest.train] == ["fw/0", "fw/1"]
    assert documents_in(tmp_path / "out", "train") == flat[0] + flat[1]
    assert documents_in(tmp_path / "out", "validation") == flat[2]
    assert Corpus(tmp_path / "out").sources == ["fw"]


def test_a_tokenizer_gives_bytes_bounds_and_text(tmp_path):
    path = write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    texts = [text(n) for n in range(30)]
    flat = [[*tokenizer.encode(t).ids, 0] for t in texts]
    np.concatenate(flat).astype(np.uint16).tofile(tmp_path / "a.bin")
    options = {"tokenizer": str(path), "validation_fraction": 0}
    manifest = prepare(tmp_path / "out", tmp_path / "a.bin", **options).manifest
    assert manifest.train[0].documents == 30
    assert manifest.train[0].bytes == sum(len(t.encode()) for t in texts)
    assert manifest.tokenizer.eot_id == 0
    corpus = Corpus(tmp_path / "out")
    start, end = span(corpus.train[0], 7)
    ids = corpus.train[0].token_N[start : end - 1].tolist()
    assert corpus.tokenizer.decode(ids) == texts[7]
    write_jsonl(tmp_path / "again.jsonl", texts)
    tokens = prepare(tmp_path / "text", tmp_path / "again.jsonl", **options).manifest.train[0]
    assert (tokens.sha256, tokens.bytes) == (manifest.train[0].sha256, manifest.train[0].bytes)


def test_ids_out_of_range_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "PIECE", 64)
    tokens = np.full(200, 5, np.uint16)
    tokens[150] = 300
    tokens.tofile(tmp_path / "a.bin")
    with pytest.raises(CorpusError, match=r"a\.bin: token 150 is 300.*300"):
        prepare(tmp_path / "out", tmp_path / "a.bin", vocab_size=300)
    write_megatron(tmp_path / "m", [[[1, -2, 3]], [[4]]], np.int32)
    with pytest.raises(CorpusError, match=r"m\.bin: token 1 is -2"):
        prepare(tmp_path / "out", tmp_path / "m.bin")


def test_strata_copy_the_tokens_and_leave_the_file_alone(tmp_path):
    flat = [[1 + n % 2] * 40 + [50256] for n in range(60)]
    np.concatenate(flat).astype(np.uint16).tofile(tmp_path / "a.bin")
    before = (tmp_path / "a.bin").read_bytes()
    manifest = prepare(tmp_path / "out", tmp_path / "a.bin", strata=2).manifest
    assert {entry.stratum for entry in manifest.train} == {"a/0", "a/1"}
    assert (tmp_path / "a.bin").read_bytes() == before
    found = documents_in(tmp_path / "out", "train") + documents_in(tmp_path / "out", "validation")
    assert sorted(found) == sorted(flat)


def test_tokens_and_text_do_not_mix(tmp_path):
    np.ones(10, np.uint16).tofile(tmp_path / "a.bin")
    path = write_jsonl(tmp_path / "b.jsonl", ["x", "y"])
    with pytest.raises(CorpusError, match="two corpora"):
        prepare(tmp_path / "out", tmp_path / "a.bin", path)
    with pytest.raises(ConfigError, match="--eot ID"):
        prepare(tmp_path / "out", tmp_path / "a.bin", eot="<|endoftext|>")


def test_it_is_found_done_like_any_other_corpus(tmp_path):
    np.ones(10, np.uint16).tofile(tmp_path / "a.bin")
    prepare(tmp_path / "out", tmp_path / "a.bin")
    assert prepare(tmp_path / "out", tmp_path / "a.bin").already
    stored = {path.name for path in (tmp_path / "out").iterdir()}
    assert stored == {"train", "manifest.json", "digests.json"}


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"X", "not a Megatron index"),
        (9, b"\x02", "version 1"),
        (17, b"\x07", "float32"),
        (17, b"\x63", "unknown type"),
        (18, b"\xff\xff\xff", "sequences"),
        (34, b"\x09", "does not follow|describes"),
    ],
)
def test_a_damaged_index_is_named(tmp_path, offset, value, message):
    write_megatron(tmp_path / "m", [[[1, 2, 3]], [[4, 5]]])
    raw = bytearray((tmp_path / "m.idx").read_bytes())
    raw[offset : offset + len(value)] = value
    (tmp_path / "m.idx").write_bytes(raw)
    with pytest.raises(CorpusError, match=rf"m\.(idx|bin).*({message})"):
        prepare(tmp_path / "out", tmp_path / "m.bin")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["idx", "bin", "header"])
def test_no_damage_to_token_files_gets_past_as_another_error(tmp_path_factory, kind, data):
    folder = tmp_path_factory.mktemp("damaged")
    if kind == "header":
        ints = np.zeros(256, np.int32)
        ints[:3] = 20240520, 1, 100
        target = folder / "m.bin"
        target.write_bytes(ints.tobytes() + np.arange(100, dtype=np.uint16).tobytes())
    else:
        write_megatron(folder / "m", [[doc] for doc in random_documents(3, 12)])
        target = folder / f"m.{kind}"
    raw = bytearray(target.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[place] ^= data.draw(st.integers(1, 255))
    target.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    message = ""
    try:
        prepare(folder / "out", folder / "m.bin", vocab_size=70_000)
    except DographError as error:
        message = str(error)
    if message:
        assert "m.idx" in message or "m.bin" in message
    else:
        assert documents_in(folder / "out", "train")
        documents_in(folder / "out", "validation")
