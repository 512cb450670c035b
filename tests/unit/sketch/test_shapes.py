"""The shapes of a layer's input: (B, ..., in) and (B T, in) run, others are named and refused.

Shapes: B samples, T tokens, N = B T, D width, H heads.
"""

import pytest
import torch

import model_kinds as kinds
import model_shapes as shapes
import model_zoo as zoo
from dograph.errors import ConfigError
from dograph.sketch.sketcher import Sketcher
from model_zoo import Decoder, made
from verdicts import (
    DIM,
    EXACT,
    MODES,
    MOST_MODES,
    REFUSED,
    FixedWeights,
    nll,
    some_tokens,
    unequal,
    verdict,
)

pytestmark = pytest.mark.slow  # the fast suite has the cases of test_any_model


def slow(size):
    return pytest.param(size, marks=pytest.mark.slow)


ON_EVERY_LAYER = ("full", "exact", "twopass")
KNOWN = {
    "(B, T, H, size)": shapes.HeadsOfEach,
    "(B, H, T, size)": shapes.HeadsBeforeTokens,
    "(B T, D)": shapes.TokenFlat,
    "(B, D)": shapes.OneOfEach,
    "(B, T / 2, D)": shapes.EveryOther,
    "(T,) positions": Decoder,
    "(T,) positions backwards": shapes.PositionsBackwards,
    "(1, T) positions": shapes.PositionsOnce,
}
# Their rows cannot be told apart by the shape, at least where B equals T.
UNKNOWN = {
    "(T B, D)": shapes.FlatTimeFirst,
    "(B T, D) sorted": shapes.SortedTokens,
    "(B, T, D) sorted": shapes.SortedSamples,
    "(n, D)": shapes.SomeTokens,
    "(B W, T / W, D)": shapes.Windows,
    "(T, D)": shapes.OfPositions,
    "(1, T, D)": shapes.OfPositionsOnce,
    "(T, B, D)": zoo.TimeFirst,
    "(T, T) positions": zoo.RelativeBias,
    "(T,) positions unsqueezed": shapes.PositionsUnsqueezed,
    "(T,) positions repeated": shapes.PositionsRepeated,
    "(T,) positions by head": shapes.PositionsByHead,
    "(B,) tokens": kinds.OnePerSample,
    "(B, T, k) tokens": kinds.SeveralTokens,
}


@pytest.mark.parametrize("size", [(5, 8), (6, 6), *map(slow, [(1, 8), (16, 4)])])
@pytest.mark.parametrize("mode", MOST_MODES)
@pytest.mark.parametrize("name", KNOWN)
def test_known_shapes_are_exact(name, mode, size):
    """Also for one sample, for as many samples as tokens, and for other accidents of numbers."""
    got = verdict(made(KNOWN[name]), mode, token_BT=some_tokens(*size))
    assert got.kind == EXACT, str(got)
    assert got.outside == {}


@pytest.mark.parametrize("size", [(5, 8), (6, 6), slow((4, 2))])
@pytest.mark.parametrize("mode", MOST_MODES)
@pytest.mark.parametrize("name", UNKNOWN)
def test_other_shapes_are_exact_or_refused(name, mode, size):
    got = verdict(made(UNKNOWN[name]), mode, token_BT=some_tokens(*size))
    assert got.kind in (EXACT, REFUSED), str(got)


@pytest.mark.parametrize("mode", ON_EVERY_LAYER)
@pytest.mark.parametrize(
    ("name", "layer", "shape"),
    [
        ("(B W, T / W, D)", "middle.norm", "(10, 4, 16)"),
        ("(T, D)", "middle.norm", "(8, 16)"),
        ("(1, T, D)", "middle.norm", "(1, 8, 16)"),
        ("(T, B, D)", "blocks.0.before", "(8, 5, 16)"),
        ("(T, T) positions", "distance", "(8, 8)"),
    ],
)
def test_the_refusal_names_the_layer_and_its_shape(name, layer, shape, mode):
    """In the forward, before any gradient."""
    model, token_BT = made(UNKNOWN[name])(), some_tokens()
    sketcher = Sketcher(model, mode=mode, dim=DIM)
    returned = []
    with pytest.raises(ConfigError) as refused, sketcher.record(token_BT):
        returned.append(nll(model, token_BT))
    assert returned == []
    message = str(refused.value)
    assert layer in message
    assert shape in message
    assert "exclude=" in message
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("mode", ["full", "twopass"])
@pytest.mark.parametrize(
    ("name", "exclude"),
    [
        *((name, ("middle",)) for name in list(UNKNOWN)[:7]),
        ("(T, T) positions", ("distance",)),
        ("(B,) tokens", ("domain",)),
        ("(B, T, k) tokens", ("token",)),
    ],
)
def test_what_is_refused_runs_when_it_is_excluded(name, exclude, mode):
    got = verdict(made(UNKNOWN[name]), mode, exclude=exclude)
    assert got.kind == EXACT, str(got)


def test_a_shape_that_turns_later_is_caught_by_a_check_of_every_step():
    """B equals T, so that no shape tells."""

    def before_step(model, step):
        model.turns = step == 1

    make = made(shapes.TimeFirstLater)
    token_BT = some_tokens(6, 6)
    options = {"token_BT": token_BT, "before_step": before_step, "steps": 2}
    got = verdict(make, "full", check="always", **options)
    assert got.kind == REFUSED, str(got)
    # The same where B and T differ is told by the shape, whatever is checked.
    options["token_BT"] = some_tokens()
    assert verdict(make, "full", check="never", **options).kind == REFUSED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduce", [torch.mean, lambda loss_B: loss_B[:, None], lambda x: x[:3]])
def test_losses_that_are_not_one_a_sample_are_refused(mode, reduce):
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    with pytest.raises(ConfigError, match="loss_B"), sketcher.record(token_BT):
        sketcher.backward(reduce(nll(model, token_BT)), FixedWeights(unequal(5)))


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_changing_size(mode):
    """The last batch of an epoch, and sequences that grow."""
    model, twin = made(shapes.TokenFlat)(), made(shapes.TokenFlat)()
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    for step, size in enumerate([(5, 8), (3, 8), (3, 11), (5, 8), (8, 3), (1, 5)]):
        token_BT, weight_B = some_tokens(*size), unequal(size[0])
        model.zero_grad()
        with sketcher.record(token_BT, step):
            sketcher.backward(nll(model, token_BT), FixedWeights(weight_B))
        twin.zero_grad()
        (nll(twin, token_BT) * weight_B).sum().backward()
        for (name, got), (_, expected) in zip(
            model.named_parameters(), twin.named_parameters(), strict=True
        ):
            close = torch.allclose(got.grad, expected.grad, rtol=1e-10, atol=1e-12)
            assert close, (name, step)


def test_tokens_on_another_device_than_the_layers_are_refused():
    token_BT = some_tokens()
    sketcher = Sketcher(made(Decoder)(), mode="full", dim=DIM)
    with sketcher.record(token_BT), pytest.raises(ConfigError, match="tokens on cpu; both must"):
        sketcher.rules[0].require_samples(token_BT.to("meta"))
