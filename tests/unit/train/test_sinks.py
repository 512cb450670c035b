"""Each sink for real: what was logged, before and after an interruption, is read back from disk."""

import json
import logging
import os
import sqlite3
import subprocess
import sys

import pytest

from dograph.errors import MissingExtraError, RunError
from dograph.train import run_dir as sinks

# Each session of a run in a process of its own, as a resumed run is.
SESSION = """
import sys
from pathlib import Path
from dograph.train.run_dir import open_sink
name, directory, first, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
sink = open_sink(name, directory, "my-run", {"optim": {"lr": 0.1}, "seed": 3}, first)
for step in range(first, last + 1):
    sink.log(step, {"train/loss_nats": 10.0 * first + step})
sink.close()
"""


def run_sessions(name, directory, environment):
    """Steps 1 to 4 are logged; then a session that resumed at step 2 logs 3 to 5 anew."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("TRACKIO_")},
        **environment,
    }
    for first, last in [(1, 4), (3, 5)]:
        arguments = [name, str(directory), str(first), str(last)]
        command = [sys.executable, "-c", SESSION, *arguments]
        subprocess.run(command, env=environment, cwd=directory, check=True, capture_output=True)


def test_tensorboard_forgets_what_was_logged_after_the_checkpoint(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, last in [(1, 4), (3, 5)]:
        sink = sinks.open_sink("tensorboard", tmp_path, "my-run", {"seed": 3}, first)
        for step in range(first, last + 1):
            sink.log(step, {"train/loss_nats": 10.0 * first + step})
        sink.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    logged = {event.step: event.value for event in events.Scalars("train/loss_nats")}
    assert logged == {1: 11.0, 2: 12.0, 3: 33.0, 4: 34.0, 5: 35.0}


@pytest.mark.slow
def test_wandb_keeps_its_id_when_a_run_resumes(tmp_path):
    pytest.importorskip("wandb")
    run_sessions("wandb", tmp_path, {"WANDB_MODE": "offline"})
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert {file.name for file in files} == {f"run-{(tmp_path / 'wandb/run_id').read_text()}.wandb"}
    assert all(b"train/loss_nats" in file.read_bytes() for file in files)


def test_wandb_stays_offline_and_does_not_ask_where_it_knows_no_account(tmp_path, monkeypatch):
    for key in [key for key in os.environ if key.startswith("WANDB_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not sinks._wandb_is_set_up()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert sinks._wandb_is_set_up()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not sinks._wandb_is_set_up()
    monkeypatch.setenv("WANDB_MODE", "online")
    assert sinks._wandb_is_set_up()


@pytest.mark.slow
def test_trackio_continues_the_run_in_its_local_database(tmp_path):
    pytest.importorskip("trackio")
    run_sessions("trackio", tmp_path, {"HF_HUB_OFFLINE": "1"})
    query = "SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id"
    with sqlite3.connect(tmp_path / "trackio" / "dograph.db") as database:
        rows = database.execute(query).fetchall()
    assert len({run_id for run_id, *_ in rows}) == 1
    assert {name for _, name, *_ in rows} == {"my-run"}
    logged = {step: json.loads(metrics)["train/loss_nats"] for *_, step, metrics in rows}
    assert logged == {1: 11.0, 2: 12.0, 3: 33.0, 4: 34.0, 5: 35.0}  # the later row counts


@pytest.mark.slow
def test_trackio_uses_the_folder_that_the_user_has_set(tmp_path):
    pytest.importorskip("trackio")
    (tmp_path / "run").mkdir()
    run_sessions("trackio", tmp_path / "run", {"TRACKIO_DIR": str(tmp_path / "mine")})
    assert (tmp_path / "mine" / "dograph.db").is_file()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_sink_that_fails_warns_once_and_is_closed(caplog):
    calls = []

    def write(step, metrics):
        calls.append(step)
        if step == 2:
            raise OSError("disk full")

    sink = sinks.Sink("example", write, lambda: calls.append("closed"))
    with caplog.at_level(logging.WARNING):
        for step in range(1, 5):
            sink.log(step, {"loss": 1.0})
        sink.close()
    assert calls == [1, 2, "closed"]
    (record,) = caplog.records
    assert "example" in record.getMessage()
    assert "disk full" in record.getMessage()


def test_a_sink_that_cannot_be_closed_does_not_stop_the_run(caplog):
    def finish():
        raise OSError("no network")

    sinks.Sink("example", lambda step, metrics: None, finish).close()
    assert len(caplog.records) == 1


def test_a_missing_extra_is_named_with_its_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'dograph\[tensorboard\]'"):
        sinks.open_sink("tensorboard", tmp_path, "r", {}, 1)


def test_a_sink_that_cannot_be_opened_says_so_before_training(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file where a folder should be")
    with pytest.raises(RunError, match="tensorboard"):
        sinks.open_sink("tensorboard", tmp_path, "r", {}, 1)
