"""The same trainer on a GPU: no hidden waits, bitwise repeatable when asked, compiled, bf16."""

import math

import pytest
import torch

from corpora import write_corpus
from dograph.training.presets import resolve_config
from dograph.training.start import resume_run, start_run
from dograph.training.world import open_world

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def open_trainer(folder, *overrides, name="run"):
    corpus = folder / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    config = resolve_config(
        None,
        [
            f"data.corpus={corpus}",
            "data.seq_len=64",
            "model.preset=tiny",
            "train.steps=40",
            "train.batch_size=16",
            "train.device=cuda",
            "eval.every=20",
            "checkpoint.every=10",
            f"run={folder / name}",
            *overrides,
        ],
    )
    with open_world("cuda") as world:
        return start_run(config, world)


WAYS = [
    ("mixer.name=natural",),
    ("mixer.name=natural", "train.dtype=bfloat16"),
    ("mixer.name=natural", "train.micro_batch_size=5"),
    (),  # DoGraph, mode full
    ("train.dtype=bfloat16",),
    ("train.micro_batch_size=5",),
    ("sketch.mode=twopass",),
    ("sketch.mode=topdown", "sketch.top_blocks=1"),
    ("sketch.mode=head",),
    ("mixer.recipe=paper",),
    ("mixer.recipe=paper", "mixer.objective=alignment", "mixer.cap=3", "mixer.within=unit"),
]


@pytest.mark.parametrize("extra", WAYS, ids=" ".join)
def test_the_step_never_waits_for_the_device(tmp_path, extra):
    trainer = open_trainer(tmp_path, *extra)
    loader = trainer.open_loader()
    for _ in range(12):  # until domains are known
        trainer.advance(loader)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            trainer.advance(loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(math.isfinite(record.loss_B.mean().item()) for record in trainer.records)


def test_deterministic_runs_are_bitwise_equal_also_when_stopped(tmp_path):
    from processes import rows

    whole = open_trainer(tmp_path, "train.deterministic=true", "train.dtype=bfloat16", name="whole")
    whole.train()
    stopped = open_trainer(tmp_path, "train.deterministic=true", "train.dtype=bfloat16", name="cut")
    stopped.stop_asked = lambda _: 15 if stopped.done == 23 else 0
    assert stopped.train() == 15
    stopped.run.unlock()
    with open_world("cuda") as world:
        resume_run(stopped.config, world).train()
    torch.use_deterministic_algorithms(False)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_compiled_steps_give_the_losses_of_eager_ones(tmp_path):
    eager = open_trainer(tmp_path, name="eager")
    compiled = open_trainer(tmp_path, "train.compile=true", name="compiled")
    for trainer in (eager, compiled):
        loader = trainer.open_loader()
        for _ in range(10):
            trainer.advance(loader)
    for a, b in zip(eager.records, compiled.records, strict=True):
        assert torch.allclose(a.loss_B, b.loss_B, rtol=1e-3)


def test_a_non_finite_step_is_vetoed_without_looking(tmp_path):
    trainer = open_trainer(tmp_path)
    loader = trainer.open_loader()
    for _ in range(3):
        trainer.advance(loader)
    before = [p.clone() for p in trainer.state.model.parameters()]
    handle = trainer.state.model.register_forward_hook(lambda *args: args[2] * torch.nan)
    trainer.advance(loader)
    handle.remove()
    trainer.advance(loader)
    after = trainer.state.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
