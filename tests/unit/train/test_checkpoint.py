"""Checkpoints are whole or absent, and damage is noticed."""

import json
import os
from dataclasses import replace

import pytest
import torch

from corpora import write_corpus
from disk_calls import DiskCalls
from dograph.config import resolve_config
from dograph.data.corpus import Corpus
from dograph.data.sampler import WAYPOINT_STEPS
from dograph.errors import RunError
from dograph.mixers.base import Mixer
from dograph.train.assembly import CorpusLab, open_model, open_sampler
from dograph.train.checkpoint import (
    TrainingState,
    check_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from dograph.train.run_dir import RunDirectory
from dograph.train.step import build_optimizer


class Remembering(Mixer):
    def __init__(self):
        self.average, self.count, self.names = torch.zeros(3), 0, []

    def state_dict(self):
        return {"average": self.average, "count": self.count, "names": self.names}

    def load_state_dict(self, state):
        self.average, self.count, self.names = state["average"], state["count"], state["names"]


@pytest.fixture
def parts(tmp_path):
    config = resolve_config(
        None,
        [f"data.corpus={write_corpus(tmp_path / 'c')}", "data.seq_len=32", "model.preset=tiny"],
    )
    corpus = Corpus(config.data.corpus)

    def state():
        model = open_model(config, corpus)
        optimizer = build_optimizer(model, config.optim)
        model(torch.randint(0, 100, (2, 32))).mean().backward()
        optimizer.step()
        sampler = open_sampler(config, corpus)
        sampler.remix(0, Mixer().plan(CorpusLab(config, corpus)), "plan")
        return TrainingState(model, optimizer, Remembering(), sampler, corpus.digest)

    run = RunDirectory(tmp_path / "run")
    run.create(config, {})
    return state, run


def test_round_trip_of_everything(parts):
    make, run = parts
    state, other = make(), make()
    state.mixer.average, state.mixer.count = torch.tensor([1.0, 2.0, 3.0]), 7
    state.mixer.names = ["x"]
    state.sampler.drawn(2 * WAYPOINT_STEPS)  # a log that reaches beyond the checkpoint
    write_checkpoint(run, 300, state, None)
    read_checkpoint(run, 300, other)
    assert other.mixer.count == 7
    assert other.mixer.names == ["x"]
    assert torch.equal(other.mixer.average, state.mixer.average)
    assert other.sampler.log.dump() == state.sampler.log.cut(300).dump()
    for a, b in zip(state.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(state.optimizer.state[a]["exp_avg"], other.optimizer.state[b]["exp_avg"])


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "optimizer.safetensors", "weights.jsonl"]
)
def test_damage_is_noticed(parts, name):
    make, run = parts
    write_checkpoint(run, 1, make(), None)
    path = run.checkpoint(1) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(RunError, match=rf"{name} is damaged"):
        check_checkpoint(run.checkpoint(1))


def test_every_bit_of_the_state_is_checked(parts):
    """A flipped digit of a mixer's value leaves valid JSON."""
    make, run = parts
    state = make()
    state.mixer.count = 777
    write_checkpoint(run, 1, state, None)
    path = run.checkpoint(1) / "state.json"
    path.write_text(path.read_text().replace('"count": 777', '"count": 767'))
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        check_checkpoint(run.checkpoint(1))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 1}', '{"sha256": {}}', "\0" * 40])
def test_a_state_of_another_kind_is_damage(parts, text):
    make, run = parts
    write_checkpoint(run, 1, make(), None)
    (run.checkpoint(1) / "state.json").write_text(text)
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        check_checkpoint(run.checkpoint(1))


def test_a_checkpoint_without_a_digest_of_its_state_is_read(parts):
    """As earlier versions wrote them."""
    make, run = parts
    write_checkpoint(run, 1, make(), None)
    path = run.checkpoint(1) / "state.json"
    state = json.loads(path.read_text())
    del state["state_sha256"]
    path.write_text(json.dumps(state))
    check_checkpoint(run.checkpoint(1))
    assert read_checkpoint(run, 1, make())


def test_a_full_disk_leaves_the_checkpoint_before(parts, monkeypatch):
    make, run = parts
    write_checkpoint(run, 1, make(), None)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"step 2 .*No space left.*dograph train --resume"):
        write_checkpoint(run, 2, make(), None)
    monkeypatch.undo()
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000001"]
    read_checkpoint(run, 1, make())


def test_a_checkpoint_is_on_disk_before_it_has_its_name(parts, monkeypatch):
    make, run = parts
    disk = DiskCalls(monkeypatch)
    write_checkpoint(run, 1, make(), None)
    disk.assert_outlasts_a_crash(run.checkpoint(1))


def test_a_kill_before_the_end_leaves_no_checkpoint(parts, monkeypatch):
    make, run = parts

    class Killed(BaseException):
        """Not an error that anything would clean up after."""

    def kill(*_):
        raise Killed

    for module, call in ((os, "fsync"), (os, "rename")):
        monkeypatch.setattr(module, call, kill)
        with pytest.raises(Killed):
            write_checkpoint(run, 1, make(), None)
        monkeypatch.undo()
        assert run.checkpoint_steps() == []
    write_checkpoint(run, 1, make(), None)
    read_checkpoint(run, 1, make())


def test_another_corpus_is_refused(parts):
    make, run = parts
    write_checkpoint(run, 1, make(), None)
    other = replace(make(), corpus_digest="another")
    with pytest.raises(RunError, match="corpus is not the one"):
        read_checkpoint(run, 1, other)


def test_a_missing_state_is_told_in_words(parts):
    make, run = parts
    write_checkpoint(run, 1, make(), None)
    (run.checkpoint(1) / "state.json").unlink()
    with pytest.raises(RunError, match=r"state\.json is damaged or missing"):
        check_checkpoint(run.checkpoint(1))


def test_a_start_that_was_killed_can_start_again(tmp_path):
    config = resolve_config(None, [])
    run = RunDirectory(tmp_path / "run")
    run.create(config, {})
    run.unlock()
    run.config_file.unlink()
    again = RunDirectory(tmp_path / "run")
    again.create(config, {})
    with pytest.raises(RunError, match="already exists"):
        RunDirectory(tmp_path / "run").refuse_existing()


def test_rotation_keeps_the_newest(parts):
    make, run = parts
    for step in (5, 10, 100):
        write_checkpoint(run, step, make(), None)
    run.rotate(keep=2)
    assert run.checkpoint_steps() == [10, 100]


def test_no_pickle_anywhere(parts):
    make, run = parts
    write_checkpoint(run, 1, make(), None)
    suffixes = {path.suffix for path in run.path.rglob("*") if path.is_file() and path.suffix}
    assert suffixes <= {".json", ".jsonl", ".safetensors", ".yaml"}
