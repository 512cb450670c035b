"""What a run keeps of its samples, and how it is cut back."""

import json

import torch

from corpora import write_corpus
from disk_calls import DiskCalls
from dograph.config import resolve_config
from dograph.train.metrics import sample_rows, step_rows
from dograph.train.run_dir import RunDirectory
from dograph.train.step import StepRecord
from dograph.train.trainer import start_run
from dograph.types import Signals
from tiny_steps import ALONE, SETTINGS

UNTIMELY = ("time", "memory")


def record(step, weights, domains=None):
    report = {"domains/share": torch.tensor([0.5, 0.5])}
    if domains is not None:
        report["samples/domain"] = torch.tensor(domains)
    return StepRecord(
        step=step,
        loss_B=torch.ones(len(weights)),
        weight_B=torch.tensor(weights),
        source_B=torch.zeros(len(weights), dtype=torch.int64),
        grad_norm=torch.tensor(0.5),
        signals=Signals(step=step, num_samples=len(weights)),
        halted=torch.tensor(0.0),
        lr=1e-3,
        report=report,
        laps=[],
    )


def test_samples_have_weights_in_equal_weights_and_domains():
    records = [record(0, [0.25] * 4), record(1, [0.1, 0.2, 0.3, 0.4], [1, 0, 10, 1])]
    assert sample_rows(records) == [
        {"step": 1, "weight": [1.0] * 4, "domain": None},
        {"step": 2, "weight": [0.4, 0.8, 1.2, 1.6], "domain": [1, 0, 10, 1]},
    ]
    assert sample_rows([]) == []


def test_samples_stay_out_of_the_metrics():
    before, after = step_rows([record(0, [1.0]), record(1, [1.0], [3])], ["a"], {"a": None})
    assert before.keys() == after.keys()
    assert after["domains/share"] == [0.5, 0.5]


def test_what_lies_after_a_step_is_cut(tmp_path):
    run = RunDirectory(tmp_path)
    for file in (run.metrics_file, run.samples_file, run.graph_file):
        file.write_text('{"step": 4}\n{"step": 5}\n{"step": 5, "x": 1}\n{"step": 6}\n{"step": 4, "')
    run.probes.mkdir()
    for step in (0, 5, 6, 40):
        run.probe(step).write_text("{}")
        run.probe(step).with_suffix(".safetensors").write_bytes(b"")
    (run.probes / "step-notes.txt").write_text("mine")
    run.cut(5)
    for file in (run.metrics_file, run.samples_file, run.graph_file):
        assert file.read_text() == '{"step": 4}\n{"step": 5}\n{"step": 5, "x": 1}\n'
    assert sorted(path.name for path in run.probes.iterdir()) == [
        *(f"step-{step:08d}.{ending}" for step in (0, 5) for ending in ("json", "safetensors")),
        "step-notes.txt",
    ]


def test_files_that_were_never_begun_are_not_made(tmp_path):
    run = RunDirectory(tmp_path)
    run.cut(5)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_rows_can_be_asked_for_without_a_word_being_written(tmp_path):
    corpus, path = write_corpus(tmp_path / "corpus"), tmp_path / "run"
    trainer = start_run(
        resolve_config(None, [f"data.corpus={corpus}", f"run={path}", *SETTINGS]), ALONE
    )
    loader = trainer.open_loader()
    trainer.files.open(0)
    records = [trainer.advance(loader) for _ in range(2)]
    assert trainer.unwritten == records
    rows = step_rows(records, trainer.corpus.sources, trainer.bytes_per_token)
    assert [row["step"] for row in rows] == [1, 2]
    written = (trainer.run.samples_file, trainer.run.metrics_file)
    assert [file.read_text() for file in written] == ["", ""]
    trainer.files.write("samples", sample_rows(records))
    assert [file.read_text().count("\n") for file in written] == [2, 0]
    trainer.files.write_metrics(rows)
    assert [file.read_text().count("\n") for file in written] == [2, 2]
    trainer.files.close()
    loader.close()


def test_metrics_that_are_due_are_written_in_the_next_step_without_it(tmp_path):
    """As on a GPU, which makes that step meanwhile."""
    corpus = write_corpus(tmp_path / "corpus")
    rows = {}
    for name, late in (("now", False), ("late", True)):
        given = [f"data.corpus={corpus}", f"run={tmp_path / name}", *SETTINGS, "log.every=3"]
        trainer = start_run(resolve_config(None, given), ALONE)
        loader = trainer.open_loader()
        trainer.files.open(0)
        for _ in range(3):
            trainer.advance(loader)
        if late:
            trainer.due = (3, None)
            trainer.advance(loader)
            assert [record.step for record in trainer.unwritten] == [3]
        else:
            trainer.write_metrics()
            assert not trainer.unwritten
        assert trainer.due is None
        lines = trainer.run.metrics_file.read_text().splitlines()
        rows[name] = [
            {key: x for key, x in json.loads(line).items() if key.split("/")[0] not in UNTIMELY}
            for line in lines
        ]
        trainer.files.close()
        loader.close()
    assert [row["step"] for row in rows["late"]] == [1, 2, 3]
    assert rows["late"] == rows["now"]


def test_what_is_written_of_a_step_is_on_disk_before_its_checkpoint(tmp_path, monkeypatch):
    corpus, path = write_corpus(tmp_path / "corpus"), tmp_path / "run"
    trainer = start_run(
        resolve_config(None, [f"data.corpus={corpus}", f"run={path}", *SETTINGS]), ALONE
    )
    trainer.files.open(0)
    disk = DiskCalls(monkeypatch)
    trainer.save()
    saved = disk.places("renamed", trainer.run.checkpoint(0))[-1]
    for file in (trainer.run.metrics_file, trainer.run.samples_file, trainer.run.graph_file):
        assert min(disk.places("forced", file), default=saved) < saved, file
    trainer.files.close()


def test_lost_and_damaged_rows_are_named(tmp_path):
    run = RunDirectory(tmp_path)
    rows = [f'{{"step": {step}, "x": 1}}\n' for step in range(1, 46)]
    run.metrics_file.write_text("".join(rows[:10] + rows[40:]))
    last, [warning] = run.cut(44)
    assert last == 45
    assert "has no rows of steps 11 to 40" in warning
    assert run.metrics_file.read_text() == "".join(rows[:10] + rows[40:44])
    # Ten lines, and a checkpoint of step 40.
    run.metrics_file.write_text("".join(rows[:10]))
    assert "steps 11 to 40" in run.cut(40)[1][0]
    # A damaged line stays, so that every command that reads it says the same.
    damaged = [*rows[:5], "\0\0\0\n", *rows[6:20]]
    run.metrics_file.write_text("".join(damaged))
    _, [warning] = run.cut(18)
    assert "has no rows of steps 6:" in warning
    assert run.metrics_file.read_text() == "".join(damaged[:18])


def test_later_steps_are_cut_wherever_they_are(tmp_path):
    """In a file whose lines were doubled or changed places."""
    run = RunDirectory(tmp_path)
    rows = [f'{{"step": {step}}}\n' for step in range(1, 9)]
    run.metrics_file.write_text("".join([rows[6], *rows[:3], rows[7], *rows[2:8]]))
    assert run.cut(5)[0] == 8
    assert run.metrics_file.read_text() == "".join([*rows[:3], *rows[2:5]])


def test_later_steps_are_cut_also_before_a_last_row_that_stays(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics_file.write_text('{"step": 7}\n{"step": 1}\n{"step": 2}\n')
    run.cut(2)
    assert run.metrics_file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_the_model_of_a_copy_may_be_a_folder(tmp_path):
    run = RunDirectory(tmp_path)
    (tmp_path / "model" / "part").mkdir(parents=True)
    for step in (3, 5):
        run.link_model(step)
        assert str((tmp_path / "model").readlink()) == f"checkpoints/step-{step:08d}/model"


def test_scores_are_set_aside_only_if_steps_follow(tmp_path):
    run = RunDirectory(tmp_path)
    (run.checkpoint(5) / "model").mkdir(parents=True)
    (tmp_path / "eval.json").write_text("{}")
    for steps, name in ((5, "eval.json"), (6, "eval-step-5.json")):
        run.link_model(5)
        run.reopen(steps)
        assert [path.name for path in tmp_path.glob("eval*")] == [name]
        assert not (tmp_path / "model").is_symlink()


def test_rows_of_another_form_are_cut_alike(tmp_path):
    run = RunDirectory(tmp_path)
    run.graph_file.write_text('{"nodes": [], "step": 4}\n{"nodes": [], "step": 6}\n')
    run.cut(5)
    assert run.graph_file.read_text() == '{"nodes": [], "step": 4}\n'


def test_files_with_nothing_to_cut_are_not_written(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics_file.write_text('{"step": 1}\n')
    before = run.metrics_file.stat()
    run.cut(1)
    assert run.metrics_file.stat() == before
