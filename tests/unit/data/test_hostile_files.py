"""Damaged files of every kind: tokens, or an error that names the file; never another error."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dograph.errors import DographError
from text_inputs import COMPRESS, lines, prepare, read_back, text, write_tokenizer

TEXTS = [text(n, 40) for n in range(60)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return str(write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


def whole_file(path):
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=20)
    else:
        content = lines([{"text": content} for content in TEXTS])
        path.write_bytes(COMPRESS[path.suffix if path.suffix in COMPRESS else ""](content))
    return path.read_bytes()


damages = st.fixed_dictionaries(
    {
        "flips": st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=3),
        "cut": st.floats(0, 1) | st.just(1.0),
    }
)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst", ".parquet"])
@settings(max_examples=25, deadline=None)
@given(damage=damages, policy=st.sampled_from(["refuse", "repair"]))
def test_damage(tmp_path_factory, tokenizer, suffix, damage, policy):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / f"input{suffix}"
    raw = bytearray(whole_file(path))
    for place, flip in damage["flips"]:
        raw[round(place * (len(raw) - 1))] ^= flip
    raw = raw[: round(damage["cut"] * len(raw))]
    path.write_bytes(raw)
    options = {"tokenizer": tokenizer, "validation_fraction": 0, "bad_records": policy}
    message = ""
    try:
        prepare(folder / "out", path, **options)
    except DographError as error:
        message = str(error)
    if message:
        assert "input" in message
    else:
        assert read_back(folder / "out")["train", "input"]


@settings(max_examples=15, deadline=None)
@given(cut=st.floats(0.05, 0.99))
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
def test_all_records_before_a_cut_survive_repair(tmp_path_factory, tokenizer, suffix, cut):
    folder = tmp_path_factory.mktemp("cut")
    path = folder / f"input{suffix}"
    # a stream for every six records, so that what must survive is known
    pieces = [lines([{"text": t} for t in TEXTS[n : n + 6]]) for n in range(0, 60, 6)]
    streams = [COMPRESS[path.suffix if path.suffix in COMPRESS else ""](p) for p in pieces]
    content = b"".join(streams)
    size = round(cut * len(content))
    path.write_bytes(content[:size])
    whole = sum(sum(map(len, streams[: n + 1])) <= size for n in range(len(streams)))
    options = {"tokenizer": tokenizer, "validation_fraction": 0, "bad_records": "repair"}
    try:
        prepare(folder / "out", path, **options)
    except DographError:
        assert whole == 0
        return
    found = read_back(folder / "out")["train", "input"]
    assert found == TEXTS[: len(found)]
    assert 6 * whole <= len(found) <= 6 * whole + 6
