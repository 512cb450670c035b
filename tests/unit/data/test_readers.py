"""Every kind of input gives the same texts, with their numbers, from any record on."""

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dograph.data import formats
from dograph.data.encode import Checker
from dograph.data.formats import Fields, Position, pick
from dograph.data.inputs import Input, PrepareOptions
from dograph.data.pipeline import read_chunks
from dograph.errors import CorpusError
from text_inputs import COMPRESS, lines, resolve, text, write_jsonl

TEXTS = [text(n) for n in range(40)]
LABELS = ["even" if n % 2 == 0 else "odd" for n in range(40)]
EXPECTED = [(n, LABELS[n], TEXTS[n]) for n in range(40)]


def reading(fields=None, policy="refuse", seed=0):
    """Options that say how to read, whatever the inputs."""
    return PrepareOptions(
        inputs=("any",),
        out=Path("nowhere"),
        text_field=fields.text if fields else "text",
        source_field=fields.source if fields else None,
        bad_records=policy,
        seed=seed,
    )


def write_input(folder, kind):
    """The same forty labelled texts in some form; returns the argument that names them."""
    records = [
        {"meta": {"set": label}, "text": content, "other": 1}
        for label, content in zip(LABELS, TEXTS, strict=True)
    ]
    if kind.startswith("jsonl"):
        path = folder / f"a.{kind}"
        compress = COMPRESS[kind.removeprefix("jsonl")]
        streams = [compress(lines(records[n : n + 5])) for n in range(0, 40, 5)]
        path.write_bytes(b"".join(streams))
        return str(path)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), folder / "a.parquet", row_group_size=7)
        return str(folder / "a.parquet")
    if kind == "disk":
        datasets.Dataset.from_list(records).save_to_disk(folder / "saved")
        return str(folder / "saved")
    (folder / "set").mkdir()
    (folder / "set" / "data.jsonl").write_bytes(lines(records))
    return f"hf:{folder / 'set'}@train"


def named(source):
    """An input whose records belong to a source, or say themselves to which."""
    return Input("lines", "input", "train", source)


def texts_of(pieces, fields):
    found = []
    for chunk in pieces:
        checker = Checker(chunk, named(None), reading(fields))
        found += [(good.record, good.source, good.text) for good in checker.texts()]
    return found


@pytest.mark.parametrize(
    "kind", ["jsonl", "jsonl.gz", "jsonl.xz", "jsonl.zst", "parquet", "disk", "hub"]
)
def test_labelled_records_from_any_chunk_on(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 300)
    monkeypatch.setattr(formats, "READ_BYTES", 100)
    fields = Fields("text", "meta.set")
    inputs = resolve(write_input(tmp_path, kind), "train", labelled=True)
    options = reading(fields)
    pieces = list(read_chunks(inputs, Position(), options))
    assert texts_of(pieces, fields) == EXPECTED
    assert len(pieces) > 3
    done = []
    for piece in pieces:
        done += texts_of([piece], fields)
        rest = texts_of(read_chunks(inputs, piece.end, options), fields)
        assert done + rest == EXPECTED


def test_a_folder_of_texts_is_read_in_order_without_hidden_files(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 100)
    for name, content in (("b/2.txt", "two"), ("b/1.md", "\ufeffone"), (".git/x", "no")):
        (tmp_path / "in" / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "src" / name).write_text(content, encoding="utf-8")
    (tmp_path / "in" / "src" / "z.py").write_bytes(b"three\r\n")
    (tmp_path / "in" / "src" / ".hidden").write_text("no")
    (entry,) = resolve(str(tmp_path / "in"), "train", labelled=False)
    found = []
    for chunk in read_chunks([entry], Position(), reading()):
        found += [(t.text, t.source) for t in Checker(chunk, entry, reading()).texts()]
    assert found == [("three\r\n", "src"), ("one", "src"), ("two", "src")]


def test_embedded_corpora_resume_too():
    (entry,) = resolve("unigram", "train", labelled=False)
    options = reading(seed=3)
    pieces = list(read_chunks([entry], Position(), options))
    everything = texts_of(pieces, Fields())
    assert len({source for _, source, _ in everything}) > 1
    first = texts_of(pieces[:1], Fields())
    rest = texts_of(read_chunks([entry], pieces[0].end, options), Fields())
    assert first + rest == everything


def test_chunks_are_bounded_whatever_the_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 4096)
    path = write_jsonl(tmp_path / "a.jsonl", ["x" * n for n in range(0, 3000, 7)])
    (entry,) = resolve(str(path), "train", labelled=False)
    chunks = read_chunks([entry], Position(), reading())
    sizes = [sum(len(line.content) + 1 for line in chunk.rows) for chunk in chunks]
    assert sum(sizes) == path.stat().st_size
    assert max(sizes) < 4096 + 64 * 1024 + 3100


@pytest.mark.parametrize("policy", ["refuse", "repair"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_without_end_is_not_swallowed(tmp_path, monkeypatch, policy, suffix):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(formats, "MAX_RECORD_BYTES", 300_000)
    content = lines([{"text": "a"}]) + b'{"text": "' + b"x" * 900_000 + b'"}\n'
    content += lines([{"text": "b"}, {"text": "c"}])
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](content))
    (entry,) = resolve(str(path), "train", labelled=False)
    pieces = read_chunks([entry], Position(), reading(policy=policy))
    if policy == "refuse":
        with pytest.raises(CorpusError, match=rf"a\.jsonl{suffix}:2: .*longer than"):
            list(pieces)
        return
    pieces = list(pieces)
    good = [t for p in pieces for t in Checker(p, named("s"), reading()).texts()]
    assert [(t.record, t.text) for t in good] == [(0, "a"), (2, "b"), (3, "c")]
    assert [bad.record for piece in pieces for bad in piece.bad] == [1]


def test_a_field_may_be_nested_or_hold_a_dot():
    record = {"meta": {"set": "a", "deep": {"er": 1}}, "x.y": "b", "x": {"y": "c"}}
    assert pick(record, "meta.set") == "a"
    assert pick(record, "meta.deep.er") == 1
    assert pick(record, "x.y") == "b"
    assert pick(record, "meta.none") is None
    assert pick(record, "none.set") is None
    assert pick([1], "0") is None


def test_parquet_says_what_its_columns_are(tmp_path):
    pq.write_table(pa.table({"content": ["x"]}), tmp_path / "a.parquet")
    (entry,) = resolve(str(tmp_path / "a.parquet"), "train", labelled=False)
    with pytest.raises(CorpusError, match=r"a\.parquet: .*'text'.*content"):
        list(read_chunks([entry], Position(), reading()))


def test_a_damaged_row_group_loses_no_other(tmp_path):
    path = tmp_path / "a.parquet"
    content = {"text": [text(n, words=200) for n in range(30)]}
    pq.write_table(
        pa.table(content), path, row_group_size=10, use_dictionary=False, write_page_checksum=True
    )
    column = pq.read_metadata(path).row_group(1).column(0)
    raw = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    raw[middle : middle + 40] = bytes(40)
    path.write_bytes(raw)
    (entry,) = resolve(str(path), "train", labelled=False)
    with pytest.raises(CorpusError, match=r"a\.parquet:1\d: row group 1 is damaged"):
        list(read_chunks([entry], Position(), reading()))
    pieces = list(read_chunks([entry], Position(), reading(policy="repair")))
    good = {t.record: t.text for p in pieces for t in Checker(p, named("s"), reading()).texts()}
    assert {*range(10), *range(20, 30)} <= set(good)
    assert all(good[n] == content["text"][n] for n in good)
    assert sum(len(piece.bad) for piece in pieces) == 1


def test_a_dataset_brings_its_own_validation_split(tmp_path):
    write_jsonl(tmp_path / "set" / "train.jsonl", [text(1), text(2)])
    write_jsonl(tmp_path / "set" / "validation.jsonl", [text(3)])
    inputs = resolve(f"hf:{tmp_path / 'set'}", "train", labelled=False)
    assert [(entry.part, entry.split, entry.source) for entry in inputs] == [
        ("train", "train", "set"),
        ("validation", "validation", "set"),
    ]


def test_a_damaged_saved_dataset_is_named(tmp_path):
    datasets.Dataset.from_dict({"text": [text(n) for n in range(50)]}).save_to_disk(tmp_path / "d")
    (entry,) = resolve(str(tmp_path / "d"), "train", labelled=False)
    (arrow,) = (tmp_path / "d").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:200])
    with pytest.raises(CorpusError, match=str(tmp_path / "d")):
        list(read_chunks([entry], Position(), reading()))


def test_a_file_of_text_beyond_the_limit_is_named_or_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MAX_RECORD_BYTES", 100)
    (tmp_path / "s").mkdir()
    for name, size in (("a.txt", 10), ("b.txt", 101), ("c.txt", 100)):
        (tmp_path / "s" / name).write_text("x" * size)
    inputs = resolve(str(tmp_path / "s"), "train", labelled=False)
    with pytest.raises(CorpusError, match=r"b\.txt: .*longer than"):
        list(read_chunks(inputs, Position(), reading()))
    pieces = list(read_chunks(inputs, Position(), reading(policy="repair")))
    good = [t for p in pieces for t in Checker(p, named("s"), reading()).texts()]
    assert [(t.record, len(t.text)) for t in good] == [(0, 10), (2, 100)]
