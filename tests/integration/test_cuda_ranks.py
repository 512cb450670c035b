"""Ranks on a GPU: DDP, FSDP2 in each of its modes, and a mixture given while they train.

NCCL refuses one GPU twice, so two ranks share it over gloo, with the tensors on the GPU. FSDP2 runs
over NCCL with the one rank that a single GPU allows: gloo crashes where shards on a GPU are
gathered for a checkpoint (torch 2.11).
"""

import pytest
import torch

from corpora import write_corpus
from dograph.train.distributed import World
from edited_runs import SECOND, ask_at, begin, finish, log_of, metrics, request_of, train_on_ranks
from several_ranks import on_ranks
from sharded_runs import RUNS, train_all, train_one_shard

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]
GPU = {"device": "cuda:0"}
ALONE = World(rank=0, size=1, device=torch.device("cuda:0"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """Every run by one process."""
    folder = tmp_path_factory.mktemp("alone")
    train_all(ALONE, corpus, folder)
    return folder


def assert_same_losses(got, expected):
    for name in RUNS:
        rows, others = metrics(got / name), metrics(expected / name)
        assert len(rows) == len(others)
        for row, other in zip(rows, others, strict=True):
            for key in (key for key in other if "loss" in key):
                assert row[key] == pytest.approx(other[key], rel=1e-5), (name, row["step"], key)


def test_two_ranks_on_a_gpu_train_as_one_process(corpus, alone, tmp_path):
    on_ranks(2, train_all, corpus, tmp_path, **GPU)
    assert_same_losses(tmp_path, alone)


@pytest.mark.parametrize("work", [train_all, train_one_shard], ids=["plain", "FSDP2"])
def test_nccl_trains_as_a_process_without_it(corpus, alone, tmp_path, work):
    on_ranks(1, work, corpus, tmp_path, **GPU, backend="nccl")
    assert_same_losses(tmp_path, alone)


def test_ranks_on_a_gpu_take_another_mixture_at_one_step(corpus, tmp_path):
    one = begin(corpus, tmp_path / "one", world=ALONE)
    ask_at(one, {5: request_of("one", SECOND)})
    finish(one)
    requests = {5: request_of("one", SECOND)}
    assert on_ranks(2, train_on_ranks, corpus, tmp_path / "two", requests, **GPU) == [[8], [8]]
    assert log_of(tmp_path / "two") == log_of(tmp_path / "one")
    for two, row in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        if "train/loss_nats" in row:
            assert two["train/loss_nats"] == pytest.approx(row["train/loss_nats"], rel=1e-5)
