"""Choice by gradients in the trainer: resumed bit for bit, the same on two ranks, shown."""

import json

import pytest
import torch
from processes import rows

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.eval.recorded import explain_step
from dograph.report.collect import collect, open_subjects
from dograph.report.sections import health
from dograph.train.trainer import resume_run, start_run
from online_runs import take_toward_steps
from several_ranks import on_ranks
from tiny_steps import ALONE, assert_same_gradients, relative

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.steps=40",
    "train.batch_size=8",
    "train.micro_batch_size=3",
    "eval.every=0",
    "eval.max_samples_per_source=2",
    "probe.rows=0",
    "checkpoint.every=16",
    "checkpoint.keep=9",
    "optim.warmup_steps=2",
    "log.every=4",
    "sketch.dim=64",
    "mixer.name=toward",
    "mixer.targets=[beta]",
    "mixer.remix_every=8",
    "mixer.max_epochs=50",
)
LAST = "checkpoints/step-00000040"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("inputs") / "corpus", strata=2)


def test_a_resumed_run_is_bitwise_equal_and_explained(corpus, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for path in (whole, stopped):
        trainer = start_run(
            resolve_config(None, [f"data.corpus={corpus}", f"run={path}", *SETTINGS]), ALONE
        )
        if path == stopped:  # within a round
            trainer.stop_asked = lambda _, own=trainer: 15 if own.done == 21 else 0
        trainer.train()
        trainer.run.unlock()
    trainer = resume_run(resolve_config(str(stopped / "config.yaml"), [f"run={stopped}"]), ALONE)
    trainer.train()
    trainer.run.unlock()
    assert rows(stopped) == rows(whole)
    for file in ("model/model", f"{LAST}/optimizer", f"{LAST}/mixer"):
        one, other = (run / f"{file}.safetensors" for run in (whole, stopped))
        assert one.read_bytes() == other.read_bytes(), file
    states = [json.loads((run / LAST / "state.json").read_text()) for run in (whole, stopped)]
    assert states[0]["mixer"] == states[1]["mixer"]

    mixtures = [json.loads(line) for line in (whole / "weights.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in mixtures] == [0, 1, 8, 16, 24, 32, 40]
    assert mixtures[0]["weight"]["beta/0"] == 0
    last = rows(whole)[-2]
    assert last["step"] == 40
    now = {name: last[f"weights/{name}/now"] for name in mixtures[0]["weight"]}
    assert sum(now.values()) == pytest.approx(1)
    assert now["beta/0"] + now["beta/1"] == pytest.approx(0.125)
    first, *reasons = explain_step(whole, 40).reasons
    assert first.startswith("toward has no domains")
    for line, (name, share) in zip(reasons, now.items(), strict=True):
        value, low, high = (last[f"weights/{name}/help{end}"] for end in ("", "_low", "_high"))
        ends = f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
        assert line == f"{name}: weight {share:.3f}, help for the targets {ends}"

    data = collect(open_subjects([whole]))
    weights, helped = data.runs[0].choices
    assert [line.name for line in helped.series] == [line.name for line in weights.series]
    assert [line.name for line in weights.series] == sorted(now, key=lambda name: -now[name])
    for line in helped.series:
        value, low, high = (last[f"weights/{line.name}/help{end}"] for end in ("", "_low", "_high"))
        assert (line.x[-1], line.y[-1]) == (40, pytest.approx(value, rel=1e-4))
        assert (line.low[-1], line.high[-1]) == pytest.approx((low, high), rel=1e-4)
    charts, folded = health(data)
    assert weights in charts.content
    assert helped in charts.content
    assert folded.content[0].content == reasons


@pytest.mark.slow
@pytest.mark.parametrize("micro", [[], ["train.micro_batch_size=2"]], ids=str)
def test_two_ranks_are_one_process(corpus, micro):
    taken, mixtures, state = take_toward_steps(ALONE, corpus)
    assert len(mixtures) == 4
    assert max(mixtures[-1].values()) - min(mixtures[-1].values()) > 0.05
    for other in on_ranks(2, take_toward_steps, corpus, *micro):
        for got, expected in zip(other[0], taken, strict=True):
            assert relative(got[0], expected[0]) < 1e-5
            assert torch.equal(got[1], expected[1])
            assert_same_gradients(got[2], expected[2], 1e-5)
        for got, expected in zip(other[1], mixtures, strict=True):
            assert got == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert relative(other[2]["sum_FSK"], state["sum_FSK"]) < 1e-5
        assert torch.equal(other[2]["count_FS"], state["count_FS"])
