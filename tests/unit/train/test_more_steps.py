"""More steps on a run: what is made stays, the rest follows the schedule of the new length."""

import json
import math
import shutil

import pytest

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.errors import ConfigError
from dograph.train.assembly import with_steps
from dograph.train.run_dir import RunDirectory
from dograph.train.step import rate_of
from dograph.train.trainer import start_run
from edited_runs import begin, finish, go_on, log_of, metrics, stop_after, write
from tiny_steps import ALONE

pytestmark = pytest.mark.usefixtures("one_thread")
SECOND = {"alpha": 0.1, "beta": 0.2, "gamma": 0.7}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def twelve(corpus, tmp_path_factory):
    """A complete run of 12 steps."""
    directory = tmp_path_factory.mktemp("twelve") / "run"
    finish(begin(corpus, directory))
    return directory


@pytest.fixture
def complete(twelve, tmp_path):
    return shutil.copytree(twelve, tmp_path / "run", symlinks=True)


@pytest.fixture(scope="module")
def extended(twelve, tmp_path_factory):
    """The same, extended to 20 steps and never killed."""
    directory = tmp_path_factory.mktemp("extended") / "run"
    shutil.copytree(twelve, directory, symlinks=True)
    finish(go_on(directory, settings=["train.steps=20"]))
    return directory


def cosine(step, steps):
    """The learning rate of a step from 0, after a warm-up of 2 steps, by the docs."""
    part = (step - 2) / (steps - 1 - 2)
    return 2e-4 + (2e-3 - 2e-4) * (1 + math.cos(math.pi * part)) / 2


def recorded(rate):
    """With the digits that metrics have."""
    return pytest.approx(float(f"{rate:.7g}"), rel=1e-12)


def assert_same(one, other):
    assert metrics(one) == metrics(other)
    assert log_of(one) == log_of(other)
    for file in ("model/model", "checkpoints/step-00000020/optimizer"):
        left, right = (path / f"{file}.safetensors" for path in (one, other))
        assert left.read_bytes() == right.read_bytes()


def test_a_copy_without_links_is_extended_alike(twelve, extended, tmp_path):
    copy = shutil.copytree(twelve, tmp_path / "run")  # as from a bucket, which has no links
    (copy / "eval.json").write_text("{}")
    finish(go_on(copy, settings=["train.steps=20"]))
    assert (copy / "model").is_symlink()
    assert (copy / "eval-step-12.json").is_file()
    assert_same(copy, extended)


def test_a_link_that_a_kill_left_unfinished_is_removed(complete, extended):
    (complete / ".model.tmp").symlink_to((complete / "model").readlink())
    finish(go_on(complete, settings=["train.steps=20"]))
    assert_same(complete, extended)


def test_steps_already_made_do_not_change(twelve, extended):
    before, after = metrics(twelve), metrics(extended)
    assert after[: len(before)] == before
    assert [row["step"] for row in after if "train/loss_nats" in row] == list(range(1, 21))
    rates = {row["step"]: row["optim/lr"] for row in after if "optim/lr" in row}
    assert list(rates) == [4, 8, 12, 16, 20]
    for step, rate in rates.items():
        assert rate == recorded(cosine(step - 1, 12 if step <= 12 else 20)), step


def test_moments_are_kept_and_draws_go_on(corpus, twelve, extended, tmp_path):
    """A run of 20 steps from the start draws the same samples; so does one of 12, then 20."""
    finish(begin(corpus, tmp_path / "straight", "train.steps=20"))
    assert log_of(tmp_path / "straight") == log_of(extended)
    trainer = go_on(shutil.copytree(twelve, tmp_path / "again", symlinks=True))
    before = trainer.state.optimizer.state_dict()["state"]
    trainer.run.unlock()
    other = go_on(tmp_path / "again", settings=["train.steps=20"])
    after = other.state.optimizer.state_dict()["state"]
    other.run.unlock()
    assert before.keys() == after.keys()
    for name, own in before.items():
        assert own["step"] == after[name]["step"] == 12
        for moment in ("exp_avg", "exp_avg_sq"):
            assert (own[moment] == after[name][moment]).all()


def test_an_extension_that_is_killed_is_the_one_that_is_not(complete, extended):
    go_on(complete, settings=["train.steps=20"]).run.unlock()  # killed before its first step
    assert RunDirectory(complete).config().train.steps == 20
    stop_after(go_on(complete), 14)
    shutil.rmtree(RunDirectory(complete).checkpoint(14))  # killed, so that 12 is the newest
    finish(go_on(complete))
    assert_same(complete, extended)


def test_a_kill_before_the_settings_are_written_leaves_a_complete_run(
    complete, twelve, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dograph.train.trainer.write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            go_on(complete, settings=["train.steps=20"])
    for name in ("config.yaml", "validation.jsonl", "metrics.jsonl"):
        assert (complete / name).read_bytes() == (twelve / name).read_bytes()
    assert (complete / "model").is_dir()


def test_a_damaged_checkpoint_after_the_extension_is_passed_over_exactly(complete, extended):
    """Steps before the extension are repeated with the schedule that they had."""
    go_on(complete, settings=["train.steps=20"]).run.unlock()
    (RunDirectory(complete).checkpoint(12) / "state.json").write_text("")
    trainer = go_on(complete)
    assert trainer.done == 10
    finish(trainer)
    assert_same(complete, extended)


def test_the_settings_replay_the_extended_run(extended, tmp_path):
    directory = tmp_path / "again"
    config = resolve_config(str(extended / "config.yaml"), [f"run={directory}"])
    assert config.train.extended == [(12, 12)]
    finish(start_run(config, ALONE))
    assert_same(directory, extended)


def test_a_stopped_run_is_extended_from_where_it_stopped(corpus, tmp_path):
    stop_after(begin(corpus, tmp_path / "run", "log.every=1"), 7)
    trainer = go_on(tmp_path / "run", settings=["train.steps=20"])
    assert trainer.config.train.extended == [(7, 12)]
    finish(trainer)
    rates = {row["step"]: row["optim/lr"] for row in metrics(tmp_path / "run") if "optim/lr" in row}
    assert (rates[7], rates[8]) == (recorded(cosine(6, 12)), recorded(cosine(7, 20)))
    [warning] = trainer.warnings
    assert f"{rates[7]:.3g} in step 7, {rates[8]:.3g} in step 8" in warning
    assert "jumps up" in warning
    assert "--fork" in warning


def test_fewer_steps_lower_the_rate_without_a_warning(corpus, tmp_path):
    stop_after(begin(corpus, tmp_path / "run"), 7)
    trainer = go_on(tmp_path / "run", settings=["train.steps=9"])
    trainer.run.unlock()
    assert trainer.warnings == []
    assert "schedule of 9 steps" in trainer.notes[0]
    for steps in (6, 7):
        with pytest.raises(ConfigError, match="has made 7;"):
            go_on(tmp_path / "run", settings=[f"train.steps={steps}"])
    assert RunDirectory(tmp_path / "run").config().train.steps == 9


def test_what_a_complete_run_has_goes_and_comes_back(complete):
    (complete / "eval.json").write_text("{}")
    trainer = go_on(complete, settings=["train.steps=20"])
    assert not (complete / "model").exists()
    assert not (complete / "validation.jsonl").exists()
    assert (complete / "eval-step-12.json").read_text() == "{}"
    finish(trainer)
    assert (complete / "model").resolve().parent.name == "step-00000020"
    rows = [json.loads(line) for line in (complete / "validation.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows} == {20}


def test_more_steps_may_come_with_another_mixture(complete, tmp_path):
    mixture = write(tmp_path / "m.yaml", SECOND)
    finish(go_on(complete, mixture, settings=["train.steps=20"]))
    assert [(row["step"], row["reason"]) for row in log_of(complete, reasons=True)] == [
        (0, "plan"),
        (12, "edited"),
    ]


def test_lengths_over_several_extensions():
    config = resolve_config(None, ["train.steps=60", "optim.warmup_steps=0"])

    def extended(train, steps, done):
        return with_steps(config.model_copy(update={"train": train}), steps, done)

    first = extended(config.train, 120, 40)
    second = extended(first, 200, 110)
    assert second.extended == [(40, 60), (110, 120)]
    changed = config.model_copy(update={"train": second})
    lengths = [changed.batches_at(step).steps for step in (0, 39, 40, 109, 110, 199)]
    assert lengths == [60, 60, 120, 120, 200, 200]
    # Asked again before a further step was made, or after going back: the last word holds.
    assert extended(first, 90, 40).extended == [(40, 60)]
    assert extended(second, 80, 30).extended == [(30, 60)]
    assert extended(second, 80, 0).extended == []
    assert extended(second, 200, 150) is second
    assert rate_of(39, changed) == rate_of(39, config)
    assert "extended" not in config.dump()


@pytest.mark.slow
def test_domains_weights_and_probes_of_an_extension_survive_a_kill(corpus, tmp_path):
    settings = ("mixer.num_domains=3", "mixer.recipe=safe", "mixer.kmeans_restarts=2")
    settings += ("sketch.dim=64", "probe.rows=8", "mixer.warmup_ratio=0.2")
    finish(begin(corpus, tmp_path / "killed", *settings, mixer="dograph"))
    shutil.copytree(tmp_path / "killed", tmp_path / "whole", symlinks=True)
    finish(go_on(tmp_path / "whole", settings=["train.steps=20"]))
    stop_after(go_on(tmp_path / "killed", settings=["train.steps=20"]), 17)
    shutil.rmtree(RunDirectory(tmp_path / "killed").checkpoint(17))  # killed: 15 is the newest
    finish(go_on(tmp_path / "killed"))
    assert_same(tmp_path / "killed", tmp_path / "whole")
    names = ["samples.jsonl", "graph.jsonl", "checkpoints/step-00000020/mixer.safetensors"]
    names += [f"probes/step-{step:08d}.safetensors" for step in (0, 1, 4, 12, 20)]
    for name in names:
        one, other = (tmp_path / run / name for run in ("killed", "whole"))
        assert one.read_bytes() == other.read_bytes(), name
    directory = tmp_path / "again"
    config = resolve_config(str(tmp_path / "whole" / "config.yaml"), [f"run={directory}"])
    finish(start_run(config, ALONE))
    assert_same(directory, tmp_path / "whole")
