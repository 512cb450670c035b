"""A run whose newest checkpoint is damaged goes on from the one before, and ends as it would."""

import shutil

import pytest
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.main import app
from dograph.errors import RunError
from dograph.train.checkpoint import newest_whole
from dograph.train.run_dir import RunDirectory
from edited_runs import assert_same, begin, extend_on_ranks, finish, go_on
from several_ranks import on_ranks
from tiny_steps import ALONE

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run of 12 steps with checkpoints of steps 5, 10 and 12."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    finish(begin(corpus, directory))
    return directory


@pytest.fixture
def run(whole, tmp_path):
    return RunDirectory(shutil.copytree(whole, tmp_path / "run", symlinks=True))


def damage(run, step, name="model/model.safetensors"):
    path = run.checkpoint(step) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize("name", ["model/model.safetensors", "state.json", "mixer.safetensors"])
def test_the_checkpoint_before_is_taken(run, whole, name):
    broken = damage(run, 12, name)
    trainer = go_on(run.path)
    assert trainer.done == 10
    [warning] = trainer.warnings
    assert str(broken) in warning
    assert "from step 10; 2 steps are repeated" in warning
    assert "damaged-step-00000012" in warning
    finish(trainer)
    assert_same(run.path, whole)
    assert run.checkpoint_steps() == [5, 10, 12]
    assert (run.checkpoints / "damaged-step-00000012" / name).is_file()
    # Resumed once more, nothing is said and nothing is repeated.
    again = go_on(run.path)
    assert (again.done, again.warnings, again.notes) == (12, [], [])
    finish(again)
    assert_same(run.path, whole)


def test_two_damaged_checkpoints_are_passed_over(run, whole):
    first, second = damage(run, 12), run.checkpoint(10) / "optimizer.safetensors"
    second.unlink()
    trainer = go_on(run.path)
    [warning] = trainer.warnings
    assert str(first) in warning
    assert str(second) in warning
    assert "from step 5; 7 steps are repeated" in warning
    finish(trainer)
    assert_same(run.path, whole)


def test_strict_refuses_and_changes_nothing(run):
    broken, before = damage(run, 12), sorted(run.path.rglob("*"))
    with pytest.raises(RunError, match=r"is damaged.*Without --strict .* from step 10") as raised:
        go_on(run.path, strict=True)
    assert str(broken) in str(raised.value)
    assert sorted(run.path.rglob("*")) == before


def test_without_a_whole_checkpoint_it_does_not_start_over(run):
    for step in (5, 10, 12):
        damage(run, step)
    before = run.metrics_file.read_bytes()
    with pytest.raises(RunError, match="no checkpoint that is whole") as raised:
        go_on(run.path)
    assert "run=" in str(raised.value)
    assert run.metrics_file.read_bytes() == before
    assert run.checkpoint_steps() == [5, 10, 12]


def test_a_kill_while_it_repeats_the_steps_loses_nothing(run, whole):
    damage(run, 12)
    go_on(run.path).run.unlock()  # it made no step
    trainer = go_on(run.path)
    assert trainer.warnings == []  # the damaged one was put aside
    finish(trainer)
    assert_same(run.path, whole)


@pytest.mark.slow
def test_all_ranks_take_the_same_checkpoint_and_length(run):
    damage(run, 12)
    assert on_ranks(2, extend_on_ranks, run.path, 14) == [(10, 14, [(10, 12)])] * 2
    assert run.checkpoint_steps() == [5, 10, 14]
    assert run.config().train.extended == [(10, 12)]


def test_a_run_that_was_never_saved_begins_again(corpus, tmp_path):
    trainer = begin(corpus, tmp_path / "run", "checkpoint.every=0")
    trainer.run.unlock()
    assert newest_whole(trainer.run, ALONE, strict=False) == (None, [])
    trainer.run.metrics_file.write_text('{"step": 1}\n{"step": 2}\n')
    again = go_on(tmp_path / "run")
    assert again.done == 0
    assert "2 steps are repeated" in again.notes[0]
    again.run.unlock()


def call(*arguments):
    """A command in this process: what it printed as warnings and errors."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.stderr + str(result.exception or "")


def test_the_command_says_it_in_one_line_and_strict_refuses(run, whole):
    broken = damage(run, 12)
    assert f"{broken} is damaged" in call("train", "--resume", run.path, "--strict")
    said = call("train", "--resume", run.path)
    [line] = [line for line in said.splitlines() if "damaged" in line]
    assert line.startswith(f"warning: {broken} is damaged or missing. The run goes on from step 10")
    assert_same(run.path, whole)


def test_lost_rows_are_told_by_every_command(run, tmp_path):
    """Metrics of seven lines, and a checkpoint of step 12."""
    whole = run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join(whole[:7]))
    lost = f"warning: {run.metrics_file} has no rows of steps 8 to 12: they are lost"
    assert lost in call("train", "--resume", run.path)
    run.metrics_file.write_text("".join([*whole[:7], *whole[-2:]]))
    lost = f"{run.metrics_file} has no rows of steps 8 to 11: they are lost"
    assert f"warning: {lost}" in call("show", "losses", run.path)
    page = tmp_path / "page.html"
    assert f"warning: run: {lost}" in call("report", run.path, "--out", page)
    assert lost in page.read_text()


def test_a_broken_middle_line_stops_no_command(run, whole, tmp_path):
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    lines[5] = lines[5][:30] + "\0\0\0\n"
    run.metrics_file.write_text("".join(lines))
    shutil.rmtree(run.checkpoint(12))
    for command in (
        ("show", "losses", run.path),
        ("report", run.path, "--out", tmp_path / "page.html"),
        ("train", "--resume", run.path),
        ("show", "losses", run.path),
    ):
        assert "rror" not in call(*command), command
    model = "model/model.safetensors"
    assert (run.path / model).read_bytes() == (whole / model).read_bytes()
