"""Training in shards (FSDP2) is training: DDP's losses and weights, exact resume, the same files.

Nine samples lie unevenly on two ranks; on three, no tensor of 64 rows divides evenly.
"""

import json

import pytest
import torch
from processes import SETTINGS, rows, run
from safetensors.torch import load_file

from corpora import write_corpus
from dograph.models.build import build_model
from dograph.train.run_dir import RunDirectory
from several_ranks import on_ranks
from sharded_runs import RESUMED, RUNS, STEPS, STOP, go_on, train_all, train_sharded, train_whole
from tiny_steps import ALONE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Losses differ by a few roundings; so do gradients, which AdamW's first steps divide by themselves:
# where one is next to nothing, its update of up to lr = 2e-3 may differ by a part in a hundred.
LOSS, WEIGHT = 1e-6, 2e-5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """Where two ranks made their runs, and what each of them found of one that failed."""
    folder = tmp_path_factory.mktemp("runs")
    on_ranks(2, train_whole, corpus, folder)
    found = on_ranks(2, train_sharded, corpus, folder)
    train_all(ALONE, corpus, folder / "alone")
    return folder, found


def assert_same_run(got, expected, *, loss=LOSS, weight=WEIGHT):
    """The same metrics, and models on disk under the same names, to tolerance."""
    for a, b in zip(rows(got), rows(expected), strict=True):
        assert a.keys() == b.keys()
        for name in b:
            far = loss if "loss" in name else 20 * loss
            assert a[name] == pytest.approx(b[name], rel=far, abs=1e-6), (a["step"], name)
    file = f"checkpoints/step-{STEPS:08d}/{{}}.safetensors"
    for name, limit in (("model/model", weight), ("optimizer", weight)):
        tensors, others = (
            load_file(got / file.format(name)),
            load_file(expected / file.format(name)),
        )
        assert tensors.keys() == others.keys()
        for key, other in others.items():
            assert tensors[key].dtype == other.dtype
            torch.testing.assert_close(tensors[key], other, rtol=0.0, atol=limit)
    for left, right in zip(files(got), files(expected), strict=True):
        assert left == right


def files(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize("other", ["DDP", "alone"])
@pytest.mark.parametrize("name", RUNS)
def test_shards_train_as_ddp_and_as_one_process(made, name, other):
    folder, _ = made
    assert_same_run(folder / "shards" / name, folder / other / name)


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if "sketch" in str(run)])
def test_probes_are_those_of_ddp(made, name):
    folder, _ = made
    for step in (0, STEPS // 2, STEPS):
        got, expected = (
            load_file(RunDirectory(folder / kind / name).probe(step).with_suffix(".safetensors"))
            for kind in ("shards", "DDP")
        )
        torch.testing.assert_close(got["loss"], expected["loss"], rtol=LOSS, atol=0.0)
        # stored in bfloat16, where a difference in rounding may be one part in 256
        assert (got["sketch"].float() - expected["sketch"].float()).norm() < (
            1e-3 * expected["sketch"].float().norm()
        )


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_shards_are_bitwise_those_never_stopped(made, name):
    folder, _ = made
    stopped, whole = folder / "shards again" / name, folder / "shards" / name
    assert RunDirectory(folder / "stopped shards" / name).checkpoint_steps() == [3, STOP]
    assert rows(stopped) == rows(whole)
    last = f"checkpoints/step-{STEPS:08d}"
    for file in ("model/model.safetensors", f"{last}/optimizer.safetensors", "samples.jsonl"):
        assert (stopped / file).read_bytes() == (whole / file).read_bytes()
    state = json.loads((stopped / last / "state.json").read_text())
    assert state == json.loads((whole / last / "state.json").read_text())


@pytest.mark.parametrize("kind", ["shards, then DDP", "DDP, then shards"])
@pytest.mark.parametrize("name", RESUMED)
def test_shards_and_ddp_go_on_with_each_others_checkpoints(made, name, kind):
    folder, _ = made
    resumed, whole = folder / kind / name, folder / "DDP" / name
    assert RunDirectory(resumed).checkpoint_steps() == [3, STOP, STEPS]
    for a, b in zip(rows(resumed), rows(whole), strict=True):
        assert a["step"] == b["step"]
        for loss in (key for key in b if "loss" in key):
            assert a[loss] == pytest.approx(b[loss], rel=LOSS)


def test_one_process_and_three_go_on_with_the_shards_of_two(made):
    folder, _ = made
    go_on(ALONE, folder / "stopped shards", folder / "shards, then alone")
    on_ranks(3, go_on, folder / "stopped shards", folder / "shards of three")
    for kind in ("shards, then alone", "shards of three"):
        for name in RESUMED:
            for a, b in zip(rows(folder / kind / name), rows(folder / "DDP" / name), strict=True):
                for loss in (key for key in b if "loss" in key):
                    assert a[loss] == pytest.approx(b[loss], rel=LOSS)


def test_a_gradient_that_is_not_finite_updates_no_shard(made):
    folder, found = made
    (said, weights, _), (other, others, _) = found
    assert "step 3" in said
    assert "the gradient norm is nan. No update was made" in said
    assert said == other
    stored = load_file(folder / "not finite/checkpoints/step-00000002/model/model.safetensors")
    for name, tensor in stored.items():
        assert torch.equal(weights[name], tensor)
        assert torch.equal(others[name], tensor)


def test_every_rank_holds_its_half(made):
    """Of every tensor, by rows: all of a tiny model's are even in number."""
    _, found = made
    model = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=0)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert [held for _, _, held in found] == 2 * [[numbers // 2, numbers]]


def test_compiled_shards_by_torchrun_have_the_losses_of_eager_ddp(corpus, tmp_path):
    settings = [
        f"data.corpus={corpus}",
        *SETTINGS,
        "train.steps=6",
        "mixer.name=dograph",
        "mixer.num_domains=3",
        "sketch.mode=twopass",
        "sketch.dim=64",
        "probe.rows=6",
    ]
    run("train", f"run={tmp_path / 'eager'}", *settings, ranks=2)
    compiled = ("train.compile=true", "train.shard=true")
    run("train", f"run={tmp_path / 'compiled'}", *settings, *compiled, ranks=2, seconds=500)
    for a, b in zip(rows(tmp_path / "compiled"), rows(tmp_path / "eager"), strict=True):
        for name in b:
            if "loss" in name:
                assert a[name] == pytest.approx(b[name], rel=1e-5), (a["step"], name)
    config = RunDirectory(tmp_path / "compiled").config()
    assert config.train.shard
    run("train", "--resume", str(tmp_path / "compiled"), "train.shard=false")  # it is complete
