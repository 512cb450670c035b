"""What a page holds of whole runs, of runs with parts missing, and of several."""

import json
import math

import pytest

from corpora import write_corpus
from dograph.cli.console import print_page
from dograph.errors import RunError
from dograph.report.charts import PageTable
from dograph.report.collect import collect, open_subjects
from dograph.report.render import render, write_page
from dograph.report.sections import SECTIONS, loss_charts, page_json
from page_runs import dograph_run, hostile_corpus, texts_of, write_graphs, write_run


def page_of(*paths):
    data = collect(open_subjects(paths))
    json.loads(page_json(data))
    return data


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return hostile_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    return dograph_run(tmp_path_factory.mktemp("whole") / "run", corpus)


def test_a_whole_run_has_every_part(whole):
    data = page_of(whole)
    (run,) = data.runs
    assert (run.steps, run.is_complete, run.warnings) == (60, True, [])
    assert list(run.losses)[-3:] == ["mean", "natural", "worst"]
    assert all(loss.low < loss.value < loss.high for loss in run.losses.values())
    assert [probe.step for probe in run.domains.probes] == [0, 30, 60]
    assert set(run.domains.probes[0].label) == {-1}
    assert [graph.step for graph in run.domains.graphs] == [20, 40, 60]
    assert run.cost.step_ms == pytest.approx(50)
    assert run.cost.seconds == pytest.approx(3.0)
    assert set(run.curves) >= {"weights/effective_samples", "domains/nmi"}
    assert run.command == f"dograph train {whole}/config.yaml run=NEW_DIR"
    assert "3.1167" in data.verdict
    assert texts_of(data)


def test_one_step_without_validation(tmp_path):
    data = page_of(write_run(tmp_path / "run", steps=1, total=50, valid=False))
    (run,) = data.runs
    assert run.losses == {}
    assert run.curves["train/loss_nats"].x == [1]
    assert not any(name.startswith("valid/") for name in run.curves)
    assert run.domains is None
    assert run.cost.step_ms is None
    assert "1 of 50 steps" in data.verdict
    assert any("continue with: dograph train --resume" in text for text in run.warnings)
    assert any("no validation" in text for text in run.warnings)
    assert "data" in render(data)


def test_a_run_that_has_not_begun(tmp_path):
    run = write_run(tmp_path / "run", steps=0, total=50, valid=False)
    (run / "metrics.jsonl").unlink()
    data = page_of(run)
    assert data.runs[0].steps == 0
    assert render(data)


def test_an_interrupted_run_has_losses_without_intervals(tmp_path):
    data = page_of(write_run(tmp_path / "run", steps=30, total=50))
    (run,) = data.runs
    assert all(loss.low is None for loss in run.losses.values())
    assert "30 of 50 steps" in data.verdict


def test_domains_without_probes(tmp_path):
    run = write_run(tmp_path / "run", mixer="dograph", options={"num_domains": 3})
    write_graphs(run)
    domains = page_of(run).runs[0].domains
    assert (domains.probes, domains.source_N) == ([], [])
    assert set(domains.graphs[-1].nodes[0]["sources"]) <= {"alpha", "beta", "gamma"}
    assert len(domains.graphs) == 3


def test_texts_may_be_out_of_reach(tmp_path):
    tokens_alone = write_corpus(tmp_path / "tokens")
    run = dograph_run(tmp_path / "run", tokens_alone)
    data = page_of(run)
    assert texts_of(data) == []
    assert any("has tokens but no tokenizer" in note for note in data.runs[0].domains.notes)
    tokens_alone.rename(tmp_path / "moved")
    data = page_of(run)
    assert any("corpus is not at" in note for note in data.runs[0].domains.notes)
    (tmp_path / "moved").rename(tokens_alone)
    (run / "checkpoints" / "step-00000060").mkdir(parents=True)
    (run / "checkpoints" / "step-00000060" / "state.json").write_text('{"corpus": "another"}')
    data = page_of(run)
    assert any("corpus is not at" in note for note in data.runs[0].domains.notes)
    assert data.runs[0].domains.described == []


def test_domains_of_a_batch_have_no_identity(corpus, tmp_path):
    run = write_run(tmp_path / "run", mixer="dograph", options={"scope": "batch"}, corpus=corpus)
    domains = page_of(run).runs[0].domains
    assert "ranks" in domains.numbering
    assert any("no identity" in note for note in domains.notes)


def test_warnings_name_what_went_wrong(tmp_path):
    columns = {
        "weights/fallback": lambda step: float(step in (7, 9)),
        "weights/solver_residual": lambda step: 0.5 if step == 11 else 0.0,
        "data/alpha/epochs": lambda step: 5.5,
    }
    run = write_run(tmp_path / "run", mixer="dograph", **columns)
    told = page_of(run).runs[0].warnings
    assert any(
        "equal weights" in text and "2 of 60 recorded steps, first in step 7" in text
        for text in told
    )
    assert any(
        "residual up to 0.5 (in 1 of 60 recorded steps, first in step 11)" in text for text in told
    )
    assert any(text.startswith("alpha was repeated for 5.5 epochs") for text in told)
    assert len(told) == 3


def test_runs_of_one_method_are_taken_together(tmp_path):
    runs = [write_run(tmp_path / f"natural-{seed}", seed=seed) for seed in range(3)]
    runs += [write_run(tmp_path / f"uniform-{seed}", mixer="uniform", seed=seed) for seed in (0, 1)]
    data = page_of(*runs)
    assert {name: len(own) for name, own in data.groups.items()} == {"natural": 3, "uniform": 2}
    chart = loss_charts(data, "valid/mean/loss_nats", "")["methods"]
    band = chart.series[0]
    last = [3.1 + 1 / 60 + 0.01 * seed for seed in range(3)]
    assert band.y[-1] == pytest.approx(sum(last) / 3, rel=1e-4)
    reach = 4.3027 * 0.01 / math.sqrt(3)
    assert band.high[-1] - band.y[-1] == pytest.approx(reach, rel=0.01)
    assert data.comparisons == []
    assert "They were selected by hand, so no claim is made" in data.verdict


def test_methods_of_one_mixer_are_told_apart(tmp_path):
    runs = [
        write_run(tmp_path / f"d{num}", mixer="dograph", options={"num_domains": num})
        for num in (4, 7)
    ]
    data = page_of(*runs, write_run(tmp_path / "plain"))
    assert list(data.groups) == ["dograph num_domains=4", "dograph num_domains=7", "natural"]


def test_the_cost_of_steps_by_part_and_by_run(tmp_path):
    runs = [write_run(tmp_path / "plain"), write_run(tmp_path / "dograph", mixer="dograph")]
    items = SECTIONS["cost"][1](page_of(*runs))
    (table,) = [item for item in items if isinstance(item, PageTable)]
    assert table.heads[2:6] == [f"{part}, ms" for part in ("forward", "update", "sketch", "weigh")]
    assert [cell.value for cell in table.rows[0][2:6]] == [10.0, 2.0, None, None]
    assert [cell.value for cell in table.rows[1][2:6]] == [10.0, 2.0, 20.0, 1.0]
    for row in table.rows:
        cells = dict(zip(table.heads, row, strict=True))
        assert cells["ms per step, wall-clock"].value > 0
        assert cells["peak memory"] == "not recorded"


def test_names_tell_runs_apart(tmp_path):
    runs = [write_run(tmp_path / parent / "run") for parent in ("x", "y")]
    assert [run.name for run in page_of(*runs).runs] == ["x/run", "y/run"]


def test_no_run_no_page(tmp_path):
    with pytest.raises(RunError, match="neither a run"):
        page_of(tmp_path)


def test_a_failing_page_is_a_warning(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    (run / "config.yaml").write_text("no: settings: here")
    print_page(run)
    found = capsys.readouterr()
    assert found.err.startswith("warning: the page could not be written (RunError: ")
    assert found.out == ""
    assert not (run / "page.html").exists()


def test_the_page_of_a_finished_run(whole, capsys):
    print_page(whole)
    assert capsys.readouterr().out == f"page: {whole}/page.html\n"
    assert (whole / "page.html").read_text().startswith("<!doctype html>")
    (whole / "page.html").unlink()


def test_many_steps_make_a_page_that_is_not_long(tmp_path):
    run = write_run(tmp_path / "long", steps=5000, every=100)
    assert len(write_page([run], tmp_path / "page.html").runs) == 1
    data = page_of(run)
    steps = data.runs[0].curves["train/loss_nats"].raw.x
    assert (steps[0], steps[-1]) == (1, 5000)
    assert len(steps) <= 802
    assert "no spike is lost" in page_json(data)
