"""What lives as long as the run is set aside once, and given back when the run ends."""

import gc

from dograph.train.trainer import SETTLED_AFTER, Collector


class Held:
    """In a cycle, so that only a collection ends it."""

    def __init__(self, ended):
        self.own, self.ended = self, ended

    def __del__(self):
        self.ended.append(True)


def test_what_there_is_is_set_aside_once():
    before = gc.get_freeze_count()
    with Collector() as collector:
        for _ in range(SETTLED_AFTER - 1):
            collector.step()
            assert gc.get_freeze_count() == before
        collector.step()
        frozen = gc.get_freeze_count()
        assert frozen > before + 1000
        later, ended = [{} for _ in range(1000)], []
        Held(ended)
        for _ in range(2 * SETTLED_AFTER):
            collector.step()
        assert gc.get_freeze_count() <= frozen
        gc.collect()
        assert ended, "what comes later is collected as ever"
        assert len(later) == 1000
    assert gc.get_freeze_count() == 0


def test_garbage_is_not_set_aside():
    """A cycle that ended before would otherwise stay for the whole run."""
    ended = []
    with Collector() as collector:
        Held(ended)
        for _ in range(SETTLED_AFTER):
            collector.step()
        assert ended


def test_a_run_that_fails_gives_everything_back():
    try:
        with Collector() as collector:
            for _ in range(SETTLED_AFTER):
                collector.step()
            raise OSError
    except OSError:
        assert gc.get_freeze_count() == 0
