"""What the page says of runs, held against what the runs are."""

import json

import pytest

from dograph.eval.evaluate import limited_tasks
from dograph.report.charts import LineChart
from dograph.report.collect import collect, open_subjects
from dograph.report.figures import line_figure
from dograph.report.render import render
from dograph.report.series import Series
from page_runs import write_eval, write_run


def page_of(*paths):
    return collect(open_subjects(paths))


def agreement(run):
    """Both figures as a run records them: over ten batches, and in each."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"domains/nmi": 0.2, "domains/batch_nmi": 0.9}) for row in rows]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run


@pytest.mark.parametrize(
    ("scope", "shown"), [("batch", "domains/batch_nmi"), ("stream", "domains/nmi")]
)
def test_domains_of_one_batch_are_not_taken_over_ten(tmp_path, scope, shown):
    """A number that means another domain in each batch agrees with no source."""
    run = write_run(tmp_path / scope, mixer="dograph", options={"scope": scope})
    data = page_of(agreement(run))
    found = set(data.runs[0].curves)
    assert found & {"domains/nmi", "domains/batch_nmi"} == {shown}
    assert ("0.20 (NMI" in data.verdict) == (scope == "stream")
    assert "0.90" not in data.verdict


def test_seeds_of_one_method_were_trained_alike(tmp_path):
    runs = [write_run(tmp_path / f"run-{seed}", seed=seed) for seed in (0, 1)]
    data = page_of(*runs)
    means = [run.losses["mean"].value for run in data.runs]
    assert f"{sum(means) / 2:.4f}" in data.verdict
    assert "2 seeds of natural" in data.verdict
    assert "no claim" not in data.verdict


def test_a_run_that_goes_on_is_why_no_claim_is_made(tmp_path):
    runs = [write_run(tmp_path / "whole"), write_run(tmp_path / "part", steps=40, total=60, seed=1)]
    said = page_of(*runs).verdict
    assert "1 not complete, so no claim is made" in said
    assert "selected by hand" not in said


def test_losses_on_different_text_are_not_compared(tmp_path):
    runs = [write_run(tmp_path / name, corpus=name) for name in ("web", "code")]
    data = page_of(*runs)
    assert data.verdict == "2 runs on 2 corpora, so their losses cannot be compared."


def test_a_run_that_is_given_twice_is_one_run(tmp_path):
    run, other = write_run(tmp_path / "run"), write_run(tmp_path / "other", mixer="uniform")
    found = open_subjects([run, other, tmp_path / "other" / ".." / "run"])
    assert [opened.path for opened in found.runs] == [run, other]


def test_a_run_beside_its_comparison_is_the_comparisons(tmp_path):
    run = write_run(tmp_path / "compared" / "cells" / "natural-s0")
    (tmp_path / "compared" / "ask.json").write_text("{}")
    for paths in ([tmp_path / "compared", run], [run, tmp_path / "compared"]):
        (opened,) = open_subjects(paths).runs
        assert opened.method[1] == "natural"


def test_tasks_that_were_not_asked_in_full_are_named():
    tasks = {
        "copa": {"items": 100, "available": 100},
        "hellaswag": {"items": 4, "available": 10042},
    }
    (line,) = limited_tasks([{"tasks": tasks}, {"tasks": tasks}])
    assert line.endswith(": hellaswag 4 of 10,042")
    assert limited_tasks([{"tasks": {"copa": tasks["copa"]}}]) == []


def test_an_interval_at_a_single_step_is_drawn():
    pytest.importorskip("matplotlib")
    own = Series(x=[8], y=[5.0], name="a method", index=1, low=[4.5], high=[5.5])
    (axis,) = line_figure(LineChart("", [own])).axes
    _, bar = axis.lines
    assert list(bar.get_ydata()) == [4.5, 5.5]


def test_downstream_scores_are_in_per_cent(tmp_path):
    write_eval(run := write_run(tmp_path / "run"), 0.6)
    own, chance = page_of(run).tasks.rows
    assert [cell.value.value for cell in own[1:]] == pytest.approx([60] * 10)
    assert chance[0] == "chance"
    assert [cell.value.value for cell in chance[1:]] == pytest.approx([50] * 10)


def test_lost_rows_are_a_warning_on_the_page(tmp_path):
    """The first ten steps, then those from 41 on, as a run resumed after its metrics were cut."""
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not 10 < json.loads(line)["step"] <= 40]
    (run / "metrics.jsonl").write_text("".join(kept))
    [shown] = page_of(run).runs
    assert f"{run}/metrics.jsonl has no rows of steps 11 to 40: they are lost" in shown.warnings


def test_an_older_validation_has_its_step(tmp_path):
    """The last line, that of the last validation, is cut."""
    run = write_run(tmp_path / "run")
    assert "after step" not in page_of(run).verdict.replace("Complete after", "")
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[:-40])
    data = page_of(run)
    assert "nats after step 40" in data.verdict
    assert "Validation loss after step 40" in render(data)
