"""DSIR: plans by hand, caps, and a corpus without scores."""

import math
from dataclasses import dataclass, field

import pytest

from dograph.errors import ConfigError
from dograph.mixers.dsir import DSIR


@dataclass
class Lab:
    """Source a has three strata, b one."""

    budget: int = 1000
    tokens: dict[str, int] = field(default_factory=lambda: {"a": 600, "b": 400})
    strata: dict[str, int] = field(
        default_factory=lambda: {"a/0": 100, "a/1": 200, "a/2": 300, "b": 400}
    )
    scores: dict[str, float] = field(
        default_factory=lambda: {"a/0": 1.0, "a/1": 0.0, "a/2": -2.0, "b": -1.0}
    )


def test_a_filter_draws_only_from_strata_that_pass():
    plan = DSIR(rule="filter", keep_sources=False).plan(Lab()).weights
    assert plan == pytest.approx({"a/0": 1 / 3, "a/1": 2 / 3, "a/2": 0, "b": 0})
    kept = DSIR(rule="filter").plan(Lab()).weights  # b is drawn from its best stratum
    assert kept == pytest.approx({"a/0": 0.2, "a/1": 0.4, "a/2": 0, "b": 0.4})


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0])
def test_resampling_tilts_tokens_by_the_exponential_of_the_score(strength):
    lab = Lab()
    tilted = {n: t * math.exp(strength * lab.scores[n]) for n, t in lab.strata.items()}
    plan = DSIR(strength=strength, keep_sources=False, max_epochs=100).plan(lab).weights
    assert plan == pytest.approx({n: t / sum(tilted.values()) for n, t in tilted.items()})
    of_a = {name: tilted[name] for name in ("a/0", "a/1", "a/2")}
    kept = DSIR(strength=strength).plan(lab).weights
    inside = {name: 0.6 * t / sum(of_a.values()) for name, t in of_a.items()}
    assert kept == pytest.approx({**inside, "b": 0.4})


def test_no_stratum_is_read_more_often_than_allowed():
    plan = DSIR(strength=8, max_epochs=2, keep_sources=False).plan(Lab()).weights
    rest = 0.4 * 300 * math.exp(-8) / (400 + 300 * math.exp(-8))
    assert plan == pytest.approx({"a/0": 0.2, "a/1": 0.4, "a/2": rest, "b": 0.4 - rest})


def test_a_corpus_without_scores_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"has none for a/0; prepare it with --toward FILES"):
        DSIR().plan(Lab(scores={}))


def test_it_needs_a_target():
    assert "a target" in DSIR().inputs
