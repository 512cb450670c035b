"""Samples of our own trainer from any PyTorch loader: order, ranks, mixtures on the way, states."""

import json
import pickle
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from corpora import write_corpus
from dograph import Corpus, CorpusDataset, Mixture, MixtureSampler, Sampler
from dograph.config import parse_config
from dograph.data.loader import Loader
from dograph.errors import ConfigError, CorpusError, RunError
from dograph.train.assembly import open_sampler as open_trainer_sampler

SEQ_LEN, BATCH, STEPS = 16, 6, 9
FIRST = Mixture({"alpha": 0.5, "beta": 0.3, "gamma": 0.2})
LATER = Mixture({"alpha": 0.1, "gamma": 0.9})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return CorpusDataset(write_corpus(tmp_path_factory.mktemp("corpus"), strata=2), SEQ_LEN)


@pytest.fixture(scope="module")
def trained(dataset):
    """The batches that our own loader reads, with another mixture from step 4 on."""
    sampler = Sampler(dataset.corpus.train, seq_len=SEQ_LEN, batch_size=BATCH, seed=3)
    loader, batches = Loader(dataset.corpus, sampler), []
    for step in range(STEPS):
        if step in (0, 4):
            sampler.remix(step, FIRST if step == 0 else LATER, "test")
        batches.append(loader.load(step, ahead=False))
    return batches


def open_sampler(dataset, mixture=FIRST, steps=STEPS, **more):
    return MixtureSampler(dataset, mixture, batch_size=BATCH, steps=steps, seed=3, **more)


def load(dataset, sampler, **more):
    return DataLoader(dataset, sampler.local_batch_size, sampler=sampler, **more)


def assert_same(batches, trained):
    assert len(batches) == len(trained)
    for batch, expected in zip(batches, trained, strict=True):
        assert torch.equal(batch["input_ids"], expected.token_BT)
        assert torch.equal(batch["source"], expected.source_B)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_planned_mixture_gives_the_samples_of_the_trainer(dataset, trained, num_workers):
    sampler = open_sampler(dataset, {0: FIRST, 4: LATER})
    assert_same(list(load(dataset, sampler, num_workers=num_workers)), trained)
    assert len(sampler) == STEPS * BATCH
    assert list(sampler) == []  # the run is over


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_divide_every_batch(dataset, trained, world_size):
    both = {0: FIRST, 4: LATER}
    ranks = [
        list(load(dataset, open_sampler(dataset, both, rank=rank, world_size=world_size)))
        for rank in range(world_size)
    ]
    for parts, expected in zip(zip(*ranks, strict=True), trained, strict=True):
        assert torch.equal(torch.cat([part["input_ids"] for part in parts]), expected.token_BT)


def test_a_mixture_given_on_the_way(dataset, trained):
    sampler = open_sampler(dataset)
    batches = []
    for batch in load(dataset, sampler):
        batches.append(batch)
        if len(batches) == 3:
            sampler.remix(4, LATER)
    assert_same(batches, trained)
    with pytest.raises(RunError, match=r"step 4 comes too late.*before 9.*choose a step"):
        sampler.remix(4, FIRST)


@pytest.mark.parametrize("done", [0, 2, 4, 7])
def test_a_state_between_steps_goes_on_with_any_number_of_ranks(dataset, trained, done):
    sampler = open_sampler(dataset, {0: FIRST, 4: LATER})
    list(sampler)  # a loader that reads far ahead
    state = json.loads(json.dumps(sampler.state_dict(step=done)))
    again = [open_sampler(dataset, {0: LATER}, rank=rank, world_size=2) for rank in range(2)]
    for other in again:
        other.load_state_dict(state)
    parts = zip(*(load(dataset, other) for other in again), strict=True)
    joined = [torch.cat([part["input_ids"] for part in pair]) for pair in parts]
    assert len(joined) == STEPS - done
    assert all(torch.equal(j, t.token_BT) for j, t in zip(joined, trained[done:], strict=True))


def test_a_state_inside_a_step_goes_on_at_the_sample(dataset):
    whole = list(open_sampler(dataset, {0: FIRST, 4: LATER}))
    for taken in (1, 5, 4 * BATCH, 4 * BATCH + 1, len(whole)):
        sampler = open_sampler(dataset, {0: FIRST, 4: LATER})
        assert list(islice(sampler, taken)) == whole[:taken]
        state = sampler.state_dict()
        again = open_sampler(dataset)
        list(again)  # used before: nothing of it may be left
        again.load_state_dict(state)
        assert list(again) == whole[taken:]
        if state["sample"]:
            with pytest.raises(RunError, match=r"inside step .* on 1 ranks, and there are 2"):
                open_sampler(dataset, world_size=2).load_state_dict(state)


def test_a_stateful_loader_resumes_at_the_sample(dataset, trained):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    for num_workers in (0, 2):

        def loader(sampler, workers=num_workers):
            return stateful(dataset, 2, sampler=sampler, num_workers=workers)

        first, rows = loader(open_sampler(dataset, {0: FIRST, 4: LATER})), []
        for batch in first:
            rows += batch["input_ids"]
            if len(rows) == 5 * BATCH - 2:  # inside a step, while workers read ahead
                break
        state = first.state_dict()
        again = loader(open_sampler(dataset))
        again.load_state_dict(state)
        rows += [row for batch in again for row in batch["input_ids"]]
        assert torch.equal(torch.stack(rows), torch.cat([batch.token_BT for batch in trained]))


def test_worker_processes_get_the_name_of_the_corpus_alone(dataset):
    content = pickle.dumps(dataset)
    assert len(content) < 1000
    assert torch.equal(pickle.loads(content)[7]["input_ids"], dataset[7]["input_ids"])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_wrong_requests_are_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match="world_size=7 and batch_size=6"):
        open_sampler(dataset, world_size=7)
    with pytest.raises(ConfigError, match=r"begin at steps \[4\]; give one for 0"):
        open_sampler(dataset, {4: LATER})
    with pytest.raises(ConfigError, match=r'"alfa".*did you mean "alpha"'):
        open_sampler(dataset, Mixture({"alfa": 1.0}))
    begun = open_sampler(dataset)
    list(islice(begun, BATCH + 1))
    with pytest.raises(RunError, match="step 1 comes too late: samples of the steps before 2"):
        begun.remix(1, LATER)  # which has a sample already
    begun.remix(2, LATER)
    sampler = open_sampler(dataset)
    with pytest.raises(RunError, match="step 1, sample 0 is ahead of the 0 samples"):
        sampler.state_dict(step=1)
    with pytest.raises(RunError, match="the state has seed=4, not 3"):
        sampler.load_state_dict(sampler.state_dict() | {"seed": 4})
    corpus = Corpus(write_corpus(tmp_path / "changed"))
    (corpus.directory / "train-alpha.docs.npy").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"train-alpha\.docs\.npy"):
        CorpusDataset(corpus.directory, SEQ_LEN)


def test_skipped_documents_are_those_of_the_trainer(dataset):
    """The draws of `data.skip`, also after a state; a state of another list is refused."""
    corpus = dataset.corpus
    _, record, number, *_ = corpus.train[2].documents[1].tolist()
    place = f"{corpus.manifest.inputs[number]}:{record + 1}"
    config = {"data": {"corpus": str(corpus.directory), "seq_len": SEQ_LEN, "skip": [place]}}
    config |= {"seed": 3, "train": {"batch_size": BATCH, "steps": 60}}
    trainer = open_trainer_sampler(parse_config(config, "test"), corpus)
    trainer.remix(0, FIRST, "plan")
    ids = [trainer.draw(step) for step in range(60)]
    expected = torch.cat(
        [torch.as_tensor(dataset.first_S[own.stratum_B] + own.block_B) for own in ids]
    ).tolist()
    sampler = open_sampler(dataset, steps=60, skip=[place])
    first = list(islice(sampler, 7 * BATCH))
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = open_sampler(dataset, steps=60, skip=[place])
    resumed.load_state_dict(state)
    assert first + list(resumed) == expected
    assert expected != list(open_sampler(dataset, steps=60))
    with pytest.raises(RunError, match="the state has skip="):
        open_sampler(dataset, steps=60).load_state_dict(state)
    del state["skip"]  # as in states of before
    open_sampler(dataset, steps=60).load_state_dict(state)
