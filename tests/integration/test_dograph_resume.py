"""DoGraph stopped or killed, resumed, and bit for bit the run that never stopped.

Also: what activation checkpointing and compiling may not change.
"""

import json

import pytest
import torch
from processes import rows

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.train.trainer import resume_run, start_run
from tiny_steps import ALONE, PAPER, STREAM, assert_same_gradients, open_steps, relative

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.steps=24",
    "train.batch_size=8",
    "eval.every=0",
    "eval.max_samples_per_source=2",
    "probe.rows=0",
    "checkpoint.every=8",
    "checkpoint.keep=9",
    "optim.warmup_steps=2",
    "log.every=5",
    "sketch.dim=64",
    "mixer.name=dograph",
    "mixer.num_domains=3",
    "mixer.kmeans_restarts=2",
    "mixer.warmup_ratio=0.1",
)
LAST = "checkpoints/step-00000024"
RUNS = {
    "stream, sampling, bfloat16": (
        "mixer.scope=stream",
        "mixer.apply_weights_to=sampling",
        "mixer.remix_every=4",
        "train.dtype=bfloat16",
    ),
    "epoch, sampling, head": (
        "mixer.scope=period",
        "mixer.period_steps=3",
        "mixer.apply_weights_to=sampling",
        "mixer.remix_every=4",
        "sketch.mode=head",
    ),
}
SLOW_RUNS = {
    "paper": ("mixer.recipe=paper",),
    "stream": ("mixer.scope=stream",),
    "stream, new projections": ("mixer.scope=stream", "sketch.refresh=12"),
    "stream, sampling": (
        "mixer.scope=stream",
        "mixer.apply_weights_to=sampling",
        "mixer.remix_every=4",
    ),
    "stream, lagged": (
        "mixer.scope=stream",
        "train.micro_batch_size=3",
        "sketch.accumulation=lagged",
        "model.dropout=0.2",
    ),
    "epoch, sampling": (
        "mixer.scope=period",
        "mixer.period_steps=3",
        "mixer.apply_weights_to=sampling",
        "mixer.remix_every=4",
    ),
    "epoch, checkpointing": (
        "mixer.scope=period",
        "mixer.period_steps=5",
        "sketch.mode=twopass",
        "train.activation_checkpointing=true",
    ),
    "paper, bfloat16, dropout": (
        "mixer.recipe=paper",
        "train.dtype=bfloat16",
        "model.dropout=0.2",
        "train.micro_batch_size=3",
    ),
}


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c", strata=2)


def open_run(corpus, directory, options):
    config = resolve_config(
        None, [f"data.corpus={corpus}", f"run={directory}", *SETTINGS, *options]
    )
    return start_run(config, ALONE)


def close(trainer):
    trainer.run.unlock()


def finish(trainer):
    trainer.train()
    close(trainer)


def resume(directory):
    config = resolve_config(str(directory / "config.yaml"), [f"run={directory}"])
    return resume_run(config, ALONE)


def interrupt(trainer, step, how):
    """End at `step`: asked to, with a checkpoint there, or killed, so that the last one counts."""
    if how == "stopped":
        trainer.stop_asked = lambda _: 15 if trainer.done == step else 0
        assert trainer.train() == 15
    else:
        advance = trainer.advance

        def dying(loader):
            if trainer.done == step:
                raise Killed
            return advance(loader)

        trainer.advance = dying
        with pytest.raises(Killed):
            trainer.train()
    close(trainer)


def differences(one, other):
    """(step, metric) where two runs' rows differ."""
    pairs = list(zip(rows(one), rows(other), strict=True))
    return [(a["step"], name) for a, b in pairs for name in a | b if a.get(name) != b.get(name)]


def assert_same_runs(one, other):
    assert differences(one, other) == []
    files = ["weights.jsonl", "model/model.safetensors"]
    files += [f"{LAST}/{name}.safetensors" for name in ("optimizer", "mixer")]
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    states = [json.loads((run / LAST / "state.json").read_text()) for run in (one, other)]
    assert states[0]["mixer"] == states[1]["mixer"]


def check_resumed(corpus, folder, options):
    finish(open_run(corpus, folder / "whole", options))
    for how, step in (("stopped", 13), ("killed", 11)):
        interrupt(open_run(corpus, folder / how, options), step, how)
        finish(resume(folder / how))
        assert_same_runs(folder / how, folder / "whole")
    return rows(folder / "whole")


@pytest.mark.parametrize("name", RUNS)
def test_resumed_runs_are_bitwise_equal(corpus, tmp_path, name):
    metrics = check_resumed(corpus, tmp_path, RUNS[name])
    assert any(row.get("weights/max_relative_weight", 1) > 1.001 for row in metrics) or (
        "sampling" in name
    )
    log = (tmp_path / "whole" / "weights.jsonl").read_text()
    assert log.count("dograph") >= 3  # the mixture did change, before and after the stop


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_RUNS)
def test_more_resumed_runs_are_bitwise_equal(corpus, tmp_path, name):
    check_resumed(corpus, tmp_path, SLOW_RUNS[name])


@pytest.mark.slow
def test_new_projections_while_remixing(corpus, tmp_path):
    """Between two projections there are no domains; mixtures go on as they would have."""
    options = (
        "mixer.scope=period",
        "mixer.period_steps=4",
        "mixer.apply_weights_to=sampling",
        "mixer.remix_every=3",
        "sketch.refresh=12",
    )
    check_resumed(corpus, tmp_path, options)


@pytest.mark.parametrize("scope", ["stream", "period"])
def test_projection_centroids_and_averages_are_restored(corpus, tmp_path, scope):
    options = (
        f"mixer.scope={scope}",
        "mixer.period_steps=3",
        "sketch.refresh=12",
        "mixer.half_life=5",
    )
    whole = open_run(corpus, tmp_path / "run", options)
    interrupt(whole, 13, "stopped")
    other = resume(tmp_path / "run")
    close(other)
    before, after = whole.state.mixer.state_dict(), other.state.mixer.state_dict()
    assert before.keys() == after.keys()
    assert sum(isinstance(value, torch.Tensor) for value in before.values()) > 4
    for name, value in before.items():
        equal = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
        assert equal(after[name], value), name
    projections = []
    for trainer in (whole, other):
        record = trainer.advance(trainer.open_loader())
        rules = trainer.step.sketcher.rules
        projections.append([tensor for rule in rules for tensor in rule.projection])
        assert record.signals.projection == 12
    assert all(torch.equal(a, b) for a, b in zip(*projections, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["full", "twopass"])
def test_activation_checkpointing_changes_nothing(corpus, mode, dtype):
    options = (f"sketch.mode={mode}", f"train.dtype={dtype}", "model.dropout=0.2", "optim.lr=1e-3")
    plain = open_steps(corpus, *PAPER, *options)
    saving = open_steps(corpus, *PAPER, *options, "train.activation_checkpointing=true")
    for _ in range(3):
        one, other = plain.take(), saving.take()
        assert relative(other.loss_B, one.loss_B) < 1e-5
        assert relative(other.sketch_BK, one.sketch_BK) < 1e-5
        assert relative(other.weight_B, one.weight_B) < 1e-5
        assert_same_gradients(other.gradients, one.gradients, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scope", [PAPER, STREAM], ids=["paper", "stream"])
def test_compiled_runs_are_those_of_eager(corpus, tmp_path, scope):
    for name, value in (("eager", "false"), ("compiled", "true")):
        finish(open_run(corpus, tmp_path / name, (*scope, f"train.compile={value}")))
    pairs = zip(rows(tmp_path / "eager"), rows(tmp_path / "compiled"), strict=True)
    for eager, compiled in pairs:
        for name in eager:
            assert compiled[name] == pytest.approx(eager[name], rel=1e-4, abs=1e-6), name
