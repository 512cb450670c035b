"""The noise scale against closed forms, another estimator, and the runs that record it."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from corpora import write_corpus
from dograph.config import SketchConfig, resolve_config
from dograph.errors import ConfigError, RunError
from dograph.eval.recorded import noise_table
from dograph.records import Skipped
from dograph.train import checkpoint
from dograph.train.distributed import World
from dograph.train.noise import POWER, NoiseScale, measured_parameters, noise_scale
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import resume_run, start_run
from dograph.types import Signals
from tiny_steps import STREAM, open_steps

CPU = World(rank=0, size=1, device=torch.device("cpu"))
WIDTH, SIGMA, FROM_MINIMUM = 40, 0.5, 0.3


def signals(sketch_BK, source_B=None):
    return Signals(step=0, num_samples=len(sketch_BK), sketch_BK=sketch_BK, source_B=source_B)


def quadratic(num, seed):
    """Gradients theta - x_i of |theta - x_i|^2 / 2, with x_i of variance SIGMA^2 in each axis."""
    generator = torch.Generator().manual_seed(seed)
    noise_BK = SIGMA * torch.randn(num, WIDTH, generator=generator)
    return torch.full((WIDTH,), FROM_MINIMUM) - noise_BK


TRUE_SCALE = WIDTH * SIGMA**2 / (WIDTH * FROM_MINIMUM**2)


def test_a_quadratic_with_known_noise():
    """Whatever the batch sizes; the error is near the forecast of sqrt(2) (scale / B) / ..."""
    meter = NoiseScale()
    for step in range(300):
        meter.observe(signals(quadratic((4, 8, 32)[step % 3], step)))
    found = dict(meter.report())
    assert found["noise/scale_samples"] == pytest.approx(TRUE_SCALE, rel=0.05)
    assert found["noise/scale_low_samples"] < TRUE_SCALE < found["noise/scale_high_samples"]


def test_the_estimator_of_two_batch_sizes():
    """McCandlish et al., appendix A: exactly the same with small batches of one sample."""

    def two_sizes(gradient_BK, small):
        big = len(gradient_BK)
        part_square = gradient_BK.view(-1, small, WIDTH).mean(1).square().sum(1).mean()
        square = gradient_BK.mean(0).square().sum()
        signal = (big * square - small * part_square) / (big - small)
        return signal, (part_square - square) / (1 / small - 1 / big)

    gradient_BK = quadratic(32, 0).double()
    meter = NoiseScale()
    meter.observe(signals(gradient_BK))
    expected = torch.stack(two_sizes(gradient_BK, 1))
    torch.testing.assert_close(meter.state_R9[0, 1:3], expected, rtol=1e-5, atol=0)
    batches = [quadratic(32, seed) for seed in range(200)]
    for gradient_BK in batches[1:]:
        meter.observe(signals(gradient_BK))
    of_four = torch.tensor([two_sizes(one, 4) for one in batches[50:]]).mean(0)
    ours = dict(meter.report())["noise/scale_samples"]
    assert ours == pytest.approx(float(of_four[1] / of_four[0]), rel=0.05)


def test_intervals_hold_the_true_scale_about_as_often_as_they_say():
    """200 independent measurements at once, each of a source of its own."""
    names = [f"s{i}" for i in range(200)]
    meter, source_B = NoiseScale(names), torch.arange(200).repeat(8)
    for step in range(40):
        meter.observe(signals(quadratic(1600, step), source_B))
    found = dict(meter.report())
    low, high = (found[f"noise/*/scale_{end}_samples"] for end in ("low", "high"))
    hits = sum(low[name] < TRUE_SCALE < high.get(name, math.inf) for name in low)
    assert len(low) == 200
    assert 0.90 <= hits / 200 <= 0.99


def test_at_both_ends_of_the_interval_the_difference_is_t_standard_errors():
    """Fieller: of S2 - r G2, whose variance has the covariance of the two averages."""
    signal, noise, gg, gs, ss, batches = 2.0, 30.0, 0.06, 0.4, 9.0, 6.0
    found = noise_scale(48.0, signal, noise, 0.0, 0.0, gg, gs, ss, 1 / batches)
    covariance_22 = np.array([[ss, gs], [gs, gg]])
    apart = []
    for end in ("low", "high"):
        of_two = np.array([1.0, -found[f"scale_{end}_samples"]])
        apart.append(of_two @ [noise, signal] / math.sqrt(of_two @ covariance_22 @ of_two))
    t = stats.t.ppf(0.975, batches - 1)
    assert apart == pytest.approx([t, -t], rel=1e-9)
    assert found["scale_samples"] == 15.0


def test_averages_weigh_batches_by_samples_and_forget_the_start():
    sizes, meter, ours, each = (3, 9, 2, 30), NoiseScale(), [], []
    for step, size in enumerate(sizes):
        gradient_BK = quadratic(size, step)
        meter.observe(signals(gradient_BK))
        alone = NoiseScale()
        alone.observe(signals(gradient_BK))
        each.append(alone.state_R9[0, 1:3])
        ours.append(sum(sizes[: step + 1]) ** POWER)
    weights = [after - before for after, before in zip(ours, [0, *ours[:-1]], strict=True)]
    expected = sum(w * x for w, x in zip(weights, each, strict=True)) / sum(weights)
    torch.testing.assert_close(meter.state_R9[0, 1:3], expected)


def test_what_cannot_be_measured_is_left_out():
    meter = NoiseScale(["a", "b"])
    source_B = torch.tensor([0, 0, 0, 1])
    meter.observe(signals(quadratic(4, 0), source_B))
    before = meter.state_R9
    spoilt_BK = quadratic(4, 1)
    spoilt_BK[2, 5] = math.inf
    meter.observe(signals(spoilt_BK, source_B))
    meter.observe(signals(quadratic(1, 2), torch.tensor([1])))
    torch.testing.assert_close(meter.state_R9, before)
    assert set(dict(meter.report())["noise/*/scale_samples"]) == {"a"}  # one sample of b
    opposite = NoiseScale()  # the mean gradient is exactly zero: not yet
    opposite.observe(signals(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    assert dict(opposite.report()) == {}
    with pytest.raises(ConfigError, match="sketches"):
        meter.observe(Signals(step=0, num_samples=4))
    with pytest.raises(ConfigError, match="give the sources"):
        meter.observe(signals(quadratic(4, 0)))


def test_half_precision_around_it_changes_nothing():
    plain, inside = NoiseScale(), NoiseScale()
    plain.observe(signals(quadratic(8, 0)))
    with torch.autocast("cpu", torch.bfloat16):
        inside.observe(signals(quadratic(8, 0)))
    assert torch.equal(plain.state_R9, inside.state_R9)


@pytest.mark.parametrize("accumulation", ["two_sweeps", "keep", "lagged"])
def test_micro_batches_measure_the_whole_batch(tmp_path, accumulation):
    corpus = write_corpus(tmp_path / "corpus")
    states = []
    for more in ((), ("train.micro_batch_size=3", f"sketch.accumulation={accumulation}")):
        steps, meter = open_steps(corpus, *STREAM, *more), NoiseScale(["alpha", "beta", "gamma"])
        batch = steps.loader.load(0)
        meter.observe(steps.step(batch, 0).signals, batch.source_B)
        states.append(meter.state_R9)
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-9)


def test_parts_are_named():
    assert measured_parameters(SketchConfig()) == "all parameters"
    assert measured_parameters(SketchConfig(mode="head")) == "the output layer"
    parts = measured_parameters(SketchConfig(mode="topdown", top_blocks=2, exclude=["wte"]))
    assert parts == "the top 2 blocks and above without wte"


def settings(tmp_path, run, *more):
    corpus = tmp_path / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    given = [f"data.corpus={corpus}", f"run={tmp_path / run}", "model.preset=tiny", "probe.rows=0"]
    given += ["data.seq_len=16", "train.batch_size=12", "train.steps=8", "optim.warmup_steps=2"]
    given += ["eval.every=0", "checkpoint.every=4", "checkpoint.keep=9", "log.every=1"]
    return resolve_config(None, [*given, "sketch.dim=64", *more])


def noise_rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k.startswith("noise/")} for row in rows]


def test_a_resumed_run_measures_the_same_and_an_old_checkpoint_starts_anew(tmp_path):
    whole = start_run(settings(tmp_path, "whole"), CPU)
    whole.train()
    whole.run.unlock()
    expected = noise_rows(tmp_path / "whole")
    assert "noise/scale_samples" in expected[7]
    for old in (False, True):
        run = RunDirectory(tmp_path / "whole")
        (run.path / "model").unlink(missing_ok=True)
        shutil.rmtree(run.checkpoint(8))
        if old:
            folder = run.checkpoint(4)
            tensors = load_file(folder / checkpoint.MIXER)
            assert tensors.pop("meters.noise.state_R9").shape == (4, 9)
            save_file(tensors, folder / checkpoint.MIXER)
            facts = json.loads((folder / checkpoint.STATE).read_text())
            checkpoint.seal(folder, 4, facts["corpus"], facts["mixer"])
        again = resume_run(settings(tmp_path, "whole"), CPU)
        again.train()
        again.run.unlock()
        assert (noise_rows(tmp_path / "whole") == expected) is not old


def test_show_reads_the_newest_scale(tmp_path):
    for run, more in (("sketched", ()), ("plain", ("mixer.name=natural",))):
        trainer = start_run(settings(tmp_path, run, *more), CPU)
        trainer.train()
    table = noise_table(tmp_path / "sketched", Skipped())
    names, scales, *_ = (list(column.cells) for column in table.columns)
    assert "of all parameters, after step 8; batch: 12" in table.title
    assert names == ["all samples", "alpha", "beta", "gamma"]
    assert float(scales[0]) > 0
    with pytest.raises(RunError, match="no step with sketches"):
        noise_table(tmp_path / "plain", Skipped())
