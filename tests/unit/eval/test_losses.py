"""The table of losses, from run directories."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from dograph.config import resolve_config
from dograph.errors import RunError
from dograph.eval.recorded import losses_table
from dograph.train.metrics import validation_row
from dograph.train.run_dir import RunDirectory


def corpus_of(tokens, sizes):
    return SimpleNamespace(tokens_by_source=lambda: tokens, bytes_per_token=lambda split: sizes)


def make_run(path, mixer, losses):
    config = resolve_config(None, [f"mixer.name={mixer}", f"run={path}"])
    run = RunDirectory(path)
    run.create(config, {})
    equal, known = (dict.fromkeys(losses, 1), dict.fromkeys(losses)), {"a": 4.0, "b": None}
    first = validation_row(1, dict.fromkeys(losses, 9.0), corpus_of(*equal))
    last = validation_row(2, losses, corpus_of({"a": 3, "b": 1}, known))
    step = {"step": 2, "optim/lr": 0.1, "data/a/epochs": 0.25, "data/b/epochs": 1.5}
    rows = [first, step, last]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.unlock()
    return path


def render(table):
    console = Console(width=140)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_last_validation_of_each_run_side_by_side(tmp_path):
    first = make_run(tmp_path / "one", "natural", {"a": 2.0, "b": 4.0})
    second = make_run(tmp_path / "two", "uniform", {"a": 2.5, "b": 3.5})
    lines = render(losses_table([first, second])).splitlines()
    row = next(line for line in lines if line.split()[:1] == ["a"])
    nats, ppl, bits, epochs = "2.0000", "7.4", "0.721", "0.25"
    assert row.split() == ["a", nats, ppl, bits, epochs, "2.5000", "12.2", "0.902", "0.25"]
    assert "2.5000" in next(line for line in lines if "natural " in line and "2.5" in line)
    assert "4.0000" in next(line for line in lines if "worst" in line)


def test_a_run_without_validation_says_so(tmp_path):
    path = make_run(tmp_path / "one", "natural", {"a": 2.0, "b": 4.0})
    (path / "metrics.jsonl").write_text('{"step": 1, "optim/lr": 0.1}\n')
    with pytest.raises(RunError, match=r"no validation yet; .*eval\.every"):
        losses_table([path])
    with pytest.raises(RunError, match=r"is not a run"):
        losses_table([tmp_path])
    for file, words in (
        ("manifest.json", "a prepared corpus"),
        ("compare.json", r"runs are .*cells"),
    ):
        (tmp_path / file).touch()
        with pytest.raises(RunError, match=words):
            losses_table([tmp_path])
