"""Pages of damaged runs: what is damaged is named, and the rest is shown."""

import json

import pytest
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.main import app
from dograph.errors import RunError
from dograph.report.collect import collect, open_subjects
from dograph.report.sections import page_json
from page_runs import dograph_run, write_eval, write_run


@pytest.fixture
def run(tmp_path):
    """A run with every file that a page reads."""
    run = dograph_run(tmp_path / "bad", write_corpus(tmp_path / "corpus"))
    write_eval(run, 0.5)
    return run


def replace_line(path, number, text):
    lines = path.read_text().splitlines()
    lines[number - 1] = text
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("metrics.jsonl", "{broken", "metrics.jsonl: skipped 1 damaged record (line 2: not JSON"),
        ("metrics.jsonl", '{"loss": 1}', "(line 2: no step)"),
        ("graph.jsonl", "\0\0\0", "graph.jsonl: skipped 1 damaged record (line 2: not JSON"),
        ("graph.jsonl", '{"step": 40, "nodes": [], "edges": [{}]}', "graph.jsonl: skipped 1"),
        (
            "validation.jsonl",
            "[]",
            "validation.jsonl: skipped 1 damaged record (line 2: not a JSON",
        ),
        ("env.json", None, "env.json: skipped 1 damaged record"),
        ("eval.json", None, "eval.json: skipped 1 damaged record"),
        ("edits.jsonl", None, "edits.jsonl: skipped 1 damaged record (line 1: not JSON"),
        ("watch.jsonl", None, "watch.jsonl: skipped 1 damaged record (line 1: not JSON"),
        ("probes/step-00000030.json", None, "probes/step-00000030.json: skipped 1 damaged"),
        ("probes/step-00000030.safetensors", None, "probes/step-00000030.safetensors cannot be"),
    ],
)
def test_damage_is_named_on_the_page_and_the_rest_is_shown(run, file, text, named):
    if text is None:
        (run / file).write_text("{broken\n")
    else:
        replace_line(run / file, 2, text)
    data = collect(open_subjects([run]))
    warnings = [*data.damage, *data.runs[0].warnings]
    assert [line for line in warnings if named in line], warnings
    assert named.split(":")[0] in page_json(data)
    assert data.runs[0].steps == 60
    assert len(data.runs[0].curves["train/loss_nats"].y) >= 59
    assert data.runs[0].domains is not None


def test_a_number_beyond_a_float_and_one_that_is_none_are_not_drawn(run):
    row = {"step": 2, "train/loss_nats": 10**400, "optim/lr": "high"}
    replace_line(run / "metrics.jsonl", 2, json.dumps(row))
    data = collect(open_subjects([run]))
    assert len(data.runs[0].curves["train/loss_nats"].x) == 59
    assert page_json(data)


def test_a_run_that_cannot_be_read_does_not_spoil_the_others(run, tmp_path):
    (run / "config.yaml").write_text("train: {steps: many}\n")
    good, out = write_run(tmp_path / "good"), tmp_path / "page.html"
    told = CliRunner().invoke(app, ["report", str(run), str(good), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert f"warning: {run} is left out" in told.stderr
    assert "train.steps='many'" in told.stderr
    assert "(1 run," in told.stdout
    page = out.read_text()
    assert f"{run} is left out" in page
    assert "run good" in page
    with pytest.raises(RunError, match=r"is left out: .*config\.yaml"):
        collect(open_subjects([run]))


@pytest.mark.parametrize("content", ['{"cells": 3}', '{"cells": [], "wall": NaN}', "{broken"])
def test_a_damaged_comparison_still_shows_its_runs(tmp_path, content):
    folder = tmp_path / "compared"
    write_run(folder / "cells" / "natural-s0")
    (folder / "compare.json").write_text(content)
    data = collect(open_subjects([folder]))
    assert [run.name for run in data.runs] == ["natural-s0"]
    assert data.comparisons == []
    assert "compare.json that can be read" in data.damage[0]


def test_what_nobody_thought_of_costs_one_run(run, tmp_path, monkeypatch):
    from dograph.report import collect as collecting

    read = collecting.run_data

    def break_one(opened, *rest):
        if opened.path == run:
            raise ZeroDivisionError("float division by zero")
        return read(opened, *rest)

    monkeypatch.setattr(collecting, "run_data", break_one)
    good = write_run(tmp_path / "good")
    data = collect(open_subjects([run, good]))
    assert [shown.name for shown in data.runs] == ["good"]
    assert data.groups == {"natural": ["good"]}
    assert str(run) in data.damage[0]
    assert "ZeroDivisionError" in data.damage[0]
