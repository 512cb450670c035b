"""A page reads what others wrote: under their names, and whole lines alone."""

import json

from dograph.compare.arms import ASK
from dograph.compare.session import REPORT
from dograph.config import resolve_config
from dograph.eval.evaluate import Subject
from dograph.plan import jobs
from dograph.report import content as reading
from dograph.report.collect import collect, open_subjects
from dograph.train.run_dir import RunDirectory
from page_runs import write_run


def test_names_are_those_of_the_writers(tmp_path):
    assert (reading.COMPARISON, reading.ASKED) == (REPORT, ASK)
    assert reading.RESULT == jobs.RESULT
    run = RunDirectory(tmp_path / "run")
    run.create(resolve_config("demo", []), {"gpus": ["one"]})
    run.unlock()
    assert reading.read_json(run.path / reading.ENVIRONMENT) == {"gpus": ["one"]}
    last = Subject(str(run.path / "model"), run, 10)
    assert last.result_file == run.path / reading.EVALUATION


def test_a_line_that_is_being_written_waits_for_the_next_look(tmp_path):
    run = write_run(tmp_path / "run")
    file = RunDirectory(run).validation_file
    first, second, third = file.read_text().splitlines(keepends=True)
    file.write_text(first + second + third[: len(third) // 2])
    (shown,) = collect(open_subjects([run])).runs
    known = {loss.name: loss.nats.low is not None for loss in shown.losses if not loss.is_summary}
    assert known == {"alpha": True, "beta": True, "gamma": False}


def test_rows_end_where_a_line_does(tmp_path):
    file = tmp_path / "graph.jsonl"
    assert reading.read_rows(file) == []
    file.write_text(json.dumps({"step": 1}) + "\n" + json.dumps({"step": 2}))
    assert reading.read_rows(file) == [{"step": 1}]
    assert reading.read_json(tmp_path / "none.json") == {}
