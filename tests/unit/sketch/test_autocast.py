"""Under bfloat16 autocast a sketch adds a few roundings to those of the gradient itself.

A bfloat16 has 8 significant bits: one rounding is off by at most 2**-8 of its value.

Shapes: B samples, T tokens, K sketch.
"""

from contextlib import ExitStack, nullcontext

import pytest
import torch

from dograph.sketch.sketcher import Sketcher

ROUNDING = 2**-8
UNIFORM_B = torch.full((4,), 0.25)  # scales exactly, so that a gradient's roundings stay the same


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.fixture(params=["gpt2", "llama"])
def model(request, tiny):
    options = {"norms": "hugging face"} if request.param == "llama" else {}
    return tiny.build[request.param](dtype=torch.float32, **options)


@pytest.fixture
def half_nll(tiny):
    def loss(model, token_BT):
        with autocast():
            return tiny.nll(model, token_BT)

    return loss


def autocast_around(place, tiny, model, token_BT, mode):
    """Sketch and gradient with autocast around the forward, with recording, or around all."""
    sketcher = Sketcher(model, mode=mode, dim=80)
    with ExitStack() as recording, autocast() if place == "everything" else nullcontext():
        if place == "forward":
            recording.enter_context(sketcher.record(token_BT))
        with autocast():
            if place != "forward":
                recording.enter_context(sketcher.record(token_BT))
            loss_B = tiny.nll(model, token_BT)
        sketch = sketcher.sketch(loss_B)
        sketch.pending.backward(UNIFORM_B)
    return sketch.sketch_BK, tiny.gradients(model)


def apart(first_BK, second_BK):
    """Of the worst sample, relative to its norm."""
    return float(((first_BK - second_BK).norm(dim=1) / second_BK.norm(dim=1)).max())


@pytest.mark.parametrize("place", ["everything", "forward", "record and forward"])
@pytest.mark.parametrize("mode", ["full", "twopass"])
def test_sketches(tiny, token_BT, model, half_nll, place, mode):
    """The sketch rounds both sides of its projection and both projected halves, and that is all.

    Four roundings, each spread evenly over its range, come to 2 / sqrt(3) of one.
    """
    token_BT = token_BT[:4]
    options = {"mode": "reference", "dim": 80}
    true, _ = tiny.run(model, token_BT, UNIFORM_B, **options)
    rounded, _ = tiny.run(model, token_BT, UNIFORM_B, loss=half_nll, **options)
    sketch_BK, _ = autocast_around(place, tiny, model, token_BT, mode)
    assert sketch_BK.dtype == torch.float32
    assert apart(sketch_BK, rounded.sketch_BK) < 2 * ROUNDING
    # The gradients of bfloat16 are that far from the true ones whoever takes their sketch.
    assert apart(sketch_BK, true.sketch_BK) < 1.1 * apart(rounded.sketch_BK, true.sketch_BK)


@pytest.mark.parametrize("place", ["everything", "forward", "record and forward"])
@pytest.mark.parametrize("mode", ["full", "twopass"])
def test_equal_weights_are_the_plain_step(tiny, token_BT, model, half_nll, place, mode):
    """Both are made of the same rounded numbers, and round their sums once or twice."""
    token_BT = token_BT[:4]
    expected = tiny.autograd(model, token_BT, UNIFORM_B, loss=half_nll)
    _, got = autocast_around(place, tiny, model, token_BT, mode)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        assert gradient.dtype == torch.float32
        off = (gradient - expected[name]).norm() / expected[name].norm()
        assert off < 2 * ROUNDING, name
