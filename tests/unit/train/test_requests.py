"""Another mixture asked for while a run trains: taken at one step, by all ranks, for good."""

import os

import pytest

from corpora import write_corpus
from dograph.train.edits import Requests
from dograph.train.run_dir import RunDirectory
from edited_runs import (
    FIRST,
    SECOND,
    THIRD,
    ask_at,
    assert_same,
    begin,
    finish,
    go_on,
    log_of,
    metrics,
    request_of,
    scheduled,
    train_on_ranks,
)
from several_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


def test_a_request_is_taken_at_the_next_write_of_the_metrics(corpus, tmp_path):
    """Asked for before step 6, taken at 8 (log.every=4), in a batch already read ahead."""
    trainer = begin(corpus, tmp_path / "run")
    ask_at(trainer, {5: request_of("one", SECOND)})
    finish(trainer)
    assert_same(tmp_path / "run", scheduled(corpus, tmp_path / "whole", {0: FIRST, 8: SECOND}))
    answer = Requests(tmp_path / "run").read()
    assert (answer["identity"], answer["step"]) == ("one", 8)
    assert answer["line"].startswith("mixture after step 8: alpha 0.6 -> 0.1")


@pytest.mark.slow
def test_a_live_edit_outlives_a_kill_before_the_next_checkpoint(corpus, tmp_path):
    directory = tmp_path / "run"
    trainer = begin(corpus, directory)
    ask_at(trainer, {5: request_of("one", SECOND)})
    advance = trainer.advance

    def killed(loader):
        if trainer.done == 9:
            raise KeyboardInterrupt
        return advance(loader)

    trainer.advance = killed
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.run.unlock()
    assert RunDirectory(directory).checkpoint_steps() == [5]
    finish(go_on(directory))
    assert_same(directory, scheduled(corpus, tmp_path / "whole", {0: FIRST, 8: SECOND}))


@pytest.mark.slow
def test_requests_that_cannot_be_met_leave_the_run_as_it_was(corpus, tmp_path):
    trainer = begin(corpus, tmp_path / "run")
    heard = []
    reply = trainer.edits.requests.reply
    trainer.edits.requests.reply = lambda answer: (heard.append(answer), reply(answer))
    ask_at(
        trainer,
        {
            1: request_of("unknown", {"delta": 1.0}),
            4: {"identity": "half"},
            8: request_of("late", SECOND),  # taken after 10 steps, where a checkpoint is due
            11: request_of("too late", THIRD),
        },
    )
    finish(trainer)
    assert [answer["identity"] for answer in heard] == ["unknown", "half", "late", "too late"]
    assert "delta" in heard[0]["refused"]
    assert "lacks 'given'" in heard[1]["refused"]
    assert heard[2]["step"] == 10
    assert "is complete after 12 steps" in heard[3]["refused"]
    assert_same(tmp_path / "run", scheduled(corpus, tmp_path / "whole", {0: FIRST, 10: SECOND}))


def test_a_run_that_nobody_asked_to_listen_takes_no_request(corpus, tmp_path):
    trainer = begin(corpus, tmp_path / "run")
    assert trainer.run.use() == "busy"
    trainer.edits.requests.place(request_of("one", SECOND))
    finish(trainer)
    assert not (tmp_path / "run" / "edits.jsonl").exists()
    assert trainer.run.use() == "free"
    again = go_on(tmp_path / "run")
    again.edits.listen()
    assert again.run.use() == "takes mixtures"
    assert Requests(tmp_path / "run").read() is None, "what a dead process left is dropped"
    again.run.unlock()


@pytest.mark.slow
def test_ranks_agree_on_a_request(corpus, tmp_path):
    one = begin(corpus, tmp_path / "one")
    ask_at(one, {5: request_of("one", SECOND)})
    finish(one)
    requests = {5: request_of("one", SECOND)}
    assert on_ranks(2, train_on_ranks, corpus, tmp_path / "two", requests) == [[8], [8]]
    assert log_of(tmp_path / "two") == log_of(tmp_path / "one")
    for two, alone in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert two["step"] == alone["step"]
        if "train/loss_nats" in alone:
            assert two["train/loss_nats"] == pytest.approx(alone["train/loss_nats"], rel=1e-5)


def test_one_side_wins_a_request(tmp_path):
    requests = Requests(tmp_path)
    assert requests.claim() is None
    requests.place(request_of("one", FIRST))
    assert not requests.withdraw("another")
    assert requests.claim()["identity"] == "one"
    assert not requests.withdraw("one")
    requests.reply({"identity": "one", "step": 3})
    assert requests.claim() is None
    assert not requests.withdraw("one")
    assert requests.read()["step"] == 3
    requests.place(request_of("two", FIRST))
    assert requests.withdraw("two")
    assert requests.claim() is None
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_comes_while_a_request_is_taken_back_stays(tmp_path, monkeypatch):
    """Between the look at the request and the rename."""
    requests = Requests(tmp_path)
    requests.place(request_of("one", FIRST))
    read = requests.read

    def too_early():
        found = read()
        requests.reply({"identity": "one", "step": 3})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(requests, "read", too_early)
        assert not requests.withdraw("one")
    assert requests.read() == {"identity": "one", "step": 3}
    assert [path.name for path in tmp_path.iterdir()] == [requests.file.name]


def test_the_request_of_somebody_else_is_not_even_moved(tmp_path, monkeypatch):
    """Where it lay away for a moment, a newer one would be lost when it came back."""
    requests = Requests(tmp_path)
    requests.place(request_of("one", FIRST))
    monkeypatch.delattr(os, "rename")
    assert not requests.withdraw("another")
    assert requests.read()["identity"] == "one"
