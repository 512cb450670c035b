"""data.skip: blocks that hold a token of a listed document are never drawn, all others as ever."""

from collections import Counter

import numpy as np
import pytest

from corpora import write_corpus
from dograph.config import parse_config
from dograph.data.corpus import Corpus
from dograph.data.sampler import Sampler, skipped_blocks
from dograph.errors import ConfigError
from dograph.train.assembly import open_sampler
from dograph.types import Mixture

SEQ_LEN = 32


@pytest.fixture
def corpus(tmp_path):
    return Corpus(write_corpus(tmp_path / "corpus"))


def place_of(corpus, stratum, document):
    _, record, number, *_ = corpus.train[stratum].documents[document].tolist()
    return f"{corpus.manifest.inputs[number]}:{record + 1}"


def drawn_blocks(corpus, source, places, steps):
    skipped = skipped_blocks(corpus, places, SEQ_LEN)
    sampler = Sampler(corpus.train, seq_len=SEQ_LEN, batch_size=7, seed=3)
    sampler.skip(skipped)
    sampler.remix(0, Mixture({source: 1.0}), "plan")
    ids = [sampler.draw(step) for step in range(steps)]
    pairs = [
        np.concatenate([getattr(own, f"{name}_B") for own in ids]) for name in ("epoch", "block")
    ]
    return sampler, list(zip(*(pair.tolist() for pair in pairs), strict=True))


def test_every_other_block_is_drawn_once_in_an_epoch(corpus):
    stratum = corpus.train[2]
    documents = [0, 3, len(stratum.documents) // 2, len(stratum.documents) - 1]
    places = [place_of(corpus, 2, document) for document in documents]
    blocks = stratum.num_blocks(SEQ_LEN)
    # The oracle goes from token to token.
    bad = {
        token // SEQ_LEN
        for token in range(blocks * SEQ_LEN)
        if stratum.locate(token)[0] in documents
    }
    assert 0 < len(bad) < blocks / 2
    sampler, drawn = drawn_blocks(corpus, stratum.entry.source, places, steps=2 * blocks)
    assert sampler.blocks_S.tolist()[2] == blocks - len(bad)
    counts = Counter(drawn)
    assert set(counts.values()) == {1}
    whole = [epoch for epoch in range(max(counts)[0])]
    assert len(whole) >= 2
    for epoch in whole:
        assert {block for own, block in counts if own == epoch} == set(range(blocks)) - bad
    assert not {block for _, block in counts} & bad


def test_blocks_at_both_ends_and_in_a_row(corpus):
    """The first, the last and adjacent blocks shift those after them by one each."""
    blocks = corpus.train[0].num_blocks(SEQ_LEN)
    sampler = Sampler(corpus.train, seq_len=SEQ_LEN, batch_size=1, seed=0)
    sampler.skip({0: np.array([0, 1, 2, 5, blocks - 1])})
    sampler.remix(0, Mixture({corpus.train[0].entry.source: 1.0}), "plan")
    drawn = {int(sampler.draw(step).block_B[0]) for step in range(blocks - 5)}
    assert drawn == set(range(blocks)) - {0, 1, 2, 5, blocks - 1}


def test_a_document_that_ends_with_a_block_takes_no_part_of_the_next(corpus):
    seq_len = int(corpus.train[0].documents["end"][0])
    blocks = skipped_blocks(corpus, [place_of(corpus, 0, 0)], seq_len)
    assert {s: own.tolist() for s, own in blocks.items()} == {0: [0]}


def test_other_strata_are_drawn_as_without_a_list(corpus):
    places = [place_of(corpus, 2, 1)]
    source = corpus.train[0].entry.source
    assert drawn_blocks(corpus, source, places, 20)[1] == drawn_blocks(corpus, source, [], 20)[1]


def test_a_run_skips_them(corpus):
    places = [place_of(corpus, 1, 2)]
    data = {"corpus": str(corpus.directory), "seq_len": SEQ_LEN}
    plain, with_list = (
        parse_config({"data": data | own}, "test") for own in ({}, {"skip": places})
    )
    assert with_list.data.skip == places
    assert "skip" not in plain.model_dump()["data"]  # as in runs of earlier versions
    assert parse_config(with_list.model_dump(mode="json"), "test") == with_list
    fewer = open_sampler(plain, corpus).blocks_S - open_sampler(with_list, corpus).blocks_S
    assert (fewer > 0).tolist() == [stratum == 1 for stratum in range(len(corpus.train))]


@pytest.mark.parametrize("place", ["beta.txt:3", "nothing", "3", "alpha.jsonl:x"])
def test_what_names_no_input_is_refused(corpus, place):
    with pytest.raises(ConfigError, match="INPUT:LINE"):
        skipped_blocks(corpus, [place], SEQ_LEN)


def test_a_line_without_a_training_document_is_refused(corpus):
    name = corpus.manifest.inputs[0]
    with pytest.raises(ConfigError, match=r"names .*:99999, .* no training document"):
        skipped_blocks(corpus, [place_of(corpus, 0, 0), f"{name}:99999"], SEQ_LEN)


def test_a_source_of_skipped_documents_alone_is_refused(corpus):
    places = [place_of(corpus, 0, document) for document in range(len(corpus.train[0].documents))]
    with pytest.raises(ConfigError, match=r"outside data\.skip"):
        drawn_blocks(corpus, corpus.train[0].entry.source, places, 1)
