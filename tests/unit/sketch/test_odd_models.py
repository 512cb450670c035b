"""Layers that look like others by their class, output or name, and losses of an odd kind.

Shapes: B samples, T tokens.
"""

from typing import Any

import pytest
import torch
from torch import nn

import model_oddities as oddities
import model_shapes as shapes
import model_zoo as zoo
from dograph.errors import ConfigError
from dograph.sketch.sketcher import Sketcher
from model_zoo import WIDTH, Decoder, made
from verdicts import (
    CRASHED,
    DIM,
    EXACT,
    FILLING,
    MODES,
    REFUSED,
    VOCABULARY,
    FixedWeights,
    Said,
    gradients_of,
    largest_error,
    nll,
    oracle,
    some_tokens,
    unequal,
    verdict,
)

pytestmark = pytest.mark.slow  # the fast suite has the cases of test_any_model


def slow(mode):
    return pytest.param(mode, marks=pytest.mark.slow)


# Their output is that of a known layer, but not their gradient: the check may refuse them.
LOOK_ALIKE = {"halved gradient", "detached input", "detached statistics", "two inputs", "in place"}


@pytest.mark.parametrize("mode", ["full", "topdown", *map(slow, ("exact", "head", "twopass"))])
@pytest.mark.parametrize("name", oddities.ODD)
def test_layers_that_look_like_others(name, mode):
    got = verdict(made(oddities.ODD[name]), mode)
    may = (EXACT, REFUSED) if name in LOOK_ALIKE else (EXACT,)
    if name == "forward called directly" and mode == "head":
        may = (EXACT, REFUSED)  # its output layer never runs
    assert got.kind in may, str(got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", oddities.COUPLED)
def test_layers_that_mix_samples(name, mode):
    """Below the cut of head they are in the gradient of every sample, but not row by row."""
    got = verdict(made(oddities.COUPLED[name]), mode, holds_sketch=mode != "twopass")
    assert got.kind in (EXACT, REFUSED), str(got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "loss_of",
    [
        oddities.relative_loss,
        oddities.contrastive_loss,
        oddities.twice_loss,
        oddities.chunked_loss,
        oddities.edited_loss,
        oddities.masked_loss,
    ],
)
def test_losses_of_an_odd_kind(loss_of, mode):
    got = verdict(made(Decoder), mode, loss_of=loss_of)
    exact = loss_of in (oddities.edited_loss, oddities.masked_loss)
    assert got.kind == EXACT or (got.kind == REFUSED and not exact), str(got)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "embedding",
    [
        lambda: nn.Embedding(VOCABULARY, WIDTH, padding_idx=3),
        lambda: nn.Embedding(VOCABULARY, WIDTH, max_norm=0.5),
        lambda: nn.Embedding(VOCABULARY, WIDTH, scale_grad_by_freq=True),
        lambda: nn.Embedding(VOCABULARY, WIDTH, sparse=True),
    ],
    ids=["padding", "max_norm", "by frequency", "sparse"],
)
def test_embeddings_with_options(embedding, mode):
    """Gradients by frequency are not a sum over samples: one backward a sample is another one."""

    def build():
        model = Decoder()
        model.token = embedding()
        return model

    token_BT = some_tokens()
    token_BT[0, 1] = token_BT[2, 3] = 3
    got = verdict(made(build), mode, token_BT=token_BT, holds_sketch=mode != "twopass")
    assert got.kind in (EXACT, REFUSED), str(got)


@pytest.mark.parametrize("mode", MODES)
def test_noise_in_a_layer(mode):
    """The same seed gives the same noise: a layer drawn anew is no error of the gradient."""

    def build():
        model = Decoder()
        model.blocks[0].up = oddities.NoisyLinear(WIDTH, 24)
        return model

    def loss_of(model: Any, token_BT: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return nll(model, token_BT)

    with torch.random.fork_rng(devices=[]):
        got = verdict(made(build), mode, loss_of=loss_of)
    assert got.kind in (EXACT, REFUSED), str(got)


def errors_of_steps(make, mode, sizes, before_step=None) -> list[float]:
    """The gradient's error at every step of one Sketcher, over batches of these sizes."""
    model, twin, found = make(), make(), []
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    for step, size in enumerate(sizes):
        for each in (model, twin):
            each.zero_grad()
            if before_step is not None:
                before_step(each, step)
        token_BT, weight_B = some_tokens(*size), unequal(size[0])
        with sketcher.record(token_BT, step):
            sketcher.backward(nll(model, token_BT), FixedWeights(weight_B))
        expected = oracle(twin, token_BT, nll, weight_B).weighted
        found.append(largest_error(gradients_of(model), expected)[0])
    return found


@pytest.mark.parametrize("mode", FILLING)
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (zoo.TimeFirst, (6, 6)),
        (shapes.FlatTimeFirst, (5, 8)),
        (shapes.SortedTokens, (5, 8)),
        (zoo.RelativeBias, (6, 6)),
        (oddities.COUPLED["mean over samples"], (5, 8)),
    ],
)
def test_a_first_batch_of_one_sample_hides_nothing(build, size, mode):
    """For one sample every order of axes is right: the check must wait for two."""
    try:
        with Said():
            errors = errors_of_steps(made(build), mode, [(1, 6), size])
    except ConfigError:
        return
    assert max(errors) < 1e-10


class LateMiddle(shapes.FlatTimeFirst):
    """Layers that are used from the second step on."""

    used = False

    def through_middle(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return super().through_middle(hidden_BTD) if self.used else hidden_BTD


@pytest.mark.parametrize("mode", FILLING)
def test_layers_that_run_later_are_checked_at_the_next_step(mode):
    def before_step(model, step):
        model.used = step > 0

    try:
        with Said():
            errors = errors_of_steps(made(LateMiddle), mode, [(5, 8)] * 3, before_step)
    except ConfigError:
        return
    assert max(errors) < 1e-10


@pytest.mark.parametrize("mode", FILLING)
def test_a_first_record_without_a_backward_hides_nothing(mode):
    model, token_BT = made(shapes.FlatTimeFirst)(), some_tokens()
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    with sketcher.record(token_BT), torch.no_grad():
        nll(model, token_BT)
    mixer = FixedWeights(unequal(5))
    try:
        with Said(), sketcher.record(token_BT, 1):
            sketcher.backward(nll(model, token_BT), mixer)
    except ConfigError:
        return
    expected = oracle(made(shapes.FlatTimeFirst)(), token_BT, nll, mixer.weight_B).weighted
    assert largest_error(gradients_of(model), expected)[0] < 1e-10


class Positioned(Decoder):
    """Positions come as an argument."""

    def forward(self, token_BT: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        place_BT = place.view(-1, token_BT.shape[1])
        hidden_BTD = self.token(token_BT) + self.position(place_BT)
        return self.logits(self.through_blocks(hidden_BTD))


@pytest.mark.parametrize("shape", [(5, 8), (1, 8), (40,)])
@pytest.mark.parametrize("mode", MODES)
def test_arguments_beside_the_tokens(mode, shape):
    """Those of all samples and of none run.

    Flat ones, (B T,), do not fit the few rows that a check runs: an error, perhaps the model's own.
    """

    def loss_of(model, token_BT):
        place_BT = torch.arange(8).expand(5, 8).flip(1)
        place = place_BT[:1] if shape == (1, 8) else place_BT.reshape(shape)
        return nll(lambda token_BT: model(token_BT, place=place), token_BT)

    got = verdict(made(Positioned), mode, loss_of=loss_of)
    assert got.kind == EXACT or (got.kind in (REFUSED, CRASHED) and shape == (40,)), str(got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, "autocast"], ids=str)
@pytest.mark.parametrize("mode", ["full", "topdown"])
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (zoo.TimeFirst, (6, 6)),
        (shapes.FlatTimeFirst, (5, 8)),
        (oddities.ODD["halved gradient"], (5, 8)),
        (oddities.COUPLED["mean over samples"], (5, 8)),
    ],
    ids=["time first", "flat time first", "halved gradient", "mean over samples"],
)
def test_the_check_sees_through_rounding(build, size, mode, dtype):
    """Errors of a third of a gradient are far above what bfloat16 rounds."""
    halves = dtype == "autocast"
    model = made(build)().to(torch.float32 if halves else dtype)
    token_BT = some_tokens(*size)
    sketcher = Sketcher(model, mode=mode, dim=DIM, top_blocks=1)
    mixer = FixedWeights(unequal(size[0], torch.float32))
    with (
        Said(),
        torch.autocast("cpu", torch.bfloat16, enabled=halves),
        pytest.raises(ConfigError),
        sketcher.record(token_BT),
    ):
        sketcher.backward(nll(model, token_BT).float(), mixer)
