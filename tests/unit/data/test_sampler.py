"""The sampler is a pure function of (seed, step, weight log), and loses and repeats nothing."""

import time
from collections import Counter

import numpy as np
import pytest

from corpora import write_corpus
from dograph.data.corpus import Corpus, StratumTokens
from dograph.data.loader import Loader, rank_slice
from dograph.data.sampler import WAYPOINT_STEPS, Sampler, WeightLog, advance
from dograph.errors import ConfigError, RunError
from dograph.types import BatchSizes, Mixture
from token_corpora import span

SEQ_LEN = 32
EQUAL = Mixture.normalised({"alpha": 1, "beta": 1, "gamma": 1})


@pytest.fixture
def corpus(tmp_path):
    return Corpus(write_corpus(tmp_path / "corpus"))


def open_sampler(corpus, batch_size=10, seed=0, mixture=EQUAL):
    sampler = Sampler(corpus.train, seq_len=SEQ_LEN, batch_size=batch_size, seed=seed)
    sampler.remix(0, mixture, "plan")
    return sampler


def samples(ids):
    return list(
        zip(ids.stratum_B.tolist(), ids.epoch_B.tolist(), ids.block_B.tolist(), strict=True)
    )


def test_any_step_alone_equals_the_step_in_order(corpus):
    in_order = open_sampler(corpus)
    expected = [samples(in_order.draw(step)) for step in range(40)]
    for step in (39, 0, 17, 18, 3):
        assert samples(open_sampler(corpus).draw(step)) == expected[step]


def test_each_epoch_reads_every_block_once_in_a_new_order(corpus):
    sampler = open_sampler(corpus, mixture=Mixture({"gamma": 1.0}))
    blocks = corpus.train[2].num_blocks(SEQ_LEN)
    drawn = [s for step in range(4 * blocks) for s in samples(sampler.draw(step))]
    by_epoch = Counter((epoch, block) for _, epoch, block in drawn)
    assert set(by_epoch.values()) == {1}
    assert set(by_epoch) == {(e, b) for e in range(len(drawn) // blocks) for b in range(blocks)}
    orders = [[b for _, e, b in drawn if e == epoch] for epoch in (0, 1)]
    assert orders[0] != orders[1]


def test_epochs_are_shuffled_apart_from_the_order_inside_steps(corpus):
    """With one sample a step there is no order inside it: what is left is the epoch's own."""
    sampler = open_sampler(corpus, batch_size=1, mixture=Mixture({"gamma": 1.0}))
    blocks = corpus.train[2].num_blocks(SEQ_LEN)
    order = [int(sampler.draw(step).block_B[0]) for step in range(3 * blocks)]
    epochs = [order[e * blocks : (e + 1) * blocks] for e in range(3)]
    assert all(sorted(epoch) == list(range(blocks)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_sources_of_one_size_are_shuffled_each_in_its_own_way(tmp_path):
    corpus = Corpus(write_corpus(tmp_path / "alike", {"alpha": 1000, "beta": 1000}))
    orders = []
    for source in corpus.sources:
        sampler = open_sampler(corpus, batch_size=1, mixture=Mixture({source: 1.0}))
        orders.append([int(sampler.draw(step).block_B[0]) for step in range(31)])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(31))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("change_at", [1, 7, WAYPOINT_STEPS, WAYPOINT_STEPS + 5])
def test_changing_the_mixture_neither_loses_nor_repeats(corpus, change_at):
    sampler = open_sampler(corpus)
    drawn = Counter()
    before = None
    steps = change_at + 60
    for step in range(steps):
        if step == change_at:
            before = sampler.drawn(step).copy()
            sampler.remix(step, Mixture.normalised({"alpha": 1, "beta": 8, "gamma": 1}), "test")
        drawn.update(samples(sampler.draw(step)))
    assert set(drawn.values()) == {1}
    blocks_S = sampler.blocks_S
    for s, count in enumerate(sampler.drawn(steps)):
        ranks = sorted(e * blocks_S[s] for (t, e, _), _ in drawn.items() if t == s)
        assert len(ranks) == count
        epochs = Counter(e for (t, e, _) in drawn if t == s)
        full = {e: blocks_S[s] for e in range(count // blocks_S[s])}
        if count % blocks_S[s]:
            full[count // blocks_S[s]] = count % blocks_S[s]
        assert epochs == full
    since = sampler.drawn(steps) - before
    weight_S = sampler.log.entries[-1].weight_S
    assert np.abs(since - (steps - change_at) * 10 * weight_S).max() < 1


def test_log_round_trip_continues_identically(corpus, tmp_path):
    sampler = open_sampler(corpus)
    for step in range(WAYPOINT_STEPS + 20):
        if step == 30:
            sampler.remix(30, Mixture.normalised({"alpha": 3, "gamma": 1}), "test")
        sampler.draw(step)
    (tmp_path / "weights.jsonl").write_text(sampler.log.dump())
    other = Sampler(corpus.train, seq_len=SEQ_LEN, batch_size=10, seed=0)
    other.log = WeightLog.load(tmp_path / "weights.jsonl", other.names)
    for step in (0, 29, 30, 31, WAYPOINT_STEPS + 19, WAYPOINT_STEPS + 40):
        assert samples(other.draw(step)) == samples(sampler.draw(step))


def test_a_late_step_is_found_from_the_nearest_waypoint(corpus):
    sampler = open_sampler(corpus)
    last = 40 * WAYPOINT_STEPS
    sampler.drawn(last)
    fresh = Sampler(corpus.train, seq_len=SEQ_LEN, batch_size=10, seed=0)
    fresh.log = WeightLog(sampler.names, list(sampler.log.entries))
    start = time.process_time()  # not of the clock: other processes may hold the processor
    assert samples(fresh.draw(last - 3)) == samples(sampler.draw(last - 3))
    assert len(fresh.log.entries) == 41
    assert time.process_time() - start < 0.5  # counting from step 0 would take far longer


def test_waypoints_change_nothing(corpus):
    """Counts are those of one quota from the first step on, and no mixture begins at a waypoint."""
    sampler = open_sampler(corpus, mixture=Mixture.normalised({"alpha": 1, "beta": 2, "gamma": 4}))
    weight_S, steps = np.array([1, 2, 4]) / 7, 2 * WAYPOINT_STEPS + 9
    count_S = np.zeros(3, dtype=np.int64)
    for _ in range(steps):
        count_S = advance(count_S, weight_S, 10)
    assert sampler.drawn(steps).tolist() == count_S.tolist()
    assert len(sampler.log.entries) == 3
    assert {entry.base_step for entry in sampler.log.entries} == {0}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_any_world_size_sees_the_same_samples(corpus, world_size):
    sampler = open_sampler(corpus)
    world = Loader(corpus, sampler).load(5, ahead=False)
    parts = [
        Loader(corpus, open_sampler(corpus), rank=rank, world_size=world_size).load(5)
        for rank in range(world_size)
    ]
    joined = np.concatenate([part.token_BT.numpy() for part in parts])
    assert np.array_equal(joined, world.token_BT.numpy())
    assert all(np.array_equal(part.source_B, world.source_B) for part in parts)
    sizes = [len(part.token_BT) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_rank_slices_cover_the_batch():
    for size in range(1, 9):
        rows = [i for r in range(size) for i in range(11)[rank_slice(11, r, size)]]
        assert rows == list(range(11))


def test_samples_name_their_document_and_offset(corpus):
    sampler = open_sampler(corpus)
    batch = Loader(corpus, sampler).load(3, ahead=False)
    for row in range(10):
        stratum = corpus.train[batch.ids.stratum_B[row]]
        first, end = span(stratum, int(batch.ids.document_B[row]))
        start = first + int(batch.ids.offset_B[row])
        assert start < end
        assert np.array_equal(stratum.token_N[start : start + SEQ_LEN], batch.token_BT[row])
        assert corpus.sources[int(batch.source_B[row])] == stratum.entry.source


def test_reading_ahead_does_not_outlive_a_change_of_mixture(corpus):
    sampler = open_sampler(corpus)
    loader = Loader(corpus, sampler)
    loader.load(0, ahead=True)
    sampler.remix(1, Mixture({"gamma": 1.0}), "test")
    assert set(loader.load(1).source_B.tolist()) == {2}


def test_strata_share_their_source_by_tokens(tmp_path):
    corpus = Corpus(write_corpus(tmp_path / "strata", strata=3))
    sampler = Sampler(corpus.train, seq_len=SEQ_LEN, batch_size=9, seed=0)
    weight_S = sampler.weights_of(EQUAL)
    assert np.allclose(weight_S, 1 / 9)
    one = sampler.weights_of(Mixture({"alpha/1": 0.5, "beta": 0.5}))
    assert np.allclose(one, [0, 0.5, 0, 1 / 6, 1 / 6, 1 / 6, 0, 0, 0])


def test_strata_of_different_sizes_share_their_source_by_tokens(corpus):
    """6000 and 3000 tokens of one source, 1000 of another."""
    named = [("both", "both/0"), ("both", "both/1"), ("gamma", "gamma")]
    strata = [
        StratumTokens(s.directory, s.entry.model_copy(update={"source": a, "stratum": b}))
        for s, (a, b) in zip(corpus.train, named, strict=True)
    ]
    sampler = Sampler(strata, seq_len=SEQ_LEN, batch_size=10, seed=0)
    weight_S = sampler.weights_of(Mixture({"both": 0.3, "gamma": 0.7}))
    assert weight_S.tolist() == pytest.approx([0.2, 0.1, 0.7])


def test_errors_name_what_is_wrong(corpus, tmp_path):
    sampler = open_sampler(corpus)
    with pytest.raises(ConfigError, match=r'"alfa".*did you mean "alpha"'):
        sampler.weights_of(Mixture({"alfa": 1.0}))
    short = Sampler(corpus.train, seq_len=2000, batch_size=4, seed=0)
    with pytest.raises(ConfigError, match=r'"gamma" holds 1000 tokens.*seq_len=2000'):
        short.weights_of(EQUAL)
    (tmp_path / "weights.jsonl").write_text(sampler.log.dump())
    with pytest.raises(RunError, match=r"line 1 names the strata .*use the corpus"):
        WeightLog.load(tmp_path / "weights.jsonl", sampler.names[::-1])  # draws go by their order
    for old, new in (
        ('"alpha": 0.', '"alpha": 3.'),
        ('"drawn": {"alpha": 0', '"drawn": {"alpha": 7'),
    ):
        dumped = sampler.log.dump()
        assert old in dumped
        (tmp_path / "weights.jsonl").write_text(dumped.replace(old, new, 1))
        with pytest.raises(RunError, match=r"line 1: its weights and counts do not match"):
            WeightLog.load(tmp_path / "weights.jsonl", sampler.names)
    sampler.remix(9, EQUAL, "test")
    with pytest.raises(RunError, match="change the past"):
        sampler.remix(3, EQUAL, "test")


def test_every_step_has_an_order_of_its_own(corpus):
    """Three samples of each source a step, whose places differ from step to step."""
    sampler = open_sampler(corpus, batch_size=9)
    orders = [tuple(sampler.draw(step).stratum_B.tolist()) for step in range(8)]
    assert {tuple(sorted(order)) for order in orders} == {(0, 0, 0, 1, 1, 1, 2, 2, 2)}
    assert len(set(orders)) == 8


def test_seeds_change_the_order(corpus):
    assert samples(open_sampler(corpus, seed=0).draw(0)) != samples(
        open_sampler(corpus, seed=1).draw(0)
    )


def test_epochs_count_repeats(corpus):
    sampler = open_sampler(corpus, mixture=Mixture({"gamma": 1.0}))
    blocks = corpus.train[2].num_blocks(SEQ_LEN)
    epochs = sampler.epochs(sampler.drawn(31))
    assert epochs["gamma"] == pytest.approx(310 / blocks)
    assert epochs["alpha"] == 0


def growing(steps=400):
    """Sizes 3, 10, 4 and 17, changed after whole and after broken epochs of the small source."""
    schedule = [(0, 3), (40 * SEQ_LEN, 10), (300 * SEQ_LEN, 4), (500 * SEQ_LEN, 17)]
    return BatchSizes(schedule, SEQ_LEN, 5, [(10**9, steps)])


def test_a_change_of_size_loses_and_repeats_no_sample(corpus):
    sizes = growing()
    sampler = open_sampler(corpus, batch_size=sizes, mixture=Mixture({"beta": 0.4, "gamma": 0.6}))
    drawn = [samples(sampler.draw(step)) for step in range(sizes.steps)]
    assert [len(own) for own in drawn] == [sizes.size(step) for step in range(sizes.steps)]
    every = [one for own in drawn for one in own]
    assert len(every) == 400 * 5 == len(set(every))  # (stratum, epoch, block): none twice
    for s in (1, 2):
        blocks = corpus.train[s].num_blocks(SEQ_LEN)
        own = [(epoch, block) for stratum, epoch, block in every if stratum == s]
        for epoch in range(len(own) // blocks):  # every epoch that was read to its end
            assert sorted(b for e, b in own if e == epoch) == list(range(blocks))
    for step in (sizes.steps - 1, 0, 13, 14, 60):  # a pure function of the step
        fresh = open_sampler(corpus, sizes, mixture=Mixture({"beta": 0.4, "gamma": 0.6}))
        assert samples(fresh.draw(step)) == drawn[step]


def test_quotas_hold_at_every_step_whatever_the_sizes(corpus):
    sizes, weights = growing(), np.array([0.55, 0.13, 0.32])
    mixture = Mixture({"alpha": 0.55, "beta": 0.13, "gamma": 0.32})
    sampler = open_sampler(corpus, batch_size=sizes, mixture=mixture)
    before = np.zeros(3)
    for step in range(1, sizes.steps + 1):
        drawn = sampler.drawn(step)
        assert drawn.sum() == sizes.drawn(step)
        assert (abs(drawn - drawn.sum() * weights) < 1).all()
        assert (drawn >= before).all()
        before = drawn
    again = open_sampler(corpus, batch_size=sizes, mixture=mixture)
    again.log = WeightLog(again.names, [*sampler.log.entries])
    assert (again.drawn(sizes.steps) == sampler.drawn(sizes.steps)).all()
