"""A page reads what others wrote: under their names, and whole lines alone."""

import json

from dograph.config import resolve_config
from dograph.eval.evaluate import Subject
from dograph.records import read_metrics
from dograph.report.collect import collect, open_subjects
from dograph.report.one_run import ENVIRONMENT
from dograph.train.run_dir import EVAL, RunDirectory
from page_runs import write_run


def test_names_are_those_of_the_writers(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create(resolve_config("demo", []), {"gpus": ["one"]})
    run.unlock()
    assert json.loads((run.path / ENVIRONMENT).read_text()) == {"gpus": ["one"]}
    last = Subject(str(run.path / "model"), run, 10)
    assert last.result_file == run.path / EVAL


def test_a_line_that_is_being_written_waits_for_the_next_look(tmp_path):
    run = write_run(tmp_path / "run")
    file = RunDirectory(run).validation_file
    first, second, third = file.read_text().splitlines(keepends=True)
    file.write_text(first + second + third[: len(third) // 2])
    (shown,) = collect(open_subjects([run])).runs
    known = {source: shown.losses[source].low is not None for source in shown.sources}
    assert known == {"alpha": True, "beta": True, "gamma": False}


def test_rows_end_where_a_line_does(tmp_path):
    file = tmp_path / "graph.jsonl"
    assert list(read_metrics(file)) == []
    file.write_text(json.dumps({"step": 1}) + "\n" + json.dumps({"step": 2}))
    assert list(read_metrics(file)) == [{"step": 1}]
