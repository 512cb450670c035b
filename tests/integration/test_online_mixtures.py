"""ADO and ODM in real runs: stopped or killed and resumed, bit for bit the same; several ranks."""

import json
import os
import signal

import pytest
from processes import rows, run, start, steps_logged, wait_until

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.train.trainer import resume_run, start_run
from tiny_steps import ALONE

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.batch_size=8",
    "eval.every=0",
    "eval.max_samples_per_source=2",
    "probe.rows=0",
    "checkpoint.every=5",
    "optim.warmup_steps=2",
    "log.every=4",
)
RUNS = {
    "ado": ("mixer.warmup_steps=1", "mixer.refit_every=3", "mixer.remix_every=2"),
    "odm": ("mixer.warmup_steps=2", "mixer.remix_every=3", "train.micro_batch_size=3"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


def settings(corpus, name, directory, steps):
    given = (f"data.corpus={corpus}", f"run={directory}", f"mixer.name={name}")
    return [*given, f"train.steps={steps}", *SETTINGS, *RUNS[name]]


def trained(given):
    trainer = start_run(resolve_config(None, given), ALONE)
    trainer.train()
    trainer.run.unlock()


def mixtures(directory):
    """Step, reason and weights of every line of weights.jsonl."""
    lines = (directory / "weights.jsonl").read_text().splitlines()
    return [(row["step"], row["reason"], row["weight"]) for row in map(json.loads, lines)]


def assert_equal(one, other, last):
    assert rows(one) == rows(other)
    names = ("weights.jsonl", *(f"{last}/{part}.safetensors" for part in ("optimizer", "mixer")))
    for name in (*names, "model/model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    states = [json.loads((run / last / "state.json").read_text()) for run in (one, other)]
    assert states[0]["mixer"] == states[1]["mixer"]


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_and_a_broken_run_go_on_bit_for_bit(corpus, tmp_path, name):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    trained(settings(corpus, name, whole, 14))
    trainer = start_run(resolve_config(None, settings(corpus, name, cut, 14)), ALONE)
    trainer.stop_asked = lambda _: 15 if trainer.done == 7 else 0  # with a checkpoint
    assert trainer.train() == 15
    trainer.run.unlock()
    config = resolve_config(str(cut / "config.yaml"), [f"run={cut}"])
    trainer = resume_run(config, ALONE)
    advance = trainer.advance
    trainer.advance = lambda loader: advance(loader) if trainer.done < 12 else 1 / 0
    with pytest.raises(ZeroDivisionError):  # without one: it goes on from step 10
        trainer.train()
    trainer.run.unlock()
    trainer = resume_run(config, ALONE)
    assert trainer.done == 10
    trainer.train()
    trainer.run.unlock()
    assert_equal(whole, cut, "checkpoints/step-00000014")

    changed = [row for row in mixtures(whole) if row[1] == name]
    every = {"ado": 2, "odm": 3}[name]
    assert [step for step, *_ in changed][-2:] == [14 - 14 % every - every, 14 - 14 % every]
    shares = [list(weight.values()) for _, _, weight in changed]
    assert shares[-1] != shares[0]
    last = [row for row in rows(whole) if "weights/alpha/now" in row][-1]
    assert {"weights/alpha/average", "weights/alpha/loss_nats"} <= last.keys()
    assert ("weights/alpha/exponent" in last) == (name == "ado")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_draw_what_one_process_draws_and_a_kill_loses_nothing(corpus, tmp_path, name):
    whole, killed, ranks = (tmp_path / part for part in ("whole", "killed", "ranks"))
    trained(settings(corpus, name, whole, 40))
    run("train", *settings(corpus, name, ranks, 40), ranks=2)
    for one, two in zip(mixtures(whole), mixtures(ranks), strict=True):
        assert one[:2] == two[:2]
        assert two[2] == pytest.approx(one[2], abs=1e-4)
    last = [[row for row in rows(one) if "train/loss_nats" in row][-1] for one in (whole, ranks)]
    assert last[1]["train/loss_nats"] == pytest.approx(last[0]["train/loss_nats"], rel=1e-4)

    process = start("train", *settings(corpus, name, killed, 40))
    assert wait_until(lambda: steps_logged(killed) >= 22, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run("train", "--resume", str(killed))
    assert_equal(whole, killed, "checkpoints/step-00000040")
