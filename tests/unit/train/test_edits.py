"""Another mixture on the way: the run is that of a schedule which knew of it."""

import json
import os
import shutil

import numpy as np
import pytest

from corpora import write_corpus
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, RunError
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer
from dograph.train.assembly import open_sampler
from dograph.train.edits import edits_of, read_edits
from dograph.train.run_dir import RunDirectory
from dograph.types import Mixture
from edited_runs import (
    FIRST,
    SECOND,
    THIRD,
    assert_same,
    begin,
    configured,
    edit_of,
    finish,
    go_on,
    go_on_on_ranks,
    log_of,
    metrics,
    request_of,
    scheduled,
    stop_after,
    write,
)
from several_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def seven(corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("seven") / "run"
    stop_after(begin(corpus, directory), 7)
    return directory


@pytest.fixture(scope="module")
def known(corpus, tmp_path_factory):
    """A run whose schedule knew of the edit after 7 steps."""
    return scheduled(corpus, tmp_path_factory.mktemp("known") / "run", {0: FIRST, 7: SECOND})


@pytest.fixture
def stopped(seven, tmp_path):
    """A run that stopped after 7 steps, so that a checkpoint holds them."""
    return shutil.copytree(seven, tmp_path / "run")


def test_an_edited_run_is_that_of_a_schedule(stopped, known, tmp_path):
    finish(go_on(stopped, write(tmp_path / "m.yaml", SECOND)))
    assert_same(stopped, known)
    assert [(row["step"], row["reason"]) for row in log_of(stopped, reasons=True)] == [
        (0, "plan"),
        (7, "edited"),
    ]
    # Had the edit changed nothing, its samples would be those of a run that had none.
    assert log_of(stopped)[-1]["weight"] == pytest.approx(SECOND)


def test_a_kill_right_after_the_edit_loses_nothing(stopped, known, tmp_path):
    go_on(stopped, write(tmp_path / "m.yaml", SECOND)).run.unlock()  # it made no step
    (tmp_path / "m.yaml").unlink()
    finish(go_on(stopped))
    assert_same(stopped, known)


def test_edits_stack(corpus, stopped, tmp_path):
    stop_after(go_on(stopped, write(tmp_path / "m.yaml", SECOND)), 9)
    finish(go_on(stopped, write(tmp_path / "n.yaml", THIRD)))
    whole = scheduled(corpus, tmp_path / "whole", {0: FIRST, 7: SECOND, 9: THIRD})
    assert_same(stopped, whole)
    assert [edit.old for edit in edits_of(RunDirectory(stopped))] == [
        pytest.approx(FIRST),
        pytest.approx(SECOND),
    ]


def test_a_second_edit_of_the_same_step_takes_its_place(stopped, known, tmp_path):
    go_on(stopped, write(tmp_path / "m.yaml", THIRD)).run.unlock()
    trainer = go_on(stopped, write(tmp_path / "n.yaml", SECOND))
    assert "in place of the edit after 7" in trainer.edits.due[7].line
    finish(trainer)
    assert_same(stopped, known)
    assert [edit.weights for edit in read_edits(stopped / "edits.jsonl")] == [THIRD, SECOND]


def test_an_edit_undoes_those_of_steps_that_are_made_again(stopped, known, tmp_path):
    stop_after(go_on(stopped), 9)
    stop_after(go_on(stopped, write(tmp_path / "m.yaml", THIRD)), 11)
    for step in (9, 10, 11):
        RunDirectory(stopped).checkpoint(step).rename(tmp_path / f"gone-{step}")
    finish(go_on(stopped, write(tmp_path / "n.yaml", SECOND)))
    assert [edit.step for edit in edits_of(RunDirectory(stopped))] == [7]
    assert len(read_edits(stopped / "edits.jsonl")) == 2
    assert_same(stopped, known)


def test_an_edit_is_made_again_where_its_checkpoint_is_gone(stopped, known, tmp_path):
    finish(go_on(stopped, write(tmp_path / "m.yaml", SECOND)))
    for step in (7, 10, 12):
        RunDirectory(stopped).checkpoint(step).rename(tmp_path / f"gone-{step}")
    finish(go_on(stopped))
    assert_same(stopped, known)


def test_a_run_without_a_checkpoint_is_edited_from_its_first_step(corpus, tmp_path):
    begin(corpus, tmp_path / "run").run.unlock()
    finish(go_on(tmp_path / "run", write(tmp_path / "m.yaml", SECOND)))
    assert_same(tmp_path / "run", scheduled(corpus, tmp_path / "whole", {0: SECOND}))


def test_the_record_tells_all(stopped, tmp_path):
    provenance = {"method": "guess", "made_by": "me", "seq_len": 999}
    trainer = go_on(stopped, write(tmp_path / "m.yaml", SECOND, provenance=provenance))
    trainer.run.unlock()
    [edit] = read_edits(stopped / "edits.jsonl")
    assert (edit.step, edit.how, edit.given) == (7, "resume", str(tmp_path / "m.yaml"))
    assert edit.provenance == provenance
    assert edit.weights == edit.new == pytest.approx(SECOND)
    assert edit.line == (
        "mixture after step 7: alpha 0.6 -> 0.1, beta 0.3 -> 0.2, gamma 0.1 -> 0.7"
    )
    assert "samples of 999 tokens" in edit.notes[0]
    assert "mixer:" in (stopped / "config.yaml").read_text()
    assert configured(trainer.corpus.directory, stopped).mixer == trainer.run.config().mixer


@pytest.mark.parametrize("mixer", ["natural", "uniform", "unimax", "dynamic-loss", "group-dro"])
def test_samples_are_those_of_the_new_log(corpus, tmp_path, mixer):
    """Drawn step by step by a sampler that was told of the change beforehand."""
    directory = tmp_path / "run"
    stop_after(begin(corpus, directory, mixer=mixer), 7)
    trainer = go_on(directory, write(tmp_path / "m.yaml", SECOND))
    seen, step = [], trainer.step

    def watched(batch, number):
        seen.append((number, batch.ids))
        return step(batch, number)

    watched.autocast = step.autocast  # validation asks it for the precision
    watched.watch = step.watch
    trainer.step = watched
    finish(trainer)
    config = configured(corpus, directory, mixer=mixer)
    sampler = open_sampler(config, Corpus(corpus))
    first = log_of(directory)[0]["weight"]
    sampler.remix(0, Mixture(first), "plan")
    sampler.remix(7, Mixture(SECOND), "later")
    assert [number for number, _ in seen] == list(range(7, 12))
    for number, ids in seen:
        expected = sampler.draw(number)
        assert np.array_equal(ids.stratum_B, expected.stratum_B)
        assert np.array_equal(ids.block_B, expected.block_B)


@pytest.mark.slow
@pytest.mark.parametrize("first", [{0: FIRST}, {0: FIRST, 7: THIRD}], ids=["later", "here too"])
def test_a_schedule_takes_over_again_at_its_next_stage(corpus, tmp_path, first):
    """Of a stage that begins where the edit is made, nothing is seen."""
    directory = tmp_path / "run"
    stages = f"mixer.stages={json.dumps({**first, 9: THIRD})}"
    stop_after(begin(corpus, directory, stages, mixer="scheduled"), 7)
    trainer = go_on(directory, write(tmp_path / "m.yaml", SECOND))
    assert trainer.edits.due[7].line.endswith("; the schedule's next stage: after 9")
    finish(trainer)
    whole = scheduled(corpus, tmp_path / "whole", {0: FIRST, 7: SECOND, 9: THIRD})
    assert_same(directory, whole)


def test_an_edit_that_cannot_be_written_down_is_not_made(stopped, monkeypatch):
    trainer = go_on(stopped)
    before = trainer.state.sampler.log.dump()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="mixture stays as it was"):
        trainer.edits.make(7, request_of("one", SECOND))
    assert trainer.state.sampler.log.dump() == before
    assert trainer.edits.due == {}
    trainer.run.unlock()


def test_an_edit_holds_unless_a_later_line_is_of_its_step_or_an_earlier_one(tmp_path):
    lines = [(3, SECOND), (7, FIRST), (9, SECOND), (7, THIRD)]
    run = RunDirectory(tmp_path)
    run.edits_file.write_text("".join(edit_of(step, weights) for step, weights in lines))
    edits = edits_of(run)
    assert [(edit.step, edit.weights) for edit in edits] == [(3, SECOND), (7, THIRD)]


class Restless(Mixer):
    def remix(self, signals):
        return None


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("natural", {}, None),
        ("dograph", {}, None),
        ("dograph", {"recipe": "safe", "apply_weights_to": "sampling"}, "mixer.remix_every=50"),
        (
            "dograph",
            {"recipe": "safe", "apply_weights_to": "sampling"},
            "mixer.apply_weights_to=sampling",
        ),
        ("scheduled", {"stages": {0: FIRST}}, None),
        ("regmix", {}, None),
        ("doremi-proxy", {}, "mixer.loss_normalization=global"),
        ("doremi-proxy", {"loss_normalization": "per_source"}, None),
        (f"{__name__}:Restless", {}, "decides itself what is drawn"),
    ],
)
def test_which_mixers_refuse(name, options, told):
    mixer = Restless() if name.endswith("Restless") else build_mixer(name, options)
    why = mixer.refuses_edits()
    assert why is None if told is None else told in why


def test_what_cannot_be_drawn_from_leaves_the_run_alone(stopped, tmp_path):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    for weights, told in (
        ({"alpha": 1, "delta": 1}, 'names "delta", which is not in the corpus'),
        ({"alpha": -1, "beta": 2}, "must hold numbers >= 0"),
        ({"alpha": 0}, "positive finite sum"),
    ):
        with pytest.raises(ConfigError, match=told):
            go_on(stopped, write(tmp_path / "m.yaml", weights))
    with pytest.raises(ConfigError, match="no mixture file or published mixture"):
        go_on(stopped, "doge-slimpajamas")
    with pytest.raises(ConfigError, match="does not fit this corpus"):
        go_on(stopped, "doge-slimpajama")
    after = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    assert after == before


def test_a_mixer_that_remixes_says_so_before_anything_is_done(corpus, tmp_path):
    directory = tmp_path / "run"
    safe = ("mixer.recipe=safe", "mixer.apply_weights_to=sampling", "sketch.dim=32", "probe.rows=0")
    begin(corpus, directory, *safe, mixer="dograph").run.unlock()
    with pytest.raises(
        ConfigError, match=r"mixer.apply_weights_to=sampling sets it from the model's"
    ):
        go_on(directory, write(tmp_path / "m.yaml", SECOND))
    assert not (directory / "edits.jsonl").exists()


def test_a_complete_run_is_refused(stopped, tmp_path):
    finish(go_on(stopped))
    with pytest.raises(ConfigError, match="complete after 12 steps"):
        go_on(stopped, write(tmp_path / "m.yaml", SECOND))


def test_a_damaged_record_is_told(stopped, tmp_path):
    go_on(stopped, write(tmp_path / "m.yaml", SECOND)).run.unlock()
    (stopped / "edits.jsonl").write_text('{"step": 7}\n')
    with pytest.raises(RunError, match=r"edits\.jsonl is damaged"):
        go_on(stopped)


@pytest.mark.slow
def test_ranks_go_on_with_another_mixture(stopped, known, tmp_path):
    mixture = write(tmp_path / "m.yaml", SECOND)
    assert on_ranks(2, go_on_on_ranks, stopped, mixture) == [[7], [7]]
    assert len(read_edits(stopped / "edits.jsonl")) == 1
    assert log_of(stopped) == log_of(known)
    losses = [[row.get("train/loss_nats") for row in metrics(run)] for run in (stopped, known)]
    assert [x for x in losses[0] if x] == pytest.approx([x for x in losses[1] if x], rel=1e-5)
