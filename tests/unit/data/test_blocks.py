"""Equally many blocks from every source, spread over its text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora import write_corpus
from dograph.data.corpus import Corpus, blocks_by_source, equal_shares, even_blocks
from token_corpora import span


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 60))
def test_shares_are_equal_as_far_as_there_is_anything(have, total):
    """Handed out one at a time, round and round, to whoever still has some."""
    expected, left = [0] * len(have), min(total, sum(have))
    while left:
        poorest = [i for i, n in enumerate(have) if expected[i] < n]
        turn = min(poorest, key=lambda i: (expected[i], i))
        expected[turn] += 1
        left -= 1
    shares = equal_shares({str(i): n for i, n in enumerate(have)}, total)
    assert list(shares.values()) == expected


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    sizes = {"alpha": 4000, "beta": 2000, "gamma": 800, "delta": 20}
    return Corpus(write_corpus(tmp_path_factory.mktemp("c") / "c", sizes, strata=2))


def test_blocks_are_those_of_the_text_and_spread_over_it(corpus):
    blocks = even_blocks(corpus, "train", 32, 90)
    have = blocks_by_source(corpus, "train", 32)
    assert have == {"alpha": 250, "beta": 124, "gamma": 50, "delta": 0}
    sources = [block.stratum.entry.source for block in blocks]
    assert [sources.count(name) for name in corpus.sources] == [30, 30, 30, 0]
    assert len({(b.stratum.entry.stratum, b.index) for b in blocks}) == 90
    for block in blocks:
        place = block.place()
        assert place["source"] == block.stratum.entry.source
        start = span(block.stratum, place["document"])[0] + place["offset"]
        assert start == 32 * block.index
        assert np.array_equal(block.tokens(), block.stratum.token_N[start : start + 32])
    alpha = [b for b in blocks if b.stratum.entry.source == "alpha"]
    places = [b.index + (125 if b.stratum.entry.stratum == "alpha/1" else 0) for b in alpha]
    assert (places[0], places[-1]) == (0, 249)
    assert set(np.diff(places)) <= {8, 9}


def test_sources_with_too_little_are_passed_over(corpus):
    blocks = even_blocks(corpus, "train", 32, 10, least=60)
    assert {b.stratum.entry.source for b in blocks} == {"alpha", "beta"}
    assert even_blocks(corpus, "train", 32, 0) == []
