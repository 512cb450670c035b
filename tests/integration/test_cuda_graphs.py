"""Steps that are replayed as CUDA graphs are those without graphs, bit for bit."""

import math

import pytest
import torch
from test_cuda import open_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

EXACT = ("train.deterministic=true", "train.dtype=bfloat16", "probe.rows=0", "checkpoint.every=0")
SWEEPS = "train.micro_batch_size=4"
# Settings, and how many graphs they need: by shape, by what is computed, and one more where a
# gradient is added to that of the micro-batches before.
RUNS = {
    "natural": (("mixer.name=natural",), 1),
    "natural, uneven": (("mixer.name=natural", "train.micro_batch_size=5"), 3),
    "losses": (("mixer.name=dynamic-loss",), 1),
    "full": ((), 1),
    "topdown": (("sketch.mode=topdown", "sketch.top_blocks=1"), 1),
    "head": (("sketch.mode=head",), 1),
    "twopass": (("sketch.mode=twopass",), 1),
    "exact": (("sketch.mode=exact",), 1),
    "a projection a step": (("mixer.recipe=paper", "sketch.refresh=step"), 1),
    "two sweeps": ((SWEEPS,), 3),
    "two sweeps, uneven": (("train.micro_batch_size=5", "sketch.mode=head"), 5),
    "lagged": (
        ("mixer.recipe=safe", "mixer.warmup_ratio=0", SWEEPS, "sketch.accumulation=lagged"),
        2,
    ),
    "keep": ((SWEEPS, "sketch.accumulation=keep"), 0),  # each would need a graph of its own
    "dropout": (("model.dropout=0.1",), 1),
    "spikes": (("train.on_spike=skip", "sketch.mode=head"), 1),
    "compiled": (("train.compile=true",), 1),
}


def take(folder, name, steps, *extra, prepare=lambda trainer: None):
    trainer = open_trainer(folder, *EXACT, *extra, name=name)
    prepare(trainer)
    loader = trainer.open_loader()
    records = [trainer.advance(loader) for _ in range(steps)]
    loader.close()
    torch.use_deterministic_algorithms(False)
    return trainer, records


@pytest.mark.parametrize("name", RUNS)
def test_captured_steps_are_bitwise_the_same(tmp_path, name):
    settings, graphs = RUNS[name]
    plain, expected = take(tmp_path, "plain", 16, *settings, "train.cuda_graphs=false")
    captured, found = take(tmp_path, "captured", 16, *settings)
    assert plain.step.graphs is None
    assert len(captured.step.graphs.captured) == graphs
    assert captured.step.graphs.works
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.loss_B, b.loss_B)
        assert torch.equal(a.weight_B, b.weight_B)
        assert torch.equal(a.grad_norm, b.grad_norm)
        if b.signals.sketch_BK is not None:
            assert torch.equal(a.signals.sketch_BK, b.signals.sketch_BK)
    parameters = zip(*(t.state.model.parameters() for t in (captured, plain)), strict=True)
    assert all(torch.equal(a, b) for a, b in parameters)


def test_a_model_that_draws_on_the_host_is_not_captured(tmp_path, caplog):
    def drawing(trainer):
        trainer.state.model.register_forward_pre_hook(lambda *_: torch.rand(()) and None)

    trainer, records = take(tmp_path, "run", 8, prepare=drawing)
    assert not trainer.step.graphs.works
    assert not trainer.step.graphs.captured
    assert "draws random numbers on the host" in caplog.text
    assert all(math.isfinite(record.loss_B.mean().item()) for record in records)


def test_parameters_that_change_are_refused_in_replayed_steps_too(tmp_path):
    from dograph.errors import ConfigError

    trainer, _ = take(tmp_path, "run", 8)
    assert trainer.step.graphs.captured
    trainer.state.model.model.transformer.h[0].requires_grad_(False)
    loader = trainer.open_loader()
    with pytest.raises(ConfigError, match="frozen or unfrozen"):
        trainer.advance(loader)
    loader.close()
