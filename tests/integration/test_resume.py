"""Stop at any instant, resume, and get the numbers of a run that never stopped."""

import os
import random
import shutil
import signal
import time

import pytest
from processes import SETTINGS, last_step, rows, run, start, steps_logged, wait_until
from transformers import AutoModelForCausalLM

from corpora import write_corpus
from dograph.train.run_dir import RunDirectory


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run that was never stopped."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    run("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS)
    return directory


def assert_same(stopped, whole):
    assert rows(stopped) == rows(whole)
    assert (stopped / "weights.jsonl").read_bytes() == (whole / "weights.jsonl").read_bytes()
    for name in ("model/model.safetensors", "checkpoints/step-00000040/optimizer.safetensors"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    assert RunDirectory(stopped).checkpoint_steps() == [35, 40]


def kill_and_resume(corpus, directory, rng, kills):
    """Kill -9 at random instants, half of them while a checkpoint is being written."""
    arguments = ["train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS]
    killed = 0
    while killed < kills:
        process = start(*arguments)
        if killed % 2:
            ready = wait_until(lambda: any(directory.glob("checkpoints/.step-*.tmp")), process)
        else:
            # Resuming cuts the metrics back first, so the goal counts from the checkpoint.
            steps = RunDirectory(directory).checkpoint_steps()
            goal = min((steps[-1] if steps else 0) + rng.randint(1, 9), 38)
            ready = wait_until(lambda goal=goal: last_step(directory) >= goal, process)
        assert ready, f"it ended before kill {killed + 1}: {process.communicate()}"
        time.sleep(rng.uniform(0, 0.03))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
        if (directory / "config.yaml").exists():
            arguments = ["train", "--resume", str(directory)]
    run(*arguments)


def test_two_kills_lose_nothing(corpus, whole, tmp_path):
    """One between checkpoints, one while a checkpoint is written."""
    kill_and_resume(corpus, tmp_path / "run", random.Random(0), kills=2)
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(corpus, whole, tmp_path, sent, code):
    directory = tmp_path / "run"
    process = start("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS)
    assert wait_until(lambda: steps_logged(directory) >= 8, process)
    process.send_signal(sent)
    _, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    assert f"dograph train --resume {directory}" in err
    last = RunDirectory(directory).checkpoint_steps()[-1]
    assert f"after step {last}" in err
    run("train", "--resume", str(directory))
    assert_same(directory, whole)


@pytest.mark.slow
def test_a_checkpoint_never_outruns_the_metrics(corpus, whole, tmp_path):
    """Killed right after a checkpoint, that of step 5: between writes of the log at 4 and 8."""
    directory = tmp_path / "run"
    process = start("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS)
    assert wait_until(lambda: RunDirectory(directory).checkpoint_steps(), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert last_step(directory) >= RunDirectory(directory).checkpoint_steps()[-1]
    run("train", "--resume", str(directory))
    assert_same(directory, whole)


@pytest.mark.slow
def test_a_kill_after_the_last_checkpoint_is_tidied_up(whole, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(whole, directory, symlinks=True)
    (directory / "model").unlink()
    shutil.copytree(
        directory / "checkpoints/step-00000035", directory / "checkpoints/step-00000030"
    )
    run("train", "--resume", str(directory))
    assert_same(directory, whole)


def test_the_model_loads_anywhere(whole):
    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    assert model.config.vocab_size == 100


@pytest.mark.slow
def test_the_stored_config_replays_the_run(whole, tmp_path):
    run("train", str(whole / "config.yaml"), f"run={tmp_path / 'again'}")
    assert_same(tmp_path / "again", whole)


def test_an_existing_run_is_refused(corpus, whole):
    _, err = run("train", f"data.corpus={corpus}", f"run={whole}", *SETTINGS, code=2)
    assert f"dograph train --resume {whole}" in err
    _, err = run("train", "--resume", str(whole), "optim.lr=1", code=2)
    assert "cannot change when a run is resumed" in err
    assert f"dograph train --fork {whole} run=NEW optim.lr=1" in err


@pytest.mark.slow
def test_two_processes_cannot_share_a_run(corpus, tmp_path):
    directory = tmp_path / "run"
    first = start(
        "train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS, "train.steps=4000"
    )
    try:
        assert wait_until(lambda: steps_logged(directory) >= 4, first)
        _, err = run("train", "--resume", str(directory), code=2)
        assert "in use by another process" in err
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


@pytest.mark.slow
def test_more_steps_survive_a_kill_and_a_fork_is_its_parent(whole, tmp_path):
    killed, fork = shutil.copytree(whole, tmp_path / "killed", symlinks=True), tmp_path / "fork"
    process = start("train", "--resume", str(killed), "train.steps=60")
    assert wait_until(lambda: last_step(killed) >= 46, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    _, err = run("train", "--resume", str(killed))
    assert "steps are repeated" in err
    assert rows(killed)[: len(rows(whole))] == rows(whole)
    assert [row["step"] for row in rows(killed) if "train/loss_nats" in row] == [*range(1, 61)]
    _, err = run("train", "--fork", str(killed), "--at", "55", f"run={fork}")
    assert "goes on with its state of step 55" in err
    assert [row for row in rows(fork) if row["step"] > 55] == [
        row for row in rows(killed) if row["step"] > 55
    ]
    for name in ("model/model.safetensors", "checkpoints/step-00000060/optimizer.safetensors"):
        assert (fork / name).read_bytes() == (killed / name).read_bytes()
