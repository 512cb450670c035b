"""Validation loss per source, against a plain loop over the same tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from corpora import write_corpus
from dograph.data.corpus import Corpus
from dograph.models.build import build_model
from dograph.train.metrics import validate, validation_blocks


@pytest.fixture
def corpus(tmp_path):
    return Corpus(write_corpus(tmp_path / "c", {"alpha": 6000, "beta": 3000}, strata=2))


def world_of(rank=0, size=1, total=lambda x: x, shards=False):
    device = torch.device("cpu")
    return SimpleNamespace(rank=rank, size=size, total=total, shards=shards, device=device)


def run(model, blocks, *world, **more):
    return validate(model, blocks, 3, world_of(*world, **more))[0]


def test_loss_is_the_mean_over_all_predictions(corpus):
    model = build_model("tiny", vocab_size=100, seq_len=32, dropout=0.0, seed=0)
    got = run(model, validation_blocks(corpus, 32, 10**6))
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
    blocks = validation_blocks(corpus, 32, 7)
    parts = []
    for rank in range(3):
        run(model, blocks, rank, 3, total=lambda x: parts.append(x) or torch.ones_like(x))
    joined = sum(parts)[: 2 * len(blocks)].view(-1, 2)
    alone = run(model, blocks)
    assert (joined[:, 0] / joined[:, 1]).tolist() == pytest.approx(list(alone.values()))


def test_blocks_are_spread_over_the_source_and_bounded(corpus):
    blocks = validation_blocks(corpus, 32, 5)["alpha"]
    strata = [s for s in corpus.validation if s.entry.source == "alpha"]
    assert len(blocks) == 5
    assert np.array_equal(blocks[0], strata[0].read_block(0, 32))
    assert np.array_equal(blocks[-1], strata[1].read_block(strata[1].num_blocks(32) - 1, 32))


def test_a_text_shorter_than_a_block_is_still_measured(corpus):
    model = build_model("tiny", vocab_size=100, seq_len=5000, dropout=0.0, seed=0)
    lengths = [len(block) for block in validation_blocks(corpus, 5000, 9)["beta"]]
    assert lengths == [750, 750]
    assert set(run(model, validation_blocks(corpus, 5000, 9))) == {"alpha", "beta"}


def test_a_long_text_counts_by_its_predictions():
    blocks = {"a": [np.arange(6), np.full(3, 9)], "b": [np.full(4, 2)]}
    got = run(lambda token_bT: token_bT[:, -1].float(), blocks)  # losses of 5, 9 and 2 nats
    assert got == pytest.approx({"a": (5 * 5 + 2 * 9) / 7, "b": 2.0})


def in_ranks(model, blocks, world_size):
    """Losses of every block, computed by ranks one after another and added up."""
    parts = []
    for rank in range(world_size):
        run(model, blocks, rank, world_size, lambda x: parts.append(x) or x)
    return validate(model, blocks, 3, world_of(total=lambda x: sum(parts)))[1]


@pytest.mark.parametrize("seq_len", [32, 5000])
def test_the_loss_of_every_block_is_that_of_the_block_alone(corpus, seq_len):
    """Also where blocks are texts of different lengths, and where three ranks share seven."""
    model = build_model("tiny", vocab_size=100, seq_len=seq_len, dropout=0.0, seed=0)
    blocks = validation_blocks(corpus, seq_len, 7)
    each, got = in_ranks(model, blocks, 1), run(model, blocks)
    assert list(each) == corpus.sources
    for source, losses in each.items():
        for block, loss in zip(blocks[source], losses, strict=True):
            token_bT = torch.from_numpy(block.astype(np.int64))[None]
            assert loss == pytest.approx(model(token_bT).item(), rel=1e-6)
        mean = np.average(losses, weights=[len(block) - 1 for block in blocks[source]])
        assert mean == pytest.approx(got[source], rel=1e-12)
    shared = in_ranks(model, blocks, 3)
    for source, losses in each.items():
        assert shared[source] == pytest.approx(losses, rel=1e-6)
        assert len(set(shared[source])) > 1


@pytest.mark.parametrize("seq_len", [32, 5000])
def test_together_ranks_make_equally_many_calls_and_the_same_losses(corpus, seq_len):
    """Seven blocks of a source on three ranks, or two long texts that go one at a time."""
    model = build_model("tiny", vocab_size=100, seq_len=seq_len, dropout=0.0, seed=0)
    blocks = validation_blocks(corpus, seq_len, 7) | {"none": []}
    calls, sums = [], {False: [], True: []}
    for rank in range(3):
        for together, kept in sums.items():
            seen = []
            validate(
                lambda token_bT, seen=seen: seen.append(len(token_bT)) or model(token_bT),
                blocks,
                2,
                world_of(rank, 3, lambda x, kept=kept: kept.append(x) or x, shards=together),
            )
            calls.append((together, len(seen)))
    assert all(torch.equal(a, b) for a, b in zip(sums[False], sums[True], strict=True))
    assert len({number for together, number in calls if together}) == 1
    assert len({number for together, number in calls if not together}) > 1
