"""Which accumulation strategy a run takes, case by case, and who may lag."""

import pytest

from dograph.config import parse_config
from dograph.errors import ConfigError
from dograph.mixers.base import Mixer
from dograph.mixers.registry import build_mixer, require_compatible
from dograph.train.step import strategy_of

LOSS, SKETCH, NOTHING = frozenset({"loss"}), frozenset({"sketch", "source"}), frozenset({"source"})


def config(micro=None, accumulation="two_sweeps", batch=9):
    train = {"batch_size": batch, "micro_batch_size": micro}
    return parse_config({"train": train, "sketch": {"accumulation": accumulation}}, "test")


@pytest.mark.parametrize(
    ("needs", "micro", "accumulation", "way"),
    [
        (NOTHING, None, "two_sweeps", "ahead"),
        (NOTHING, 2, "lagged", "ahead"),
        (LOSS, None, "two_sweeps", "keep"),
        (LOSS, 9, "two_sweeps", "keep"),
        (LOSS, 8, "two_sweeps", "two_sweeps"),
        (LOSS, 8, "lagged", "two_sweeps"),  # accumulation is a matter of sketches
        (frozenset({"reference_loss"}), 8, "keep", "two_sweeps"),
        (SKETCH, None, "lagged", "keep"),
        (SKETCH, 9, "lagged", "keep"),
        (SKETCH, 8, "two_sweeps", "two_sweeps"),
        (SKETCH, 8, "keep", "keep"),
        (SKETCH, 8, "lagged", "lagged"),
    ],
)
def test_the_strategy_of_one_process(needs, micro, accumulation, way):
    assert strategy_of(config(micro, accumulation), needs, 9) == way


@pytest.mark.parametrize(
    ("ranks", "way"), [(1, "two_sweeps"), (2, "two_sweeps"), (3, "keep"), (4, "keep")]
)
def test_ranks_answer_as_the_one_with_most_samples_must(ranks, way):
    """Nine samples, four at once: of two ranks, one has five and one has four."""
    assert strategy_of(config(4), SKETCH, 9, ranks) == way


def test_only_a_mixer_that_is_asked_to_lag_does():
    stream = build_mixer("dograph", {"recipe": "safe"})
    require_compatible(config(4, "lagged"), stream)
    require_compatible(config(4, "lagged"), Mixer())  # it needs no sketches
    paper = build_mixer("dograph", {"recipe": "paper"})
    require_compatible(config(4, "two_sweeps"), paper)
    with pytest.raises(ConfigError, match=r"accumulation=lagged .*with mixer\.scope=batch"):
        require_compatible(config(None, "lagged"), paper)  # before training, however it is split
