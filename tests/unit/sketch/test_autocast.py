"""Under bfloat16 autocast a sketch adds a few roundings to those of the gradient itself.

A bfloat16 has 8 significant bits: one rounding is off by at most 2**-8 of its value.

Shapes: B samples, T tokens, K sketch.
"""

from contextlib import ExitStack, nullcontext

import pytest
import torch
from torch import nn

from dograph.sketch.cover import rule_of
from dograph.sketch.rules import NormRule, over_tokens, summed_products
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
        sketch.backward(UNIFORM_B)
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


def test_a_gradient_that_was_not_rounded_is_not_by_its_weights(tiny, token_BT, model):
    """Autocast around the weighted backward alone."""
    token_BT, weight_B = token_BT[:4], torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = []
    for around in (nullcontext(), autocast()):
        sketcher = Sketcher(model, mode="full", dim=80)
        with sketcher.record(token_BT):
            sketch = sketcher.sketch(tiny.nll(model, token_BT))
            with around:
                sketch.backward(weight_B)
        found.append(tiny.gradients(model))
    expected, got = found
    assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("first", ["half", "single"])
def test_a_sketcher_goes_from_one_precision_to_another(tiny, token_BT, model, first):
    """What it keeps between batches is of their precision: the second is as if it came first."""
    token_BT = token_BT[:4]

    def sketched(sketcher, half):
        with autocast() if half else nullcontext(), sketcher.record(token_BT):
            sketch = sketcher.sketch(tiny.nll(model, token_BT))
            sketch.backward(UNIFORM_B)
        return sketch.sketch_BK, tiny.gradients(model)

    used, fresh = (Sketcher(model, mode="full", dim=80) for _ in range(2))
    sketched(used, first == "half")
    got_BK, got = sketched(used, first != "half")
    expected_BK, expected = sketched(fresh, first != "half")
    assert torch.equal(got_BK, expected_BK)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_normalised_inputs_are_not_rounded_to_half(tiny, norm):
    """The gradient of a norm's weight, of inputs and output gradients that are."""
    names = {name: name for name, _ in norm(32).named_parameters()}
    rule = rule_of("norm", norm(32, eps=1e-5), names, {})
    assert isinstance(rule, NormRule)
    rule.shape = (2, 60)
    seen, grad = torch.randn(2, 2, 60, 32, generator=tiny.generator("halves")).bfloat16()
    weight = torch.ones(2, 32, dtype=torch.float64, requires_grad=True)  # one for each sample
    plain = norm(32, eps=1e-5, elementwise_affine=False)(seen.double())
    (weight[:, None] * plain).backward(grad.double())
    found_BD = rule.vector(seen, grad)[:, :32]
    torch.testing.assert_close(found_BD.double(), weight.grad, rtol=1e-5, atol=1e-5)


def test_sums_over_tokens_are_not_rounded_to_half(tiny):
    left_BTq = torch.randn(3, 65, 6, generator=tiny.generator("left")).bfloat16()
    right_BTp = torch.randn(3, 65, 5, generator=tiny.generator("right")).bfloat16()
    expected = torch.einsum("btq,btp->bqp", left_BTq.double(), right_BTp.double()).flatten(1)
    product_BF = summed_products(left_BTq, right_BTp)
    assert product_BF.dtype == torch.float32
    torch.testing.assert_close(product_BF.double(), expected, rtol=1e-5, atol=1e-5)
    total_BF = over_tokens(left_BTq)
    assert total_BF.dtype == torch.float32
    torch.testing.assert_close(
        total_BF.double(), left_BTq.double().sum(dim=1), rtol=1e-5, atol=1e-5
    )
