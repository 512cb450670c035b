"""Runs of many steps: both forms of their files, and the memory that reading them takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dograph.errors import RunError
from dograph.eval.recorded import (
    agreement_line,
    explain_step,
    last_validation,
    losses_table,
    read_graph,
    samples_of_step,
)
from dograph.records import Skipped
from long_runs import BATCH, SOURCES, write_long_run

STEPS = 120
# Everything that `show` reads of a run, then its page; prints the growth in MB after both, the
# seconds, and the size of the page.
READ_ALL = """
import resource, sys, time
from pathlib import Path
from dograph.eval import recorded
from dograph.records import Skipped
from dograph.report.collect import collect, open_subjects
from dograph.report.render import render
run, step = Path(sys.argv[1]), int(sys.argv[2])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = peak(), time.process_time()
recorded.losses_table([run], Skipped())
recorded.agreement_line(recorded.read_graph(run, None))
recorded.explain_step(run, step), recorded.samples_of_step(run, step)
read = peak() - before
page = render(collect(open_subjects([run])))
print(read, peak() - before, time.process_time() - start, len(page.encode()))
"""


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    forms = {"new": True, "old": False}
    return {form: write_long_run(folder / form, STEPS, compact=own) for form, own in forms.items()}


@pytest.fixture(params=["new", "old"])
def run(long_runs, request):
    return long_runs[request.param]


def shown(table):
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_both_forms_of_the_files_are_read(run):
    skipped = Skipped()
    row = last_validation(run, skipped)
    assert row["step"] == STEPS
    assert row["valid/C4/ppl"] > 20
    epochs = {name for name in row if name.startswith("data/")}
    assert epochs == {f"data/{source}/epochs" for source in SOURCES}
    text = shown(losses_table([run], skipped))
    assert f"{run.name}, step {STEPS}" in text
    graph = read_graph(run, None, skipped)
    assert (graph.step, len(graph.nodes), len(graph.edges)) == (100, 11, 55)
    assert read_graph(run, 50, skipped).step == 50
    assert agreement_line(graph).startswith("agreement of domains and sources: NMI 0.")
    explained = explain_step(run, 120, skipped)
    assert (len(explained.domains), len(explained.weight_B)) == (11, BATCH)
    assert len(samples_of_step(run, 119, skipped)) == BATCH
    assert skipped.warnings() == []


def test_a_step_without_a_whole_row_or_beyond_the_run(long_runs):
    with pytest.raises(RunError, match=r"steps 1 to 120; step 121 is not"):
        explain_step(long_runs["old"], 121)
    with pytest.raises(RunError, match=r"no domain graph of step 60; the nearest is step 50"):
        read_graph(long_runs["old"], 60)


def test_gaps_and_damage_are_warnings_and_the_rest_is_shown(long_runs, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for file in long_runs["old"].iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    kept = [*lines[:30], *lines[61:-1], lines[-1][:40]]  # and the last validation is cut
    (run / "metrics.jsonl").write_bytes(b"".join(kept))
    skipped = Skipped()
    assert "run, step 100" in shown(losses_table([run], skipped))  # with the step of its losses
    assert any("no rows of steps 31 to 60" in text for text in skipped.warnings())
    assert any("the last, which is incomplete" in text for text in skipped.warnings())

    graphs = (run / "graph.jsonl").read_bytes().splitlines(keepends=True)
    (run / "graph.jsonl").write_bytes(graphs[0] + graphs[1].replace(b"[", b"[7, ", 1))
    skipped = Skipped()
    assert read_graph(run, None, skipped).step == 50
    assert "line 2" in skipped.warnings()[0]
    with pytest.raises(RunError, match=r"no domain graph of step 100; the nearest is step 50"):
        read_graph(run, 100)

    weights = json.loads((run / "weights.jsonl").read_text())
    (run / "weights.jsonl").write_text(json.dumps(weights) + "\n{}\n")
    skipped = Skipped()
    assert len(samples_of_step(run, 5, skipped)) == BATCH
    assert "may have drawn other samples" in " ".join(skipped.warnings())


def test_a_bad_run_does_not_spoil_the_others(long_runs, tmp_path):
    skipped = Skipped()
    text = shown(losses_table([tmp_path, long_runs["new"], tmp_path / "none"], skipped))
    assert f"new, step {STEPS}" in text
    assert [note.split(" is left out")[0] for note in skipped.notes] == [
        str(tmp_path),
        str(tmp_path / "none"),
    ]
    with pytest.raises(RunError, match="is not a run"):
        losses_table([tmp_path, tmp_path])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["new", "old"])
def test_memory_and_time_do_not_grow_with_the_run(tmp_path, form):
    """A million steps: below 400 MB on disk, and 600 MB and 20 s for each command."""
    steps = 200_000 if form == "new" else 20_000  # 85 MB
    run = write_long_run(tmp_path / "run", steps, compact=form == "new")
    source = Path(__file__).parents[3] / "src"
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READ_ALL, str(run), str(steps)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    read, of_page, seconds, size = map(float, out.stdout.split())
    assert read < 60
    assert of_page < 60 + 600 / 5
    assert seconds < 20
    assert size < 2e6
    if form == "new":
        assert sum(file.stat().st_size for file in run.glob("*.jsonl")) < 400e6 * steps / 1e6
