"""Record files are read line by line; what is damaged is skipped, counted and named."""

import json
import math

import pytest

from dograph import records
from dograph.records import (
    Skipped,
    StepGaps,
    checked_step,
    read_last,
    read_lines,
    read_metrics,
    read_record,
    read_steps,
    unpacked,
)

GOOD = [{"step": n, "optim/lr": 1.0 / n} for n in range(1, 5)]
DAMAGED = {
    b'{"step": 2, "train/l': "not JSON",
    b"\x00" * 40: "not JSON",
    b'{"step": 2, "a\xff": 1}': "not UTF-8",
    b'"step"': "not a JSON object",
    b"[1, 2]": "not a JSON object",
    b"null": "not a JSON object",
    b"": "not JSON",
    b'{"train/loss_nats": 1.0}': "no step",
    b'{"step": "2"}': "not a whole number",
    b'{"step": 2.5}': "not a whole number",
    b'{"step": true}': "not a whole number",
    b'{"step": -1}': "not a whole number",
    b'{"step": null}': "not a whole number",
    b'{"step": ' + b"9" * 30 + b"}": "not a whole number",
    b'{"step": ' + b"9" * 5000 + b"}": "",  # more digits than Python reads
    b'{"step": 2, "train/loss_nats": "1.0"}': "",
    b'{"step": 2, "train/loss_nats": null}': "",
    b'{"step": 2, "domains/share": [[1.0]]}': "",
    b'{"step": 2, "domains/share": {"0": 1.0}}': "",
    b'{"step": 2, "train/loss_nats": 1' + b"0" * 400 + b"}": "",  # beyond a float
    b'{"step": 2, "\\ud800": 1.0}': "not UTF-8",  # half of a surrogate pair
    b"[" * 100_000: "",
}


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_line_costs_nothing_but_itself(tmp_path, damaged):
    file, skipped = tmp_path / "metrics.jsonl", Skipped()
    file.write_bytes(lines(GOOD[:1]) + damaged + b"\n" + lines(GOOD[2:]))
    assert list(read_metrics(file, skipped)) == [GOOD[0], *GOOD[2:]]
    (warning,) = skipped.warnings()
    assert warning.startswith(f"{file}: skipped 1 damaged record (line 2: ")
    assert DAMAGED[damaged] in warning
    assert len(warning) < len(str(file)) + 150


def test_numbers_that_are_not_finite_are_no_damage(tmp_path):
    (tmp_path / "m").write_text('{"step": 1, "a": NaN, "b": Infinity}\n')
    ((_, nan, inf),) = [row.values() for row in read_metrics(tmp_path / "m")]
    assert (nan != nan, inf) == (True, float("inf"))


def test_the_compact_form_is_read_under_the_documented_names(tmp_path):
    (tmp_path / "m").write_text('{"step":1,"train/a/loss_nats":2.0,"domains/share":[0.25,0.75]}\n')
    shares = {"domains/0/share": 0.25, "domains/1/share": 0.75}
    losses = {"train/a/loss_nats": 2.0, "train/a/ppl": math.exp(2)}
    assert list(read_metrics(tmp_path / "m")) == [{"step": 1} | losses | shares]
    old = {"step": 1, "train/loss_nats": 2.0, "train/ppl": 7.5, "domains/0/share": 1.0}
    (tmp_path / "m").write_text(json.dumps(old) + "\n")
    assert list(read_metrics(tmp_path / "m")) == [old]


def test_an_incomplete_last_line_is_told_unless_a_run_may_be_writing_it(tmp_path):
    file, skipped = tmp_path / "metrics.jsonl", Skipped()
    file.write_bytes(lines(GOOD)[:-1])  # whole, but for its end
    assert list(read_metrics(file, skipped)) == GOOD[:3]
    assert skipped.warnings(live=True) == []
    assert skipped.warnings() == [f"{file}: skipped line 4, the last, which is incomplete"]


def test_many_damaged_lines_are_counted_and_the_first_named(tmp_path):
    file, skipped = tmp_path / "metrics.jsonl", Skipped()
    file.write_bytes(b"?\n" * 7 + lines(GOOD))
    assert list(read_metrics(file, skipped)) == GOOD
    (warning,) = skipped.warnings()
    assert "skipped 7 damaged records (line 1: not JSON from character 0 on; line 2" in warning
    assert warning.endswith("; ...)")
    assert "line 4" not in warning


def test_a_line_longer_than_the_limit_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST", 64)
    file, skipped = tmp_path / "metrics.jsonl", Skipped()
    file.write_bytes(lines(GOOD[:2]) + b"\0" * 1000 + b"\n" + lines(GOOD[2:]) + b"\0" * 1000)
    assert list(read_metrics(file, skipped)) == GOOD
    assert (skipped.counts[file], skipped.unfinished[file]) == (1, 6)


def test_lines_are_read_one_at_a_time_and_only_those_wanted_are_parsed(tmp_path):
    file, skipped = tmp_path / "metrics.jsonl", Skipped()
    file.write_bytes(lines(GOOD) + b"?\n")
    rows = read_lines(file, checked_step, skipped, lambda line: b"3" in line or b"4" in line)
    assert next(rows) == 3
    assert list(rows) == [4]
    assert not skipped.warnings()


def test_files_that_are_missing_or_cannot_be_read(tmp_path):
    skipped = Skipped()
    assert list(read_metrics(tmp_path / "none", skipped)) == []
    assert read_record(tmp_path / "none", dict, skipped) is None
    assert not skipped.warnings()
    assert list(read_metrics(tmp_path, skipped)) == []
    assert read_record(tmp_path, dict, skipped) is None
    assert "Is a directory" in skipped.warnings()[0]


def test_a_file_of_one_record(tmp_path):
    file, skipped = tmp_path / "env.json", Skipped()
    file.write_text('{"step": 3}')
    assert read_record(file, checked_step, skipped) == 3
    for content in (b"", b"{", b"[]", b"\xff", b"{}", b'{"step": []}'):
        file.write_bytes(content)
        assert read_record(file, checked_step, skipped) is None
    assert skipped.counts == {file: 6}


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([*range(1, 11), *range(41, 45)], "11 to 40"),
        ([*range(1, 11), 14, 15, 16], "11 to 13"),
        ([1, 2, 4, 5, 5, 7, 8], "3, 6"),
        ([30, 31], "1 to 29"),
        ([1, 3, 5, 7, 9], "2, 4, 6 and 1 more gaps"),
        ([1, 2, 3, 3, 4], None),
        ([1, 2, 0, 3], None),  # a damaged line has no step
        ([], None),
    ],
)
def test_gaps(tmp_path, steps, missing):
    gaps = StepGaps()
    for step in steps:
        gaps.add(step)
    texts = [f"m has no rows of steps {missing}: they are lost"] if missing else []
    assert gaps.warnings("m") == texts


def test_a_graph_in_compact_form(tmp_path):
    edges = [{"first": 0, "second": 1, "cosine": 0.5}, {"first": 0, "second": 2, "cosine": 0.1}]
    packed = {name: [edge[name] for edge in edges] for name in edges[0]}
    assert unpacked({"step": 3, "nodes": [], "edges": packed})["edges"] == edges
    assert unpacked({"step": 3, "nodes": [], "edges": edges})["edges"] == edges


def test_the_last_whole_record(tmp_path):
    file, skipped = tmp_path / "graph.jsonl", Skipped()
    assert read_last(file, checked_step, skipped) is None
    file.write_bytes(lines(GOOD) + b"?\n{}\n{")
    assert read_last(file, checked_step, skipped) == 4
    assert (skipped.counts[file], skipped.unfinished[file]) == (2, 7)
    assert read_last(file, checked_step, wanted=lambda line: b"2," in line) == 2


def test_steps_are_read_from_the_start_of_lines_or_else_by_parsing(tmp_path):
    file = tmp_path / "m"
    lines = ['{"step": 1, "cut', '{"x": 0, "step": 2}', "\0\0", '{"x": 0}', '{"step": 3}']
    file.write_text("\n".join(lines) + '\n{"step": 4')
    assert [step for _, step in read_steps(file)] == [1, 2, 3]
    assert list(read_steps(tmp_path / "none")) == []
