"""Bad records: refused with their place named, or repaired and counted."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dograph.data.encode import Checker
from dograph.data.formats import Chunk, Line, Position, RawRow
from dograph.data.inputs import Input, PrepareOptions
from dograph.errors import CorpusError

OPTIONS = {"inputs": ("any",), "out": Path("nowhere"), "source_field": "meta.set"}
GOOD = b'{"text": "good", "meta": {"set": "a"}}'


def check(rows, *, repair, first=0, source=None):
    entry = Input("lines", "input", "train", source)
    if isinstance(rows, bytes):
        rows = [Line(content, 0, 0) for content in rows.split(b"\n")]
    options = PrepareOptions(**OPTIONS, bad_records="repair" if repair else "refuse")
    checker = Checker(Chunk(0, first, rows, Position(), []), entry, options)
    return [(t.record, t.source, t.text) for t in checker.texts()], checker.bad


BROKEN = {
    b'{"text": "caf\xe9", "meta": {"set": "a"}}': ("invalid UTF-8", "caf\ufffd"),
    rb'{"text": "half \ud83d pair", "meta": {"set": "a"}}': ("invalid UTF-8", "half \ufffd pair"),
    b'{"text": "no end': ("broken JSON", None),
    b'{"text": "raw \x00 zero", "meta": {"set": "a"}}': ("broken JSON", None),
    b'["text"]': ("broken JSON", None),
    b"\xff\xfe": ("broken JSON", None),
    b'{"n": ' + b"1" * 5000 + b"}": ("broken JSON", None),
    b"[" * 100_000: ("broken JSON", None),
    b'{"meta": {"set": "a"}}': ("missing text", None),
    b'{"text": null, "meta": {"set": "a"}}': ("missing text", None),
    b'{"text": 3, "meta": {"set": "a"}}': ("missing text", None),
    b'{"text": "x"}': ("missing source", None),
    b'{"text": "x", "meta": {"set": 7}}': ("missing source", None),
    b'{"text": "x", "meta": {"set": ""}}': ("missing source", None),
    rb'{"text": "x", "meta": {"set": "a\nb"}}': ("missing source", None),
    b'{"text": "x", "meta": "a"}': ("missing source", None),
}


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: repr(line[:40]))
def test_each_kind_of_bad_record(line):
    kind, mended = BROKEN[line]
    content = b"\n".join([GOOD, line, GOOD, b""])
    with pytest.raises(CorpusError, match=r"^input:12: "):  # for people, lines count from 1
        check(content, repair=False, first=10)
    good, bad = check(content, repair=True, first=10)
    middle = [(11, "a", mended)] if mended is not None else []
    assert good == [(10, "a", "good"), *middle, (12, "a", "good")]
    assert kind in {entry.kind for entry in bad}
    assert {entry.record for entry in bad} == {11}


def test_what_only_looks_odd_is_good():
    content = b"\xef\xbb\xbf" + GOOD + b"\r\n\n   \r\n" + GOOD  # a BOM, CRLF, blank lines, no end
    assert check(content, repair=False) == ([(0, "a", "good"), (3, "a", "good")], [])
    escaped = rb'{"text": "nul \u0000 pair \ud83d\ude42", "meta": {"set": "a"}}'
    assert check(escaped, repair=False)[0] == [(0, "a", "nul \0 pair 🙂")]


def test_a_source_given_for_the_whole_input_needs_no_field():
    assert check(b'{"text": "x"}', repair=False, source="s")[0] == [(0, "s", "x")]


def test_files_of_text():
    rows = [
        RawRow(b"\xef\xbb\xbfgood", None, "a.txt"),
        RawRow(b"\x7fELF\0\0", None, "b.txt"),
        RawRow(b"caf\xe9", None, "c.txt"),
    ]
    good, bad = check(rows, repair=True, source="s")
    assert good == [(0, "s", "good"), (2, "s", "caf\ufffd")]
    assert [(entry.kind, entry.file) for entry in bad] == [
        ("binary file", "b.txt"),
        ("invalid UTF-8", "c.txt"),
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
good_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
hostile_lines = st.one_of(
    st.binary(max_size=200),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda a, b: json.dumps({"text": a, "meta": b}).encode(), json_values, json_values),
    st.builds(lambda n: b'{"text": "' + b"y" * n, st.integers(0, 100_000)),
    st.just(b"\r"),
    st.just(b"\xef\xbb\xbf"),
)


@settings(max_examples=300, deadline=None)
@example([("first", b"\xef\xbb\xbf"), ("second", b"\r")])
@given(st.lists(st.tuples(good_texts, hostile_lines.filter(lambda b: b"\n" not in b))))
def test_no_line_breaks_the_reader_and_good_records_survive(pairs):
    rows = []
    for good, hostile in pairs:
        rows += [json.dumps({"text": good, "meta": {"set": "a"}}).encode(), hostile]
    content = b"\n".join(rows)
    found, bad = check(content, repair=True)
    by_record = {record: text for record, _, text in found}
    for number, (good, _) in enumerate(pairs):
        assert by_record[2 * number] == good
    for _, source, text in found:
        source.encode()
        text.encode()
    assert {entry.record % 2 for entry in bad} <= {1}
    if bad:
        first = min(entry.record for entry in bad)
        with pytest.raises(CorpusError, match=rf"^input:{first + 1}: "):
            check(content, repair=False)
    else:
        assert check(content, repair=False) == (found, [])
