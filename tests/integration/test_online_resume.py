"""Mixers that learn one weight a source, in the trainer: stopped, resumed, bit for bit the same."""

import json

import pytest
import torch
from processes import rows

from corpora import SIZES
from dograph.config import resolve_config
from dograph.mixers.source_weights import learned_weights
from dograph.train.trainer import resume_run, start_run
from online_runs import make_inputs, options_of
from tiny_steps import ALONE

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.steps=12",
    "train.batch_size=8",
    "eval.every=0",
    "eval.max_samples_per_source=2",
    "probe.rows=0",
    "checkpoint.every=5",
    "checkpoint.keep=9",
    "optim.warmup_steps=2",
    "log.every=4",
    "sketch.dim=64",
)
LAST = "checkpoints/step-00000012"
RUNS = {
    "dynamic-loss": ("mixer.strategy=upper",),
    "group-dro": ("mixer.adjustment=0.5", "train.micro_batch_size=3"),
    "doremi-proxy": ("train.dtype=bfloat16",),
    "doge-proxy": ("mixer.targets=[beta]", "train.micro_batch_size=3"),
    "rb": ("train.micro_batch_size=3", "sketch.accumulation=lagged"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def open_run(inputs, name, directory, *more):
    corpus, reference = inputs
    options = [f"mixer.{key}={value}" for key, value in options_of(name, reference).items()]
    overrides = [f"data.corpus={corpus}", f"run={directory}", f"mixer.name={name}"]
    return start_run(
        resolve_config(None, [*overrides, *SETTINGS, *options, *RUNS[name], *more]), ALONE
    )


def finish(trainer):
    trainer.train()
    trainer.run.unlock()


@pytest.mark.parametrize("name", RUNS)
def test_resumed_runs_are_bitwise_equal(inputs, tmp_path, name):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    finish(open_run(inputs, name, whole))
    trainer = open_run(inputs, name, stopped)
    trainer.stop_asked = lambda _: 15 if trainer.done == 7 else 0
    assert trainer.train() == 15
    trainer.run.unlock()
    config = resolve_config(str(stopped / "config.yaml"), [f"run={stopped}"])
    finish(resume_run(config, ALONE))

    assert rows(stopped) == rows(whole)
    for file in ("model/model", f"{LAST}/optimizer", f"{LAST}/mixer"):
        one, other = (run / f"{file}.safetensors" for run in (whole, stopped))
        assert one.read_bytes() == other.read_bytes(), file
    states = [json.loads((run / LAST / "state.json").read_text()) for run in (whole, stopped)]
    assert states[0]["mixer"] == states[1]["mixer"]
    if name == "dynamic-loss":
        assert states[0]["mixer"] == {"warmup_steps": 1}
        return
    metrics = rows(whole)
    assert states[0]["mixer"]["sources"] == list(SIZES)
    last = [row for row in metrics if "weights/alpha/now" in row][-1]
    now = [last[f"weights/{source}/now"] for source in SIZES]
    assert sum(now) == pytest.approx(1)
    assert max(now) - min(now) > 1e-4
    assert last["weights/effective_sources"] <= 3


def test_what_a_plan_reads_of_a_proxy(inputs, tmp_path):
    """The state of a finished run's mixer, as the lab hands it over."""
    trainer = open_run(inputs, "doge-proxy", tmp_path / "run", "log.every=1")
    finish(trainer)
    state = {
        key: value.tolist() if isinstance(value, torch.Tensor) else value
        for key, value in trainer.state.mixer.state_dict().items()
    }
    outcome = learned_weights(json.loads(json.dumps(state)), ["alpha", "gamma"])
    assert [point["steps"] for point in outcome["trajectory"]] == list(range(1, 13))
    assert set(outcome["weights"]) == {"alpha", "gamma"}
    assert sum(outcome["weights"].values()) == pytest.approx(1)
    metrics = [row for row in rows(tmp_path / "run") if "weights/alpha/now" in row]
    for row, point in zip(metrics, outcome["trajectory"], strict=True):
        assert row["weights/alpha/now"] == pytest.approx(point["weights"]["alpha"], rel=1e-6)
        assert row["weights/beta/now"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_runs_with_a_reference_are_those_of_eager(inputs, tmp_path):
    for name, value in (("eager", "false"), ("compiled", "true")):
        more = (f"train.compile={value}", "train.dtype=float32")
        finish(open_run(inputs, "doremi-proxy", tmp_path / name, *more))
    for eager, compiled in zip(rows(tmp_path / "eager"), rows(tmp_path / "compiled"), strict=True):
        for name in eager:
            assert compiled[name] == pytest.approx(eager[name], rel=1e-4, abs=1e-6), name
