"""Real worker processes. They are slow to start, so most tests share two of them."""

import os
import signal
import threading
import time

import pytest

from corpora import write_corpus
from dograph.errors import ConfigError
from dograph.plan.jobs import Stopped, run_job
from dograph.plan.pool import JobError, LocalPool
from dograph.train.run_dir import RunDirectory
from lab_runs import is_running, job_of

LONG = 100_000  # steps that no test waits for


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def pool():
    with LocalPool(2) as pool:
        yield pool


def pids(pool):
    return [worker.process.pid for worker in pool._crew]


def when(condition, action, seconds=60):
    """Do something in a thread of its own as soon as a condition holds."""

    def watch():
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def model_bytes(result):
    with open(f"{result.model}/model.safetensors", "rb") as file:
        return file.read()


@pytest.mark.slow
def test_results_are_those_of_one_process_in_the_order_asked(corpus, pool, tmp_path):
    jobs = [
        job_of(corpus, tmp_path / f"{n}", label=f"job {n}", steps=steps, seed=n)
        for n, steps in enumerate((12, 2, 3))
    ]
    started, done = [], []
    results = pool.run(
        jobs, lambda job, result: done.append((job.label, result)), lambda j: started.append(j)
    )
    assert [result.steps for result in results] == [12, 2, 3]
    assert started == jobs
    assert sorted(label for label, _ in done) == ["job 0", "job 1", "job 2"]
    assert dict(done)["job 2"] is results[2]
    assert len(set(pids(pool))) == 2
    alone = run_job(job_of(corpus, tmp_path / "alone", steps=12))
    assert alone.curve == results[0].curve
    assert model_bytes(alone) == model_bytes(results[0])


@pytest.mark.slow
def test_a_job_that_raises_is_named_and_not_tried_again(corpus, pool, tmp_path):
    wrong = job_of(corpus, tmp_path / "wrong", label="the wrong one", weights={"delta": 1.0})
    pool.run([job_of(corpus, tmp_path / "right", steps=2)])
    before = pids(pool)
    assert before
    with pytest.raises(JobError) as failed:
        pool.run([wrong])
    for part in ("the wrong one", 'names "delta"', str(tmp_path / "wrong.log")):
        assert part in str(failed.value)
    assert pids(pool) == before  # its worker is none the worse
    assert "ConfigError" in (tmp_path / "wrong.log").read_text()


@pytest.mark.slow
def test_a_failure_lets_the_others_save_first(corpus, pool, tmp_path):
    wrong = job_of(corpus, tmp_path / "wrong", weights={"delta": 1.0})
    long = job_of(corpus, tmp_path / "long", steps=LONG, checkpoint={"every": 0}, label="long")
    short = job_of(corpus, tmp_path / "short", steps=20)
    with pytest.raises(JobError, match="delta"):
        pool.run([long, short, wrong])
    [saved] = RunDirectory(tmp_path / "long").checkpoint_steps()
    assert saved > 0


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_job_goes_on(corpus, pool, tmp_path):
    job = job_of(corpus, tmp_path / "job", steps=40, checkpoint={"every": 5}, label="victim")
    run = RunDirectory(tmp_path / "job")
    deaths, first = [], []

    def kill():
        first.extend(w.process.pid for w in pool._crew if w.jobs)
        os.kill(first[0], signal.SIGKILL)

    watcher = when(lambda: len(run.checkpoint_steps()) > 0, kill)
    [result] = pool.run([job], on_death=lambda job, how: deaths.append((job.label, how)))
    watcher.join()
    assert deaths == [("victim", "signal 9")]
    assert not is_running(first[0])
    alone = run_job(job_of(corpus, tmp_path / "alone", steps=40, checkpoint={"every": 0}))
    assert result.curve == alone.curve
    assert model_bytes(result) == model_bytes(alone)


@pytest.mark.slow
def test_interrupted_jobs_save_and_the_same_call_goes_on(corpus, pool, tmp_path):
    before = signal.getsignal(signal.SIGINT)  # a shell in the background has it ignored
    job = job_of(corpus, tmp_path / "job", steps=LONG, checkpoint={"every": 0})
    metrics = tmp_path / "job" / "metrics.jsonl"
    watcher = when(
        lambda: metrics.is_file() and metrics.stat().st_size > 0,
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    with pytest.raises(Stopped) as stopped:
        pool.run([job])
    watcher.join()
    assert stopped.value.number == signal.SIGINT
    assert len(RunDirectory(tmp_path / "job").checkpoint_steps()) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_no_workers_are_refused():
    with pytest.raises(ConfigError, match="--workers=0"):
        LocalPool(0)


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_given_up(corpus, tmp_path):
    """Three deaths are survived, the fourth is told."""
    job = job_of(corpus, tmp_path / "job", steps=LONG, checkpoint={"every": 0}, label="deadly")
    log, deaths = tmp_path / "job.log", []

    def kill_at_the_first_step(pool):
        for number in range(4):
            begun = log.read_text().count("step ") if log.is_file() else 0
            while not log.is_file() or log.read_text().count("step ") == begun:
                time.sleep(0.02)
            os.kill(pids(pool)[0], signal.SIGKILL)
            while len(deaths) == number and number < 3:
                time.sleep(0.02)

    with LocalPool(1) as pool:
        threading.Thread(target=kill_at_the_first_step, args=(pool,), daemon=True).start()
        with pytest.raises(JobError) as lost:
            pool.run([job], on_death=lambda _, how: deaths.append(how))
    assert deaths == ["signal 9"] * 3
    for part in ("deadly", "died 4 times (signal 9)", str(log), "--workers"):
        assert part in str(lost.value)
