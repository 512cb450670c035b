"""Runs whose batch size changes: as exact as runs of one size."""

import json
import shutil

import pytest
import torch

from corpora import write_corpus
from dograph.cli.train import _forked
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import WeightLog
from dograph.errors import ConfigError
from dograph.eval.recorded import explain_step, samples_of_step
from dograph.mixers.registry import build_mixer, require_compatible
from dograph.report.collect import collect, open_subjects
from dograph.train.assembly import open_sampler
from dograph.train.forecast import planned_epochs, run_flops, start_warnings
from dograph.train.metrics import logged
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import fork_run, resume_run, start_run
from dograph.types import Mixture
from edited_runs import FIRST, begin, configured, finish, go_on, log_of, metrics
from tiny_steps import ALONE

pytestmark = pytest.mark.usefixtures("one_thread")
# 12 x 7 samples of 16 tokens: 5 steps of 3, 5 of 5, 5 of 8 and a last one with the other 4.
RAMP = ("train.batch_size=[[0, 3], [240, 5], [600, 8]]", "train.reference_batch_size=7")
SIZES = [3] * 5 + [5] * 5 + [8] * 5 + [4]
DOGRAPH = ("mixer.num_domains=2", "mixer.kmeans_restarts=2", "sketch.dim=64", "probe.rows=0")
PARTS = ("train.micro_batch_size=4", "checkpoint.every=1", "checkpoint.keep=99")
TENSORS = ("model/model.safetensors", "checkpoints/step-00000016/optimizer.safetensors")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """DoGraph on growing batches: one micro-batch at first, then two, weighed by two sweeps."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    finish(begin(corpus, directory, *RAMP, *DOGRAPH, *PARTS, mixer="dograph"))
    return directory


def assert_same(run, other, tensors=TENSORS):
    assert metrics(run) == metrics(other)
    assert log_of(run) == log_of(other)
    for name in tensors:
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def killed_after(run, step, directory):
    """The run as a kill leaves it that comes before the next checkpoint after `step`."""
    shutil.copytree(run, directory, symlinks=True)
    for made in RunDirectory(directory).checkpoint_steps():
        if made > step:
            shutil.rmtree(RunDirectory(directory).checkpoint(made))
    (directory / "model").unlink()
    return directory


def test_a_schedule_of_one_entry_is_the_fixed_size_bit_for_bit(corpus, tmp_path):
    finish(begin(corpus, tmp_path / "fixed", "train.steps=5"))
    finish(begin(corpus, tmp_path / "listed", "train.steps=5", "train.batch_size=[[0, 7]]"))
    rows = metrics(tmp_path / "listed")
    sizes = [row.pop("train/batch_size") for row in rows if "optim/lr" in row]
    assert sizes == [7, 7]  # of the rows that are written in full
    assert rows == metrics(tmp_path / "fixed")
    assert log_of(tmp_path / "listed") == log_of(tmp_path / "fixed")
    for name in ("model/model", "checkpoints/step-00000005/optimizer"):
        one, other = (tmp_path / own / f"{name}.safetensors" for own in ("fixed", "listed"))
        assert one.read_bytes() == other.read_bytes()


def test_rows_and_records_have_the_sizes_of_their_steps(whole):
    rows = [row for row in metrics(whole) if "train/loss_nats" in row]
    assert [row["step"] for row in rows] == list(range(1, 17))
    known = {row["step"]: row["train/batch_size"] for row in rows if "train/batch_size" in row}
    assert known == {step: SIZES[step - 1] for step in (4, 8, 12, 16)}
    lines = [json.loads(line) for line in (whole / "samples.jsonl").read_text().splitlines()]
    assert {one["step"]: len(one["weight"]) for one in lines} == known
    assert [len(samples_of_step(whole, step)) for step in (1, 6, 11, 16)] == [3, 5, 8, 4]
    assert explain_step(whole, 12).reasons[-1].endswith("of 8")
    facts = collect(open_subjects([whole])).runs[0].facts
    assert facts["steps"] == "16 of 16"
    assert facts["batch"].startswith("3 to 8 samples of 16 tokens, float32")
    assert facts["tokens"] == f"{12 * 7 * 16:,}"


def test_the_size_in_a_row_is_that_of_its_own_step(whole):
    config = RunDirectory(whole).config()
    rows = [{"step": step, "train/loss_nats": 2.0} for step in range(1, 17)]
    assert [logged(row, config, whole=True)["train/batch_size"] for row in rows] == SIZES


@pytest.mark.parametrize(  # at a change, before the rest, inside a size, at another change
    "step", [5, 15, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 10))]
)
def test_a_killed_and_resumed_run_is_the_whole_one(whole, tmp_path, step):
    finish(go_on(killed_after(whole, step, tmp_path / "run")))
    assert_same(tmp_path / "run", whole)


def test_beta2_follows_the_size(corpus, tmp_path):
    trainer, seen = begin(corpus, tmp_path / "run", *RAMP), []
    advance = trainer.advance

    def watched(loader):
        record = advance(loader)
        seen.append([group["betas"] for group in trainer.state.optimizer.param_groups])
        assert {group["lr"] for group in trainer.state.optimizer.param_groups} == {record.lr}
        return record

    trainer.advance = watched
    finish(trainer)
    assert seen == [[(0.9, pytest.approx(0.95 ** (size / 7), rel=1e-15))] * 2 for size in SIZES]


@pytest.mark.slow
def test_more_steps_after_a_smaller_last_one_repeat_exactly(corpus, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    finish(go_on(run, settings=["train.steps=15"]))  # 21 more samples: 8, 8 and 5
    config = RunDirectory(run).config()
    assert config.train.extended == [(16, 12)]
    assert sum(log_of(run)[-1]["drawn"].values()) <= 15 * 7
    rows = [row for row in metrics(run) if "train/loss_nats" in row]
    assert rows[-1] | {"step": 19, "train/batch_size": 5} == rows[-1]
    finish(start_run(config.model_copy(update={"run": str(tmp_path / "again")}), ALONE))
    last = "checkpoints/step-00000019/optimizer.safetensors"
    assert_same(run, tmp_path / "again", ("model/model.safetensors", last))
    with pytest.raises(ConfigError, match=r"train.steps=14: the run has made 15; give more"):
        go_on(run, settings=["train.steps=14"])


def test_a_fork_takes_another_schedule_from_its_step_on(whole, tmp_path):
    given = ["train.batch_size=[[0, 2], [320, 10]]", f"run={tmp_path / 'fork'}"]
    config, origin = _forked(whole, 8, given)  # after 30 samples, 480 tokens
    assert config.train.batch_size == [(0, 3), (240, 5), (480, 10)]
    assert fork_run(config, *origin) == "mixer dograph goes on with its state of step 8"
    trainer = resume_run(config, ALONE)
    finish(trainer)
    rows, before = (
        [row for row in metrics(run) if "train/loss_nats" in row]
        for run in (tmp_path / "fork", whole)
    )
    assert len(rows) == 8 + 5 + 1  # 54 samples are left
    assert [rows[s]["train/batch_size"] for s in (11, 13)] == [10, 4]
    losses = [[row["train/loss_nats"] for row in own] for own in (rows, before)]
    assert losses[0][:8] == losses[1][:8]
    assert losses[0][8] != losses[1][8]
    drawn = trainer.state.sampler.drawn(14)
    assert drawn.sum() == 12 * 7
    # text is drawn on: the counts are those of one run over the same number of samples
    assert drawn.tolist() == open_sampled(whole, 16)


def open_sampled(run, step):
    """How often a run drew each stratum."""
    config = RunDirectory(run).config()
    sampler = open_sampler(config, Corpus(config.data.corpus))
    sampler.log = WeightLog.load(run / "weights.jsonl", sampler.names)
    return sampler.drawn(step).tolist()


def test_a_fork_of_a_fixed_size_draws_on(corpus, tmp_path):
    finish(begin(corpus, tmp_path / "run"))
    given = [f"run={tmp_path / 'fork'}", "train.batch_size=[[0, 7], [800, 14]]"]
    with pytest.raises(ConfigError, match=r"set train.reference_batch_size=7 and data.seq_len=16"):
        _forked(tmp_path / "run", 5, [*given, "train.reference_batch_size=14"])
    config, origin = _forked(tmp_path / "run", 5, [*given, "train.reference_batch_size=7"])
    assert config.train.batch_size == [(0, 7), (560, 7), (800, 14)]
    assert "goes on with its state" in fork_run(config, *origin)
    trainer = resume_run(config, ALONE)
    assert trainer.state.sampler.drawn(5).sum() == 35
    finish(trainer)
    assert trainer.state.sampler.drawn(trainer.done).sum() == 12 * 7


def test_stages_of_a_mixture_begin_after_their_tokens(corpus, tmp_path):
    stages = {0: {"alpha": 1.0}, 3: {"beta": 1.0}, 11: {"gamma": 1.0}}
    own = (f"mixer.stages={json.dumps(stages)}", *RAMP)
    trainer = begin(corpus, tmp_path / "run", *own, mixer="scheduled")
    planned = planned_epochs(trainer.config, trainer.state.sampler, trainer.state.mixer)
    finish(trainer)
    drawn = [sum(SIZES[:step]) for step in range(17)]
    first, second = (next(s for s in range(17) if drawn[s] >= 7 * n) for n in (3, 11))
    assert [row["step"] for row in log_of(tmp_path / "run")] == [0, first, second]
    sampler = trainer.state.sampler
    assert planned == pytest.approx(sampler.epochs(sampler.drawn(16)))
    resumed = killed_after(tmp_path / "run", 5, tmp_path / "again")
    finish(go_on(resumed))
    assert_same(resumed, tmp_path / "run")


def test_probes_are_taken_after_parts_of_the_tokens(corpus, tmp_path):
    probes = ("probe.at=[0, 0.5, 1]", "probe.rows=3")
    own = [one for one in DOGRAPH if not one.startswith("probe")]
    trainer = begin(corpus, tmp_path / "run", *RAMP, *own, *probes, mixer="dograph")
    assert trainer.probes.steps == {0, 11, 16}  # 42 of 84 samples: 15 + 25 + 8
    trainer.run.unlock()


def test_what_cannot_work_is_refused_or_said_before_the_first_update(corpus, tmp_path):
    config = configured(corpus, tmp_path / "run", *RAMP)
    require_compatible(config, build_mixer("natural", {}), 3)
    with pytest.raises(ConfigError, match=r"has steps of 3 samples, .* shared by 4 processes"):
        require_compatible(config, build_mixer("natural", {}), 4)
    rest = configured(corpus, tmp_path / "run", *RAMP, "train.steps=11")  # 77 = 15 + 25 + 32 + 5
    require_compatible(rest, build_mixer("natural", {}), 3)
    config = configured(corpus, tmp_path / "run", *RAMP, "train.compile=true", mixer="dograph")
    mixer, data = build_mixer("dograph", {"num_domains": 11}), Corpus(corpus)
    sampler = open_sampler(config, data)
    sampler.remix(0, Mixture(FIRST), "plan")
    notes = " ".join(start_warnings(config, data, sampler, mixer))
    assert "mixer.num_domains=11 with train.batch_size=3 leaves 0.3 samples" in notes
    assert "compiles the model anew for batches of [3, 4, 5, 8] samples" in notes
    one = config.model_copy(update={"train": config.train.model_copy(update={"batch_size": 7})})
    assert "compiles" not in " ".join(start_warnings(one, data, sampler, mixer))


def test_flops_are_those_of_the_tokens_and_of_each_size_s_strategy(corpus, tmp_path):
    data = Corpus(corpus)
    ramp = configured(corpus, tmp_path / "run", *RAMP)
    assert run_flops(ramp, data) == pytest.approx(
        run_flops(configured(corpus, tmp_path / "run"), data), rel=1e-12
    )
    parts = ("train.micro_batch_size=4", "mixer.name=dynamic-loss")  # a second forward above 4
    plain, both = (
        run_flops(configured(corpus, "run", *RAMP, *own, mixer="natural"), data)
        for own in ((), parts)
    )
    assert both == pytest.approx(plain * (1 + (25 + 40) / 84 / 3), rel=1e-12)


def test_ranks_share_every_batch(corpus, tmp_path):
    data = Corpus(corpus)
    sampler = open_sampler(configured(corpus, tmp_path / "run", *RAMP), data)
    sampler.remix(0, Mixture(FIRST), "plan")
    alone = Loader(data, sampler)
    ranks = [Loader(data, sampler, rank=rank, world_size=3) for rank in range(3)]
    for step, size in enumerate(SIZES):
        batch = alone.load(step, ahead=step < 15)
        parts = [one.load(step, ahead=step < 15).token_BT for one in ranks]
        assert len(batch.token_BT) == len(batch.source_B) == size
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert torch.equal(torch.cat(parts), batch.token_BT)
    for one in (alone, *ranks):
        one.close()
