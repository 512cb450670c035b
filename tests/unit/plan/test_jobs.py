import dataclasses
import fcntl
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from corpora import write_corpus
from dograph.data.corpus import Corpus
from dograph.errors import RunError
from dograph.mixers.fixed import Static
from dograph.plan import jobs
from dograph.plan import jobs as conditions
from dograph.plan.jobs import RESULT, Stopped, log_of, read_result, run_job
from dograph.records import read_metrics
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import Trainer
from lab_runs import STEPS, config_of, job_of, without_torchrun


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """A job that nothing disturbed, and what it came to."""
    job = job_of(corpus, tmp_path_factory.mktemp("made") / "run")
    return job, run_job(job)


def numbers(result):
    """All that two equal runs have in common."""
    return dataclasses.replace(result, model="", seconds=0.0, peak_bytes=0)


def weights(result):
    with open(f"{result.model}/model.safetensors", "rb") as file:
        return file.read()


def stop_at(monkeypatch, step, number=signal.SIGTERM):
    """As if a signal had come during `step`."""
    heard = Trainer.stop_asked

    def asked(trainer, interrupts):
        return number if trainer.done == step else heard(trainer, interrupts)

    monkeypatch.setattr(Trainer, "stop_asked", asked)


def test_result_tells_what_the_run_came_to(made):
    job, result = made
    rows = list(read_metrics(RunDirectory(Path(job.config.run)).metrics_file))
    valid = [row for row in rows if "valid/mean/loss_nats" in row]
    assert [step for step, _ in result.curve] == [4, 8, 12]
    for (_, losses), row in zip(result.curve, valid, strict=True):
        assert losses == {s: row[f"valid/{s}/loss_nats"] for s in ("alpha", "beta", "gamma")}
    assert result.losses == result.curve[-1][1]
    # per layer: qkv, projection, feed-forward and two norms; then the last norm
    width, layers = 64, 2
    assert result.parameters == layers * (12 * width**2 + 13 * width) + 2 * width
    assert (result.tokens, result.steps) == (STEPS * 8 * 32, STEPS)
    # 96 samples, half of them gamma's, which has 31 blocks
    assert result.epochs["gamma"] == pytest.approx(48 / 31)
    laps = [row["time/step_seconds"] for row in rows if "time/step_seconds" in row]
    assert 0 < result.seconds <= STEPS * max(laps)
    assert 50e6 < result.peak_bytes < 20e9


def test_seconds_are_laps_times_their_steps(corpus, tmp_path, monkeypatch):
    rows = [{"step": 3.0, "time/step_seconds": 2.0}, {"step": 4.0}, {"step": 5.0}]
    rows += [{"step": 5.0, "time/step_seconds": 0.5}]
    monkeypatch.setattr(jobs, "read_metrics", lambda file, wanted: rows)
    assert run_job(job_of(corpus, tmp_path / "run", steps=2)).seconds == 3 * 2.0 + 2 * 0.5


def test_a_finished_job_is_not_made_again(made, monkeypatch):
    job, result = made
    monkeypatch.setattr(jobs, "_trained", None)
    assert run_job(job) == result


def test_moments_go_and_the_model_stays(made):
    job, result = made
    run = RunDirectory(Path(job.config.run))
    assert run.checkpoint_steps() == [STEPS]
    assert not list(run.path.rglob("optimizer.safetensors"))
    assert AutoModelForCausalLM.from_pretrained(result.model).config.n_layer == 2
    assert (run.path / "model").resolve() == Path(result.model).resolve()


def test_what_a_job_prints_goes_to_its_log(corpus, tmp_path, capfd):
    job = job_of(corpus, tmp_path / "run", steps=2)
    run_job(job)
    assert capfd.readouterr() == ("", "")
    assert "validation loss" in log_of(job.config).read_text()


@pytest.mark.slow
def test_stopped_it_goes_on_to_the_same_numbers(corpus, made, tmp_path, monkeypatch):
    job = job_of(corpus, tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(Stopped) as stopped:
            run_job(job)
    assert stopped.value.number == signal.SIGTERM
    assert "SIGTERM" in str(stopped.value)
    assert RunDirectory(tmp_path / "run").checkpoint_steps() == [7]
    assert read_result(tmp_path / "run", Corpus(corpus)) is None
    again = run_job(job)
    assert numbers(again) == numbers(made[1])
    assert weights(again) == weights(made[1])
    assert again.seconds > 0


def test_a_damaged_checkpoint_is_passed_over_here_too(corpus, made, tmp_path, monkeypatch):
    job = job_of(corpus, tmp_path / "run", checkpoint={"keep": 2})
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(Stopped):
            run_job(job)
    (RunDirectory(tmp_path / "run").checkpoint(7) / "mixer.safetensors").unlink()
    again = run_job(job)
    assert "from step 6; 1 steps are repeated" in log_of(job.config).read_text()
    assert numbers(again) == numbers(made[1])
    assert weights(again) == weights(made[1])


@pytest.mark.slow
def test_threads_of_this_process_change_nothing(corpus, made, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = run_job(job_of(corpus, tmp_path / "run"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert weights(again) == weights(made[1])


def test_one_that_only_lacks_its_result_is_summed_up(corpus, made, tmp_path, monkeypatch):
    """A kill between the last checkpoint and the result."""
    job = job_of(corpus, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_job(job)
    assert numbers(run_job(job)) == numbers(made[1])


@pytest.mark.parametrize("damage", ["torn", "empty", "other version", "no model"])
def test_damage_is_seen(corpus, made, tmp_path, damage):
    shutil.copytree(Path(made[0].config.run), tmp_path / "run", symlinks=True)
    file = tmp_path / "run" / RESULT
    text = file.read_text()
    if damage == "no model":
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{STEPS:08d}" / "model")
    else:
        older = text.replace('"version": 1', '"version": 0')
        file.write_text({"torn": text[:300], "empty": "{}", "other version": older}[damage])
    assert read_result(tmp_path / "run", Corpus(corpus)) is None


def test_a_damaged_result_is_made_anew(corpus, made, tmp_path):
    shutil.copytree(Path(made[0].config.run), tmp_path / "run", symlinks=True)
    (tmp_path / "run" / RESULT).write_text('{"losses": {"al')
    again = run_job(job_of(corpus, tmp_path / "run"))
    assert numbers(again) == numbers(made[1])
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.log", ".run.claim"}


def test_what_a_kill_at_the_start_leaves_is_no_hindrance(corpus, made, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "env.json").write_text("{}")
    (tmp_path / "run" / ".config.yaml.ab12.tmp").write_text("run: [")
    assert numbers(run_job(job_of(corpus, tmp_path / "run"))) == numbers(made[1])


def test_a_run_that_somebody_holds_is_waited_for(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(conditions, "FREE_SECONDS", 0.3)
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="in use by another process"):
            run_job(job_of(corpus, tmp_path / "run", steps=2))
    assert run_job(job_of(corpus, tmp_path / "run", steps=2)).steps == 2


def test_a_job_that_another_process_makes_is_waited_for(corpus, tmp_path):
    """Nothing of the run is there yet: the claim lies beside it."""
    claim = open(tmp_path / ".run.claim", "a")  # noqa: SIM115
    fcntl.flock(claim, fcntl.LOCK_EX)
    threading.Timer(1.0, claim.close).start()
    start = time.monotonic()
    assert run_job(job_of(corpus, tmp_path / "run", steps=2)).steps == 2
    assert time.monotonic() - start > 1.0
    assert "another process makes" in log_of(config_of(corpus, tmp_path / "run")).read_text()


@pytest.mark.slow
def test_two_processes_that_want_one_run_make_it_once(corpus, tmp_path):
    code = (
        "import sys; from lab_runs import job_of; from dograph.plan.jobs import run_job\n"
        "print(run_job(job_of(sys.argv[1], sys.argv[2])).losses)"
    )
    command = [sys.executable, "-c", code, str(corpus), str(tmp_path / "run")]
    environment = without_torchrun() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0] == answers[1] != ""
    rows = list(read_metrics(RunDirectory(tmp_path / "run").metrics_file))
    assert [row["step"] for row in rows if "train/loss_nats" in row] == list(range(1, STEPS + 1))


def test_another_run_in_the_folder_is_refused(corpus, made):
    job, _ = made
    other = config_of(corpus, job.config.run, optim={"lr": 1e-3})
    with pytest.raises(RunError, match="holds another run: its optim differ"):
        run_job(jobs.Job("other", other))
    quieter = config_of(corpus, job.config.run, log={"every": 3}, checkpoint={"every": 0})
    assert run_job(jobs.Job("same", quieter)).steps == STEPS


def test_a_run_that_was_edited_on_the_way_is_another_run(made, tmp_path):
    job, _ = made
    shutil.copytree(job.config.run, tmp_path / "run", symlinks=True)
    edited = dataclasses.replace(
        job, config=job.config.model_copy(update={"run": str(tmp_path / "run")})
    )
    assert run_job(edited).steps == STEPS
    (tmp_path / "run" / "edits.jsonl").touch()
    with pytest.raises(RunError, match=r"its mixtures \(edits\.jsonl\) differ"):
        run_job(edited)


def test_another_corpus_is_refused(made, tmp_path):
    other = write_corpus(tmp_path / "other", {"alpha": 6000, "beta": 3000, "gamma": 1001})
    with pytest.raises(RunError, match="another corpus"):
        run_job(job_of(other, made[0].config.run))


def test_state_holds_what_json_can(corpus, tmp_path, monkeypatch):
    state = {"weights": torch.tensor([0.25, 0.75]), "steps": 3, "all": torch.zeros(200_000)}
    monkeypatch.setattr(Static, "state_dict", lambda mixer: state)
    job = job_of(corpus, tmp_path / "run", steps=2)
    assert run_job(job).state == {"weights": [0.25, 0.75], "steps": 3}
    assert json.loads((tmp_path / "run" / RESULT).read_text())["state"] == run_job(job).state


def test_a_worker_gives_back_the_memory_of_a_finished_job(corpus, tmp_path, monkeypatch):
    """It stays, idle, while the process that started it measures prices on the same GPU."""
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(True))
    run_job(job_of(corpus, tmp_path / "run"))
    assert given == [True]
