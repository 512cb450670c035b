"""Validation loss per source, against a plain loop over the same tokens."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from corpora import write_corpus
from dograph.corpus.corpus import Corpus
from dograph.evaluation.source_loss import validate, validation_blocks
from dograph.models.build import build_model


@pytest.fixture
def corpus(tmp_path):
    return Corpus(write_corpus(tmp_path / "c", {"alpha": 6000, "beta": 3000}, strata=2))


def blocks_of(corpus, seq_len, most):
    return {s: validation_blocks(corpus, s, seq_len, most) for s in corpus.sources}


def run(model, blocks, rank=0, world_size=1, total=lambda x: x):
    with torch.no_grad():
        return validate(
            model, blocks, micro_batch_size=3, rank=rank, world_size=world_size, total=total
        )


def test_loss_is_the_mean_over_all_predictions(corpus):
    model = build_model("tiny", vocab_size=100, seq_len=32, dropout=0.0, seed=0)
    got = run(model, blocks_of(corpus, 32, 10**6))
    for source, loss in got.items():
        nll = []
        for stratum in [s for s in corpus.validation if s.entry.source == source]:
            for block in range(stratum.entry.tokens // 32):
                ids = stratum.token_N[block * 32 : block * 32 + 32].astype(np.int64)
                logits = model.model(torch.from_numpy(ids)[None]).logits[0, :-1, :100]
                nll += F.cross_entropy(logits, torch.from_numpy(ids)[1:], reduction="none").tolist()
        assert loss == pytest.approx(np.mean(nll), rel=1e-6)


def test_ranks_add_up_to_one_process(corpus):
    model = build_model("tiny", vocab_size=100, seq_len=32, dropout=0.0, seed=0)
    blocks = blocks_of(corpus, 32, 7)
    parts = []
    for rank in range(3):
        run(model, blocks, rank, 3, total=lambda x: parts.append(x) or torch.ones_like(x))
    joined = sum(parts)
    alone = run(model, blocks)
    assert (joined[:, 0] / joined[:, 1]).tolist() == pytest.approx(list(alone.values()))


def test_blocks_are_spread_over_the_source_and_bounded(corpus):
    blocks = validation_blocks(corpus, "alpha", 32, 5)
    strata = [s for s in corpus.validation if s.entry.source == "alpha"]
    assert len(blocks) == 5
    assert np.array_equal(blocks[0], strata[0].read_block(0, 32))
    assert np.array_equal(blocks[-1], strata[1].read_block(strata[1].num_blocks(32) - 1, 32))


def test_a_text_shorter_than_a_block_is_still_measured(corpus):
    model = build_model("tiny", vocab_size=100, seq_len=5000, dropout=0.0, seed=0)
    lengths = [len(block) for block in validation_blocks(corpus, "beta", 5000, 9)]
    assert lengths == [750, 750]
    assert set(run(model, blocks_of(corpus, 5000, 9))) == {"alpha", "beta"}
