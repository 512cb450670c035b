"""The bytes that benchmarks.world_batch counts are those that a step gathers."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from benchmarks.world_batch import exchange, received_bytes

from dograph.config import DEFAULT_DIM, resolve_config
from dograph.mixers.registry import build_mixer
from dograph.models.build import build_model
from dograph.train.distributed import World
from dograph.train.step import TrainStep, build_optimizer
from dograph.types import Batch, SampleIds

CPU = torch.device("cpu")


@pytest.fixture
def received(monkeypatch):
    """Bytes of every all-gather of the first rank; the other ranks send what it sends."""
    sizes = []

    def gather(whole, own):
        sizes.append(whole.numel() * whole.element_size() - own.numel() * own.element_size())
        whole.copy_(own.repeat(len(whole) // len(own), *[1] * (own.dim() - 1)))

    monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    return sizes


@pytest.mark.parametrize(("num_samples", "ranks"), [(12, 4), (7, 3)])
def test_the_exchange_that_is_timed(received, num_samples, ranks):
    exchange(num_samples, 80, 0, ranks)()
    assert sum(received) == received_bytes(num_samples, 80, ranks)


@pytest.mark.parametrize("mode", ["full", "head"])
@pytest.mark.parametrize("recipe", ["recommended", "paper"])
def test_the_exchange_of_a_step(received, mode, recipe):
    own = ["model.preset=tiny", "data.seq_len=8", "train.batch_size=7", "sketch.dim=80"]
    own += ["mixer.name=dograph", f"mixer.recipe={recipe}", f"sketch.mode={mode}"]
    config, world = resolve_config(None, own), World(rank=0, size=3, device=CPU)
    model = build_model("tiny", vocab_size=64, seq_len=8, seed=0, dropout=0.0).train()
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    step = TrainStep(config, world, model, build_optimizer(model, config.optim), mixer)
    token_bT = torch.randint(64, (3, 8), generator=torch.Generator().manual_seed(0))
    ids = SampleIds(*[torch.zeros(7, dtype=torch.int64).numpy()] * 5)
    step(Batch(token_BT=token_bT, source_B=torch.zeros(7, dtype=torch.int64), ids=ids), 0)
    assert sum(received) == received_bytes(7, 80, 3)


def test_the_table_of_the_docs_has_these_bytes():
    text = (Path(__file__).parents[3] / "docs" / "several-gpus.md").read_text()
    for ranks in (8, 64, 256, 1024):
        megabytes = received_bytes(16 * ranks, DEFAULT_DIM, ranks) / 1e6
        assert f"| {ranks:,} | {16 * ranks:,} | {megabytes:.3g} MB |" in text
