"""Which figures got worse since the last commit, in a real repository."""

import json
import subprocess

import pytest
from benchmarks.results_changes import all_changes, report

MACHINE = {"processor": "one", "gpus": []}


def figure(median, width=0.01):
    return {"median": median, "low": median - width, "high": median + width, "blocks": 12}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    write(folder, "sketch", full_over_plain=figure(1.2), plain_seconds=figure(0.7))
    write(folder, "loader", target="at least 5", rows=figure(20.0))
    bench = {"device": {"name": "one"}, "arms": {"full": {"ratio": figure(1.1), "note": "x"}}}
    (folder / "bench.json").write_text(json.dumps(bench))
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "figures"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return folder


def write(folder, name, machine=MACHINE, **result):
    record = {"benchmark": name, "result": result, "machine": machine}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2))


def test_nothing_is_said_where_nothing_changed(folder):
    write(folder, "unknown before", full_over_plain=figure(9.0))
    assert report(all_changes(folder)) == []


def test_what_got_worse_beyond_both_intervals_is_marked(folder):
    write(folder, "sketch", full_over_plain=figure(1.23), plain_seconds=figure(0.71))
    write(folder, "loader", target="at least 5", rows=figure(19.0))
    bench = {"device": {"name": "one"}, "arms": {"full": {"ratio": figure(1.0)}}}
    (folder / "bench.json").write_text(json.dumps(bench))
    judged = {change.name: change.judgement for change in all_changes(folder)}
    assert judged == {
        "arms/full/ratio": "better",
        "result/rows": "worse",
        "result/full_over_plain": "worse",
        "result/plain_seconds": "",
    }
    lines = report(all_changes(folder))
    assert "1.2 [1.19, 1.21] -> 1.23 [1.22, 1.24]   WORSE" in lines[-2]
    assert lines[-1] == "4 figures differ from the last commit, 2 got worse"


def test_times_of_another_machine_are_not_judged(folder):
    other = MACHINE | {"processor": "two"}
    write(folder, "sketch", other, full_over_plain=figure(1.4), plain_seconds=figure(9.0))
    judged = {change.name: change.judgement for change in all_changes(folder)}
    assert judged["result/plain_seconds"] == "another machine"
    assert judged["result/full_over_plain"] == "worse"
