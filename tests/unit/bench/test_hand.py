"""The loop by hand computes what the arms compute."""

import pytest
import torch
from benchmarks.hand import HandModel, copy_weights, open_hand, open_model

from bench_batches import batches_of
from dograph.bench.arms import resolve_options
from dograph.models.presets import PRESETS

CPU = torch.device("cpu")


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_same_size_same_loss_same_gradient(preset):
    shape = [f"model.preset={preset}", "train.batch_size=4", "data.seq_len=24"]
    options = resolve_options(CPU, [], shape, vocab_size=512)
    model = open_model(options, CPU)
    draw = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():  # no bias 0, no scale 1
        scale = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.normal_(float(scale), 0.15, generator=draw)
    hand = HandModel(PRESETS[preset], 512, 24)
    copy_weights(hand, model.model)
    count = [sum(p.numel() for p in m.parameters()) for m in (hand, model)]
    assert count[0] == count[1]
    token_BT = batches_of(options)(0).token_BT
    ours, theirs = hand(token_BT), model(token_BT).mean()
    assert abs(ours.item() / theirs.item() - 1) < 1e-5
    ours.backward()
    theirs.backward()
    norms = [sum(float(p.grad.square().sum()) for p in m.parameters()) for m in (hand, model)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    got, expected = hand.tokens.weight.grad, model.model.get_input_embeddings().weight.grad
    assert float((got - expected).norm() / expected.norm()) < 1e-5


def test_micro_batches_add_up():
    shape = ["model.preset=tiny", "train.batch_size=4", "data.seq_len=16"]
    trained = []
    for more in ([], ["train.micro_batch_size=2"]):
        chosen = resolve_options(CPU, [], [*shape, *more], vocab_size=512)
        arm = open_hand(chosen, batches_of(chosen), CPU)
        before = arm.model.tokens.weight.detach().clone()
        laps = arm.step()
        assert list(dict.fromkeys(name for name, *_ in laps)) == ["forward", "backward", "update"]
        trained.append(arm.model.tokens.weight.detach() - before)
    assert float(trained[0].norm()) > 0
    assert (
        float((trained[0] - trained[1]).norm() / trained[0].norm()) < 0.05
    )  # AdamW: signs, mostly
