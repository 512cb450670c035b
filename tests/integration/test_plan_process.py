"""A plan as a real process: killed, interrupted, robbed of its workers; on Ray."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from processes import wait_until

from corpora import write_corpus
from dograph.errors import RunError
from dograph.plan.jobs import run_job
from dograph.plan.pool import LocalPool
from dograph.train.run_dir import RunDirectory
from lab_runs import children_of, is_running, job_of, without_torchrun

TESTS = Path(__file__).parents[1]
SETTINGS = (
    "data.seq_len=32",
    "train.steps=240",
    "train.batch_size=8",
    "optim.warmup_steps=5",
    "eval.max_samples_per_source=4",
    "mixer.number=6",
)
PROXY = ("--proxy", "train.steps=80", "--proxy", "checkpoint.every=20")

HELD = """
import sys
from dograph.plan.pool import LocalPool
from lab_runs import job_of
corpus, run = sys.argv[1:]
if __name__ == "__main__":
    with LocalPool(1) as pool:
        pool.run([job_of(corpus, run, steps=100_000, checkpoint={"every": 0})])
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=without_torchrun() | {"PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
    )


def start_plan(corpus, folder, *more):
    where = ("--lab", folder / "lab", "--out", folder / "mixture.yaml", "--workers", "2")
    plan = ("-m", "dograph", "plan", "lab_runs:Ladder", f"data.corpus={corpus}")
    return start(*plan, *SETTINGS, *PROXY, *where, *more)


def finished(process, code=0):
    out, err = process.communicate(timeout=280)
    assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
    return out, err


def plan_of(folder):
    """The file but for the command, which names folders."""
    content = yaml.safe_load((folder / "mixture.yaml").read_text())
    del content["provenance"]["command"]
    return content


def proxies_done(folder):
    return len(list((folder / "lab").glob("*/result.json")))


def saved_in(folder):
    return set((folder / "lab").glob("*/checkpoints/step-*"))


def checkpoints(folder):
    return len(saved_in(folder))


def all_gone(pids, seconds=60):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A plan that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    finished(start_plan(corpus, folder))
    return folder


@pytest.mark.slow
def test_workers_save_and_leave_when_their_parent_is_killed(corpus, tmp_path):
    run = tmp_path / "job"
    process = start("-c", HELD, corpus, run)
    assert wait_until(lambda: (run / "metrics.jsonl").is_file(), process)
    [worker] = children_of(process.pid)
    process.kill()
    process.communicate()
    assert all_gone([worker])
    [saved] = RunDirectory(run).checkpoint_steps()
    assert saved > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_the_same_command_goes_on(corpus, whole, tmp_path):
    process = start_plan(corpus, tmp_path)
    assert wait_until(lambda: proxies_done(tmp_path) >= 1 and checkpoints(tmp_path) >= 2, process)
    workers = children_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    assert all_gone(workers)
    done = proxies_done(tmp_path)
    assert 1 <= done < 6
    assert not (tmp_path / "mixture.yaml").exists()
    _, err = finished(start_plan(corpus, tmp_path))
    assert f"{done} more made before" in err
    assert plan_of(tmp_path) == plan_of(whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_asked_to_stop_it_says_how_to_go_on(corpus, whole, tmp_path):
    """By Ctrl-C, and once more by a scheduler; the third start ends as one left alone."""
    for sent, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        seen = saved_in(tmp_path)
        process = start_plan(corpus, tmp_path)
        assert wait_until(lambda seen=seen: len(saved_in(tmp_path) - seen) >= 2, process)
        workers = children_of(process.pid)
        process.send_signal(sent)
        _, err = finished(process, code)
        assert "nothing is lost: the same command goes on" in err
        assert all_gone(workers, 0)
        assert not (tmp_path / "mixture.yaml").exists()
    finished(start_plan(corpus, tmp_path))
    assert plan_of(tmp_path) == plan_of(whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_killed_workers_change_nothing(corpus, whole, tmp_path):
    process = start_plan(corpus, tmp_path)
    for kill in range(3):
        assert wait_until(lambda kill=kill: checkpoints(tmp_path) >= 2 * kill + 1, process)
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
    _, err = finished(process)
    assert err.count("died (signal 9)") == 3
    assert plan_of(tmp_path) == plan_of(whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_gives_the_same_mixture_bit_for_bit(corpus, whole, tmp_path):
    pytest.importorskip("ray")
    finished(start_plan(corpus, tmp_path, "--on", "ray"))
    assert plan_of(tmp_path) == plan_of(whole)
    for one in (whole / "lab").glob("*/model/model.safetensors"):
        other = tmp_path / one.relative_to(whole)
        assert other.read_bytes() == one.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_tells_of_failures_and_of_folders_that_nodes_do_not_share(corpus, tmp_path):
    pytest.importorskip("ray")
    from dograph.plan import pool as ray_pool
    from dograph.plan.pool import JobError

    wrong = job_of(corpus, tmp_path / "wrong", label="the wrong one", weights={"delta": 1.0})
    with ray_pool.RayPool(workers=1) as pool:
        with pytest.raises(JobError, match='"the wrong one" failed: the mixture names "delta"'):
            pool.run([wrong])
        answer = ray_pool._task(wrong, [tmp_path / "elsewhere" / ".shared"])
        assert "file system that all nodes of the Ray cluster share" in answer.reason


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dead_raylet_is_the_cause_and_memory_is_not_blamed(corpus, tmp_path):
    pytest.importorskip("ray")
    from dograph.plan.pool import RayPool

    def kill(_):
        for child in children_of(os.getpid()):
            if "raylet/raylet" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGKILL)

    job = job_of(corpus, tmp_path / "long", steps=100_000)
    with RayPool(workers=1) as pool:
        with pytest.raises(RunError, match="no node of the Ray cluster is alive") as told:
            pool.run([job], on_start=kill)
        assert "memory" not in str(told.value)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_undisturbed_pool_equals_this_process(corpus, tmp_path):
    """Nine runs in two processes: what a worker did before leaves no trace."""
    jobs = [job_of(corpus, tmp_path / f"{n}", label=f"{n}", seed=n % 3) for n in range(9)]
    with LocalPool(2) as pool:
        results = pool.run(jobs)
    for n, result in enumerate(results):
        assert result.curve == results[n % 3].curve
    assert run_job(job_of(corpus, tmp_path / "alone", seed=2)).curve == results[2].curve
