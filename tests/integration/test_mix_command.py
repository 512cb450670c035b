"""A run is given another mixture while it trains, is killed, and ends as if nothing happened."""

import json
import os
import signal

import pytest
from processes import SETTINGS, rows, run, start, steps_logged, wait_until

from corpora import write_corpus
from dograph.train.edits import edits_of
from dograph.train.run_dir import RunDirectory
from edited_runs import FIRST, SECOND, THIRD, log_of, write

LONG = ("train.steps=400", "checkpoint.every=100", "eval.every=0", "eval.max_samples_per_source=2")
LAST = "checkpoints/step-00000400/optimizer.safetensors"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


def settings(corpus, directory, mixer, **options):
    given = [f"mixer.{name}={json.dumps(value)}" for name, value in options.items()]
    where = [f"data.corpus={corpus}", f"run={directory}"]
    return ["train", *where, *SETTINGS, *LONG, f"mixer.name={mixer}", *given]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_asked_killed_and_resumed(corpus, tmp_path):
    """Asked while it trains; kill -9 before a checkpoint holds the edit; edited once more.

    Training is paused until the request is written: `mix` needs seconds to start, and in that
    time the run could pass the checkpoints that this test is about.
    """
    directory, mixture = tmp_path / "run", write(tmp_path / "m.yaml", SECOND)
    process = start(*settings(corpus, directory, "static", weights=FIRST))
    try:
        assert wait_until(lambda: steps_logged(directory) >= 8, process)
        os.killpg(process.pid, signal.SIGSTOP)
        asking = start("mix", str(directory), str(mixture))
        assert wait_until((directory / "mixture-request.json").exists, process)
        os.killpg(process.pid, signal.SIGCONT)
        assert wait_until((directory / "edits.jsonl").exists, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    told, _ = asking.communicate(timeout=200)
    mixture.unlink()
    [edit] = edits_of(RunDirectory(directory))
    assert told == edit.line + "\n"
    assert edit.step < 100
    assert not list(RunDirectory(directory).checkpoint_steps()), "none before it, none after it"

    process = start("train", "--resume", str(directory))
    assert wait_until(lambda: 200 in RunDirectory(directory).checkpoint_steps(), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    _, err = run("train", "--resume", str(directory), "--mixture", str(write(mixture, THIRD)))
    later = edits_of(RunDirectory(directory))[-1]
    assert later.line in err
    assert later.step in (200, 300)

    stages = {0: FIRST, edit.step: SECOND, later.step: THIRD}
    run(*settings(corpus, tmp_path / "whole", "scheduled", stages=stages))
    assert rows(directory) == rows(tmp_path / "whole")
    assert log_of(directory) == log_of(tmp_path / "whole")
    for file in ("model/model.safetensors", LAST):
        assert (directory / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_cannot_be_done_is_told(corpus, tmp_path):
    directory, mixture = tmp_path / "run", write(tmp_path / "m.yaml", SECOND)
    # Requests are read where the run logs: far beyond the seconds that this test takes.
    often = ["log.every=20000", "checkpoint.every=0", "train.steps=40000"]
    process = start(*settings(corpus, directory, "static", weights=FIRST), *often)
    try:
        assert wait_until((directory / ".lock").exists, process)
        assert wait_until(lambda: RunDirectory(directory).use() == "takes mixtures", process)
        _, err = run("mix", str(directory), str(mixture), "--timeout", "2.5", code=2)
        assert "waiting for" in err
        assert "log.every=20000" in err
        assert "the request is withdrawn" in err
        assert not (directory / "mixture-request.json").exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not (directory / "edits.jsonl").exists()
    _, err = run("mix", str(directory), str(mixture), code=2)
    assert f"dograph train --resume {directory} --mixture {mixture}" in err
