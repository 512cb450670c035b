"""What lives as long as the run is set aside once (gc.freeze), and given back when it ends."""

import gc

import pytest

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.errors import RunError
from dograph.train.trainer import SETTLED_AFTER, start_run
from tiny_steps import ALONE, SETTINGS


class Held:
    """In a cycle, so that only a collection ends it."""

    def __init__(self, ended):
        self.own, self.ended = self, ended

    def __del__(self):
        self.ended.append(True)


@pytest.fixture
def trainer(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    given = [f"data.corpus={corpus}", f"run={tmp_path / 'run'}", *SETTINGS]
    trainer = start_run(resolve_config(None, [*given, "train.steps=8", "log.every=4"]), ALONE)
    yield trainer
    trainer.run.unlock()


def watched(trainer, before_step):
    """Call `before_step(done)` before every step."""
    advance = trainer.advance

    def watching(loader):
        before_step(trainer.done)
        return advance(loader)

    trainer.advance = watching


def test_what_there_is_is_set_aside_once(trainer):
    before, frozen, ended = gc.get_freeze_count(), {}, []

    def look(done):
        if done == SETTLED_AFTER:
            Held(ended)
        if done == SETTLED_AFTER + 1:
            gc.collect()
            assert ended, "what comes later is collected as ever"
        frozen[done] = gc.get_freeze_count()

    watched(trainer, look)
    assert trainer.train() == 0
    counts = [frozen[done] for done in range(8)]
    assert counts[:SETTLED_AFTER] == [before] * SETTLED_AFTER
    assert counts[SETTLED_AFTER] > before + 1000
    assert max(counts) == counts[SETTLED_AFTER]
    assert gc.get_freeze_count() == 0


def test_garbage_is_not_set_aside(trainer):
    """A cycle that ended before would otherwise stay for the whole run."""
    ended = []

    def look(done):
        if done == SETTLED_AFTER - 1:
            Held(ended)
        assert done < SETTLED_AFTER or ended

    watched(trainer, look)
    trainer.train()
    assert ended


def test_a_run_that_fails_gives_everything_back(trainer):
    def look(done):
        if done == SETTLED_AFTER:
            assert gc.get_freeze_count() > 1000
            raise OSError(5, "broken")

    watched(trainer, look)
    with pytest.raises(RunError, match="broken"):
        trainer.train()
    assert gc.get_freeze_count() == 0
