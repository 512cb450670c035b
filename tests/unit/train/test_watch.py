"""The watch: which samples are flagged, which steps are spikes, what a skipped update leaves."""

import json
import shlex
import shutil
import statistics

import pytest
import torch

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.data.sampler import skipped_blocks
from dograph.errors import ConfigError, RunError
from dograph.eval.recorded import samples_of_step, watched_lines
from dograph.mixers.base import Mixer
from dograph.mixers.registry import require_compatible
from dograph.records import Skipped
from dograph.train import watch as module
from dograph.train.distributed import World
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import resume_run, start_run
from dograph.train.watch import MOST_IN_A_ROW, SampleWatch, robust_z
from dograph.types import Signals
from several_ranks import on_ranks
from tiny_steps import ALONE, assert_same_gradients, open_steps, watch_steps

CPU = World(rank=0, size=1, device=torch.device("cpu"))
NATURAL = ("mixer.name=natural", "train.on_spike=warn")


def signals(sketch_BK, step=0, loss=1.0):
    loss_B = torch.full((len(sketch_BK),), loss)
    return Signals(step=step, num_samples=len(sketch_BK), sketch_BK=sketch_BK, loss_B=loss_B)


def test_large_gradients_are_flagged_and_shares_sum_to_one():
    watch, sketch_BK = SampleWatch(), torch.randn(9, 50, generator=torch.manual_seed(0))
    sketch_BK /= sketch_BK.norm(dim=1, keepdim=True)
    sketch_BK[4] *= 2.9
    sketch_BK[6] *= 3.1
    seen = watch.observe(signals(sketch_BK), ids=list("abcdefghi"))
    assert [i for i, flag in zip(seen.ids, seen.flagged_B.tolist(), strict=True) if flag] == ["g"]
    mean_K = sketch_BK.mean(0)
    share_B = torch.stack([s @ mean_K / (9 * mean_K.square().sum()) for s in sketch_BK])
    torch.testing.assert_close(seen.table_B3[:, 1], share_B)
    assert float(share_B.sum()) == pytest.approx(1)
    assert seen.row()["samples"][0].keys() == {"sample", "norm", "share", "loss_nats"}
    assert [sample["sample"] for sample in seen.row()["samples"]] == [6]
    # The median is a running one: a batch of nothing but large gradients is flagged as a whole.
    for step in range(1, 60):
        watch.observe(signals(torch.eye(4), step))
    assert watch.observe(signals(4 * torch.eye(4), 60)).flagged_B.all()
    assert watch.observe(signals(torch.eye(4), 61)).row() is None
    assert [seen.step for seen in watch.ring] == list(range(62))


def test_the_robust_z_score_is_that_of_the_definition():
    past = torch.rand(2, 41, dtype=torch.float64, generator=torch.manual_seed(1))
    past[:, :10] = torch.nan  # not yet filled
    z_2 = robust_z(torch.tensor([1.7, 0.4], dtype=torch.float64), past)
    for now, row, z in zip((1.7, 0.4), past[:, 10:].tolist(), z_2.tolist(), strict=True):
        median = statistics.median(row)
        deviation = 1.4826 * statistics.median(abs(x - median) for x in row)
        assert z == pytest.approx((now - median) / deviation)
    short = past.clone()
    short[:, : 41 - 19] = torch.nan
    assert robust_z(torch.tensor([99.0, 99.0], dtype=torch.float64), short).tolist() == [0, 0]


def test_spikes_are_named_and_skipped_only_a_few_times_in_a_row():
    watch, sketch_BK = SampleWatch(skips=True), torch.eye(4)
    for step in range(30):
        assert not watch.observe(signals(sketch_BK, step, loss=2 + 0.01 * (step % 5))).skip
    spikes = [watch.observe(signals(sketch_BK, 30 + n, loss=9.0)) for n in range(MOST_IN_A_ROW + 2)]
    assert [float(seen.skip) for seen in spikes] == [1.0] * MOST_IN_A_ROW + [0.0] * 2
    row = spikes[0].row()
    assert (row["step"], list(row["spike"]), row["skipped"]) == (31, ["loss"], True)
    assert len(row["samples"]) == 4  # all samples of a spike are listed by share, flagged or not
    calm = SampleWatch()
    calm.load_state_dict(watch.state_dict())
    assert not calm.observe(signals(sketch_BK, 40, loss=9.0)).skip


def test_a_step_is_compared_with_those_before_it_and_its_largest_shares_are_named():
    watch, losses = SampleWatch(), torch.rand(24, generator=torch.manual_seed(2)).tolist()
    length_B = torch.linspace(1, 1.5, 12)  # so that sample 11 has the largest share
    for step, loss in enumerate(losses):
        watch.observe(signals(length_B.diag(), step, loss))
    seen = watch.observe(signals(length_B.diag(), 24, loss=4.0))
    median = statistics.median_low(losses)
    deviation = 1.4826 * statistics.median_low(abs(loss - median) for loss in losses)
    assert float(seen.z_2[0]) == pytest.approx((4.0 - median) / deviation, rel=1e-5)
    assert [own["sample"] for own in seen.row()["samples"]] == list(range(11, 1, -1))


def test_what_it_needs():
    with pytest.raises(ConfigError, match="needs the sketches and losses"):
        SampleWatch().observe(Signals(step=0, num_samples=2, sketch_BK=torch.eye(2)))
    conflict = ["train.on_spike=warn", "mixer.name=natural", "sketch.projection=gaussian"]
    with pytest.raises(ConfigError, match=r"train.on_spike needs sketches, and sketch.projection"):
        require_compatible(resolve_config(None, conflict), Mixer())
    with pytest.raises(ConfigError, match=r"train.on_spike='stop'.*skip"):
        resolve_config(None, ["train.on_spike=stop"])
    plain = resolve_config(None, [])
    assert "on_spike" not in plain.dump()
    assert "micro_batch_size: null" in plain.dump()


@pytest.mark.parametrize("mode", ["head", "full"])
@pytest.mark.parametrize("micro", ["null", "3"])
def test_watched_training_has_the_gradient_of_plain_training(tmp_path, mode, micro):
    corpus, size = write_corpus(tmp_path / "corpus"), f"train.micro_batch_size={micro}"
    plain = open_steps(corpus, "mixer.name=natural", size, mixer=Mixer())
    watched = open_steps(corpus, *NATURAL, f"sketch.mode={mode}", size, mixer=Mixer())
    for _ in range(2):
        batch = plain.loader.load(plain.done)
        plain.step(batch, plain.done)
        record = watched.step(batch, plain.done)
        plain.done += 1
        for name, gradient in plain.gradients.items():
            torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-4, atol=1e-7)
        assert record.watched.table_B3.shape == (7, 3)
        assert float(record.watched.table_B3[:, 1].sum()) == pytest.approx(1, abs=1e-4)
        torch.testing.assert_close(record.watched.table_B3[:, 2], record.loss_B)
        assert record.weight_B.tolist() == pytest.approx([1 / 7] * 7)


@pytest.mark.slow
def test_ranks_see_the_world_batch(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    expected, noise = watch_steps(ALONE, corpus)
    for seen, noise_there in on_ranks(2, watch_steps, corpus, "train.micro_batch_size=2"):
        torch.testing.assert_close(noise_there, noise, rtol=1e-4, atol=1e-9)
        for (table_B3, gradients), (own_B3, own) in zip(seen, expected, strict=True):
            torch.testing.assert_close(table_B3, own_B3, rtol=1e-4, atol=1e-5)
            assert_same_gradients(gradients, own, tolerance=1e-5)


def settings(tmp_path, run, *more):
    corpus = tmp_path / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    given = [f"data.corpus={corpus}", f"run={tmp_path / run}", "model.preset=tiny", *NATURAL]
    given += ["data.seq_len=16", "train.batch_size=8", "train.steps=12", "optim.warmup_steps=2"]
    given += ["eval.every=0", "checkpoint.every=6", "checkpoint.keep=9", "sketch.dim=64"]
    return resolve_config(None, [*given, "sketch.mode=head", *more])


def recorded(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith(("time", "memory"))} for row in rows]
    return rows, (run / "watch.jsonl").read_text()


@pytest.fixture
def nervous(monkeypatch):
    """Ordinary fluctuations are spikes."""
    monkeypatch.setattr(module, "SPIKE", 0.7)
    monkeypatch.setattr(module, "LEAST", 2)
    monkeypatch.setattr(module, "TIMES", 1.2)
    monkeypatch.setattr("dograph.eval.recorded.TIMES", 1.2)


def test_skipped_updates_change_nothing_and_resume_exactly(tmp_path, nervous):
    run = RunDirectory(tmp_path / "run")
    trainer = start_run(settings(tmp_path, "run", "train.on_spike=skip"), CPU)
    loader, skipped = trainer.open_loader(), 0
    trainer.files.open(0)
    for _ in range(6):
        before = [p.clone() for p in trainer.step.parameters]
        record = trainer.advance(loader)
        same = all(torch.equal(a, b) for a, b in zip(before, trainer.step.parameters, strict=True))
        assert same == bool(record.watched.skip)
        skipped += same
    assert 0 < skipped < 6
    for state in trainer.step.optimizer.state.values():
        assert float(state["step"]) == 6 - skipped
    trainer.write_metrics()
    trainer.save()
    trainer.train()
    trainer.run.unlock()
    loader.close()
    whole, weights = recorded(run.path), [p.clone() for p in trainer.step.parameters]
    shutil.rmtree(run.checkpoint(12))
    (run.path / "model").unlink()
    again = resume_run(run.config(), CPU)
    assert {float(s["step"]) for s in again.step.optimizer.state.values()} == {6.0 - skipped}
    again.train()
    again.run.unlock()
    assert recorded(run.path) == whole
    assert all(torch.equal(a, b) for a, b in zip(weights, again.step.parameters, strict=True))


def test_spikes_are_shown_with_their_documents(tmp_path, nervous, capsys):
    trainer = start_run(settings(tmp_path, "run"), CPU)
    trainer.train()
    rows = [json.loads(line) for line in (tmp_path / "run/watch.jsonl").read_text().splitlines()]
    spike = next(row for row in rows if row["spike"])
    assert not spike["skipped"]
    lines = watched_lines(tmp_path / "run", Skipped())
    first = samples_of_step(tmp_path / "run", spike["step"])[spike["samples"][0]["sample"]]
    at = next(i for i, line in enumerate(lines) if line.startswith(f"step {spike['step']}: spike"))
    assert f"{first['source']} document {first['document']} (" in lines[at + 1]
    flagged = next(line for line in lines if line.startswith("  1 x "))
    (setting,) = shlex.split(lines[-1].removeprefix("to train without them: "))
    skip = resolve_config(None, [setting]).data.skip
    assert flagged.endswith("({} line {})".format(*skip[0].rpartition(":")[::2]))
    again = settings(tmp_path, "again", setting)
    bad = skipped_blocks(trainer.corpus, skip, again.data.seq_len)
    start_run(again, CPU).train()
    for sample in (
        own for step in range(1, 13) for own in samples_of_step(tmp_path / "again", step)
    ):
        assert f"{sample['input']}:{sample['line']}" not in skip
    assert sum(map(len, bad.values()))
    assert lines[at] in capsys.readouterr().err.splitlines()
    plain = resolve_config(
        None, [f"data.corpus={tmp_path / 'corpus'}", f"run={tmp_path / 'plain'}"]
    )
    RunDirectory(tmp_path / "plain").create(plain, {})
    with pytest.raises(RunError, match="not watched"):
        watched_lines(tmp_path / "plain", Skipped())
