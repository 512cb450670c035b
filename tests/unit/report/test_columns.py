"""Columns of a file that grows, is cut short by a kill, or is cut back by a resumption."""

import json
import math
import os

from dograph.report.series import Columns


def rows(first, last):
    return "".join(json.dumps({"step": n, "a": 1.0 * n}) + "\n" for n in range(first, last + 1))


def test_a_growing_file_is_read_on(tmp_path):
    file = tmp_path / "metrics.jsonl"
    columns = Columns(file)
    columns.read()
    assert columns.names == []
    file.write_text(rows(1, 3))
    columns.read()
    assert columns.get("a")[0].tolist() == [1, 2, 3]
    with open(file, "a") as opened:
        opened.write(rows(4, 5) + '{"step": 6, "a"')
    for _ in range(2):  # the second time there is nothing new
        columns.read()
        assert columns.get("a")[0].tolist() == [1, 2, 3, 4, 5]
    with open(file, "a") as opened:
        opened.write(": 6.0}\n")
    columns.read()
    assert columns.last("a") == 6.0
    assert columns.get("a")[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_file_that_was_cut_back_is_read_anew(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(rows(1, 9))
    columns = Columns(file)
    columns.read()
    (tmp_path / "new").write_text(rows(1, 4) + rows(5, 12))
    os.replace(tmp_path / "new", file)
    columns.read()
    assert columns.get("a")[0].tolist() == list(range(1, 13))


def test_what_is_no_number_is_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    told = {"step": 1, "a": math.nan, "b": math.inf, "c": "text", "d": 2, "e/ppl": 3.0}
    file.write_text(json.dumps(told) + "\nno json\n[]\n")
    columns = Columns(file)
    columns.read()
    assert columns.names == ["d"]
    assert list(columns.skipped.counts.values()) == [2]
    assert columns.get("a")[1].tolist() == []


def test_names_of_sources_may_hold_slashes(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "train/x/y/loss_nats": 1.0, "train/loss_nats": 2.0}))
    with open(file, "a") as opened:
        opened.write("\n")
    columns = Columns(file)
    columns.read()
    assert columns.between("train/", "/loss_nats") == ["x/y"]
