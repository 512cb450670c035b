"""A slice of a corpus: which documents are in it, and that nothing else decides."""

import hashlib
import json
import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from dograph.cli.main import app
from dograph.data import embedded as demo
from dograph.data import formats
from dograph.data.inputs import Input
from dograph.errors import CorpusError
from slices import TEXTS, is_kept, prepare_by_command
from text_inputs import (
    files_of,
    lines,
    origins,
    prepare,
    read_back,
    write_jsonl,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return str(write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


@pytest.mark.parametrize(("keep", "seed"), [(0.3, 0), (0.3, 7), (0.02, 0), (0.999, 0)])
def test_exactly_the_documents_below_the_hash_are_kept(tmp_path, tokenizer, keep, seed):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    options = {"tokenizer": tokenizer, "validation_fraction": 0, "keep": keep, "seed": seed}
    manifest = prepare(tmp_path / "out", path, **options).manifest
    chosen = [t for t in TEXTS if is_kept(t, keep, seed)]
    assert 0 < len(chosen) < len(TEXTS)
    assert read_back(tmp_path / "out") == {("train", "a"): chosen}
    assert [TEXTS[record] for _, record in origins(tmp_path / "out")["a"]] == chosen
    assert manifest.options["keep"] == keep
    assert manifest.options["unkept_documents"] == len(TEXTS) - len(chosen)
    assert manifest.options["unkept_bytes"] == sum(
        len(t.encode()) for t in TEXTS if not is_kept(t, keep, seed)
    )
    assert manifest.options["unkept_sources"] is None


def test_slices_are_nested_and_split_as_the_whole_is(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    sides = {}
    for keep in (0.1, 0.5, 1):
        options = {"tokenizer": tokenizer, "validation_fraction": 0.3, "keep": keep}
        prepare(tmp_path / str(keep), path, **options)
        found = read_back(tmp_path / str(keep))
        sides[keep] = [set(found[split, "a"]) for split in ("train", "validation")]
    for small, large in ((0.1, 0.5), (0.5, 1)):
        for one, other in zip(sides[small], sides[large], strict=True):
            assert one < other
            assert one == {t for t in other if is_kept(t, small)}
    held_out = len(sides[0.5][1])
    kept = held_out + len(sides[0.5][0])
    assert abs(held_out - 0.3 * kept) < 4 * math.sqrt(0.3 * 0.7 * kept)


def test_equal_texts_stay_together_also_across_sources(tmp_path, tokenizer):
    one = write_jsonl(tmp_path / "one.jsonl", [*TEXTS, *reversed(TEXTS)])
    two = write_jsonl(tmp_path / "two.jsonl", TEXTS)
    prepare(tmp_path / "out", one, two, tokenizer=tokenizer, keep=0.4, validation_fraction=0)
    found = read_back(tmp_path / "out")
    counts = Counter(found["train", "one"])
    assert set(counts.values()) == {2}
    assert set(counts) == set(found["train", "two"]) == {t for t in TEXTS if is_kept(t, 0.4)}


def test_a_slice_is_the_corpus_of_its_documents_alone(tmp_path):
    """Also the tokenizer trained on the way, which sees no other text."""
    chosen = [t for t in TEXTS if is_kept(t, 0.4)]
    whole = write_jsonl(tmp_path / "whole" / "a.jsonl", TEXTS)
    alone = write_jsonl(tmp_path / "alone" / "a.jsonl", chosen)
    options = {"vocab_size": 400, "validation_fraction": 0.1}
    prepare(tmp_path / "slice", whole, keep=0.4, **options)
    prepare(tmp_path / "true", alone, **options)
    stored, expected = files_of(tmp_path / "slice"), files_of(tmp_path / "true")
    for name in ("tokenizer.json", "train/a.bin", "validation/a.bin"):
        assert stored[name] == expected[name]


def test_one_is_as_if_nothing_was_said(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:50])
    arguments = ["data", "prepare", str(path), "--tokenizer", tokenizer]
    for name, more in (("plain", []), ("one", ["--keep", "1"])):
        shown = CliRunner().invoke(app, [*arguments, *more, "--out", str(tmp_path / name)])
        assert shown.exit_code == 0
        assert "--keep" not in shown.output
    assert files_of(tmp_path / "plain") == files_of(tmp_path / "one")


def test_a_corpus_from_before_there_were_slices_is_found_done(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:50])
    prepare(tmp_path / "out", path, tokenizer=tokenizer)
    stored = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert stored["options"].pop("keep") == 1
    assert not [name for name in stored["options"] if "keep" in name or "unkept" in name]
    # what was recorded before, and the digest that was taken of it
    recorded = {
        name: value
        for name, value in sorted(stored["options"].items())
        if name not in ("bad_records", "left_out", "fingerprint")
    }
    content = f"{Path(tokenizer).read_text()}\0None".encode()
    stamp = Input("lines", str(path), "train", "a", path).stamp
    stamps = {
        f"the input {path}": f"train:a:{stamp}",
        f"the tokenizer {tokenizer}": hashlib.sha256(content).hexdigest(),
    }
    digest = hashlib.sha256(json.dumps([recorded, stamps]).encode()).hexdigest()
    assert stored["options"]["fingerprint"] == digest
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(stored))
    assert prepare(tmp_path / "out", path, tokenizer=tokenizer).already
    with pytest.raises(CorpusError, match=r"--keep was 1\.0, now 0\.5\. .*delete the folder"):
        prepare(tmp_path / "out", path, tokenizer=tokenizer, keep=0.5)
    with pytest.raises(CorpusError, match=r"differently: --seed was 0, now 1\. "):
        prepare(tmp_path / "out", path, tokenizer=tokenizer, seed=1)


def test_any_number_of_workers_gives_the_same_slice(tmp_path, tokenizer, monkeypatch):
    records = [{"text": t, "s": f"s{n % 5}"} for n, t in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    options = {"source_field": "s", "tokenizer": tokenizer, "keep": 0.2}
    prepare(tmp_path / "whole", tmp_path / "a.jsonl", **options)
    monkeypatch.setattr(formats, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(formats, "READ_BYTES", 1000)
    for number in (1, 2):
        prepare(tmp_path / str(number), tmp_path / "a.jsonl", workers=number, **options)
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2") == files_of(tmp_path / "whole")


def test_sources_keep_their_shares_within_sampling_error(tmp_path, tokenizer, monkeypatch):
    quarter = {name: (chars // 4, make) for name, (chars, make) in demo.SOURCES.items()}
    monkeypatch.setattr(demo, "SOURCES", quarter)
    monkeypatch.setattr(demo, "MIN_SOURCE_CHARS", 0)
    documents = list(demo.demo_documents())
    monkeypatch.setattr(demo, "demo_documents", lambda: iter(documents))
    keep = 0.25
    options = {"tokenizer": tokenizer, "validation_fraction": 0, "keep": keep}
    manifest = prepare(tmp_path / "out", "demo", **options).manifest
    whole = Counter(source for source, _ in documents)
    kept = {entry.source: entry.documents for entry in manifest.train}
    assert len(whole) >= 6
    assert kept.keys() == whole.keys()
    assert sum(kept.values()) + manifest.options["unkept_documents"] == whole.total()
    for source, number in whole.items():
        assert abs(kept[source] - keep * number) < 4 * math.sqrt(keep * (1 - keep) * number)
        share = number / whole.total()
        error = math.sqrt(share * (1 - share) / sum(kept.values()))
        assert abs(kept[source] / sum(kept.values()) - share) < 4 * error


@pytest.mark.parametrize("brought", [True, False])
def test_validation_text_that_is_given_stays_whole(tmp_path, tokenizer, brought):
    train = write_jsonl(tmp_path / "in" / "train" / "a.jsonl", TEXTS[:200])
    given = write_jsonl(tmp_path / "in" / "validation" / "a.jsonl", TEXTS[200:])
    inputs = [tmp_path / "in"] if brought else [train]
    options = {"tokenizer": tokenizer, "keep": 0.1}
    options |= {} if brought else {"validation": (str(given),)}
    prepare(tmp_path / "out", *inputs, **options)
    assert read_back(tmp_path / "out") == {
        ("train", "a"): [t for t in TEXTS[:200] if is_kept(t, 0.1)],
        ("validation", "a"): TEXTS[200:],
    }


def test_what_is_not_kept_is_not_encoded(tmp_path):
    """The tokenizer would refuse it."""
    vocabulary = {word: n for n, word in enumerate(("<eos>", "a"))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[missing]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "words.json"))
    options = {"tokenizer": str(tmp_path / "words.json"), "validation_fraction": 0, "keep": 0.5}
    good = ["a " * n for n in range(1, 30)]
    odd = [f"odd {n}" for n in range(40)]
    path = write_jsonl(tmp_path / "a.jsonl", [*good, *(t for t in odd if not is_kept(t, 0.5))])
    manifest = prepare(tmp_path / "out", path, **options).manifest
    assert manifest.train[0].documents == sum(is_kept(t, 0.5) for t in good)
    path = write_jsonl(tmp_path / "b.jsonl", [*good, *odd])
    with pytest.raises(CorpusError, match="cannot encode"):
        prepare(tmp_path / "b", path, **options)


def write_parquet(path, texts, names):
    """As the shards of SlimPajama-6B are laid out on the hub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    label = pa.struct([("redpajama_set_name", pa.string())])
    meta = pa.array([{"redpajama_set_name": name} for name in names], label)
    index = pa.array(range(len(texts)), pa.int64())
    columns = {"text": pa.array(texts), "meta": meta, "__index_level_0__": index}
    pq.write_table(pa.table(columns), path)


def test_a_slice_of_slimpajama_from_a_shard_on_disk(tmp_path, tokenizer):
    names = [("RedPajamaC4", "RedPajamaCommonCrawl", "RedPajamaArXiv")[n % 3] for n in range(300)]
    folder = tmp_path / "spj"
    shards = {"train-00000-of-00048-ab2b35705f029d94": slice(0, 150)}
    shards |= {"train-00001-of-00048-f2ff493d6eb6da4e": slice(150, 300)}
    for name, part in shards.items():
        write_parquet(folder / "data" / f"{name}.parquet", TEXTS[:300][part], names[part])
    others = {"test-00000-of-00001-9f769cf7ce219017": slice(300, 350)}
    others |= {"validation-00000-of-00001-4fb685c22a3f91ef": slice(350, 400)}
    for name, part in others.items():
        write_parquet(folder / "data" / f"{name}.parquet", TEXTS[part], ["RedPajamaC4"] * 50)
    arguments = ["--recipe", "slimpajama-6b", "--tokenizer", tokenizer, "--keep", 0.2]
    shown = prepare_by_command(folder, *arguments, "--out", tmp_path / "out").stdout
    found = read_back(tmp_path / "out")
    for source in set(names):
        assert found["train", source] == [
            t
            for t, name in zip(TEXTS[:300], names, strict=True)
            if name == source and is_kept(t, 0.2)
        ]
    assert found["validation", "RedPajamaC4"] == TEXTS[300:350]
    assert "not read: " + str(folder / "data" / "validation-00000") in shown
    assert f"left out {sum(not is_kept(t, 0.2) for t in TEXTS[:300])} training documents" in shown
    shard = folder / "data" / f"{next(iter(shards))}.parquet"
    prepare_by_command(shard, *arguments, "--out", tmp_path / "one")
    one = read_back(tmp_path / "one")
    alone = sorted(t for texts in one.values() for t in texts)
    assert alone == sorted(t for t in TEXTS[:150] if is_kept(t, 0.2))
