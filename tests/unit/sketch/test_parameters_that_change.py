"""Parameters that are no longer those of the Sketcher, hooks and backwards of a user's own.

Each would train something else than it says, or nothing: exact, or refused at the next `record`.

Shapes: B samples, T tokens.
"""

import pytest
import torch
from torch import nn

import model_kinds as kinds
from dograph.errors import ConfigError
from dograph.sketch.sketcher import Sketcher
from model_zoo import WIDTH, Decoder, made
from verdicts import (
    DIM,
    FILLING,
    MODES,
    VOCABULARY,
    FixedWeights,
    gradients_of,
    largest_error,
    nll,
    oracle,
    some_tokens,
    unequal,
    verdict,
)


def sketcher_of(model, mode):
    return Sketcher(model, mode=mode, dim=DIM, top_blocks=1)


def recorded(sketcher, model, token_BT, step=0):
    with sketcher.record(token_BT, step):
        mixer = FixedWeights(unequal(len(token_BT), next(model.parameters()).dtype))
        sketcher.backward(nll(model, token_BT), mixer)


def assign(model):
    """The same values in new parameters."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def replace_head(model):
    model.head = nn.Linear(WIDTH, VOCABULARY, bias=False).double()


def replace_weight(model):
    """One layer's own, of the same shape."""
    layer = model.blocks[0].up
    layer.weight = nn.Parameter(layer.weight.detach().clone())


def replace_block(model):
    model.blocks[1] = type(model.blocks[1])().double()


def add_adapter(model):
    model.blocks[0].up = kinds.LoraLinear(model.blocks[0].up).double()


def add_bare(model):
    model.register_parameter("extra", nn.Parameter(torch.ones(3, dtype=torch.float64)))


def freeze_below(model):
    model.blocks[0].requires_grad_(False)


def freeze_above(model):
    model.blocks[1].up.requires_grad_(False)


def freeze_bias(model):
    model.blocks[1].up.bias.requires_grad_(False)


def tie(model):
    model.head.weight = model.token.weight


def grow(model):
    """A vocabulary that grows: new tables of another size."""
    for name in ("token", "head"):
        layer = getattr(model, name)
        weight_VD = torch.cat((layer.weight.detach(), layer.weight.detach()[:2]))
        layer.weight = nn.Parameter(weight_VD)


CHANGES = (
    assign,
    replace_head,
    replace_weight,
    replace_block,
    add_adapter,
    add_bare,
    freeze_below,
    freeze_above,
    freeze_bias,
    tie,
    grow,
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("mode", "stepped"), [*((mode, True) for mode in MODES), ("full", False)])
def test_a_model_that_changed_is_refused(mode, change, stepped):
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)
    if stepped:
        recorded(sketcher, model, token_BT)
    change(model)
    with pytest.raises(ConfigError) as refused, sketcher.record(token_BT, 1):
        pass
    assert "Sketcher" in str(refused.value)


@pytest.mark.parametrize("mode", MODES)
def test_the_changed_parameters_are_named(mode):
    model = made(Decoder)()
    sketcher = sketcher_of(model, mode)
    replace_weight(model)
    with pytest.raises(ConfigError, match=r"blocks\.0\.up\.weight"), sketcher.record(some_tokens()):
        pass


@pytest.mark.parametrize("place", ["token", "blocks.0", "blocks.1.up", "last"])
@pytest.mark.parametrize("mode", MODES)
def test_layers_unfrozen_later_are_refused(mode, place):
    model = made(lambda: kinds.frozen(place))()
    sketcher, token_BT = sketcher_of(model, mode), some_tokens()
    recorded(sketcher, model, token_BT)
    model.requires_grad_(True)
    with pytest.raises(ConfigError, match=place.replace(".", r"\.")), sketcher.record(token_BT, 1):
        pass


@pytest.mark.parametrize("mode", MODES)
def test_a_new_sketcher_takes_the_changed_model(mode):
    """What the error advises."""

    def changed():
        model = made(Decoder)()
        assign(model)
        model.blocks[0].requires_grad_(False)
        return model

    if mode != "topdown":  # nothing but the tables trains below its cut
        assert verdict(changed, mode).kind == "exact"


@pytest.mark.parametrize("mode", MODES)
def test_values_may_change(mode):
    """Updates, and a checkpoint that is loaded in place: the parameters are the same ones."""
    model, twin, token_BT = made(Decoder)(), made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)
    recorded(sketcher, model, token_BT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state = {name: 1.1 * value for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    twin.load_state_dict(state)
    recorded(sketcher, model, token_BT, 1)
    expected = oracle(twin, token_BT, nll, unequal(5)).weighted
    assert largest_error(gradients_of(model), expected)[0] < 1e-10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["hook", "accumulated"])
def test_hooks_on_parameters(mode, kind):
    """They would not run where the mode fills `.grad` itself; twopass runs them."""
    model, token_BT, ran = made(Decoder)(), some_tokens(), []
    weight = model.blocks[1].up.weight
    if kind == "hook":
        weight.register_hook(lambda gradient: ran.append(gradient.shape))
    else:
        weight.register_post_accumulate_grad_hook(lambda p: ran.append(p.shape))
    sketcher = sketcher_of(model, mode) if mode == "twopass" else None
    if sketcher is not None:
        recorded(sketcher, model, token_BT)
        assert ran
        return
    with pytest.raises(ConfigError, match=r"blocks\.1\.up\.weight"):
        recorded(sketcher_of(model, mode), model, token_BT)


@pytest.mark.parametrize("mode", FILLING)
def test_hooks_that_come_later(mode):
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)
    recorded(sketcher, model, token_BT)
    model.head.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with pytest.raises(ConfigError, match=r"head\.weight.*hook|hook.*head\.weight"):
        recorded(sketcher, model, token_BT, 1)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("mode", FILLING)
def test_a_backward_of_ones_own_is_refused(mode, step):
    """It would leave every tapped parameter without a gradient."""
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)
    if step:
        recorded(sketcher, model, token_BT)
    with pytest.raises(ConfigError, match="backward"), sketcher.record(token_BT, step):
        nll(model, token_BT).mean().backward()


@pytest.mark.parametrize("mode", FILLING)
def test_a_backward_of_ones_own_after_signals_is_refused(mode):
    """Signals may be read; the graph is gone."""
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)

    def step():
        loss_B = nll(model, token_BT)
        signals = sketcher.signals(loss_B)
        assert signals.sketch_BK.shape == (5, DIM)
        (unequal(5) * loss_B).sum().backward()

    with pytest.raises(ConfigError, match="twopass"), sketcher.record(token_BT):
        step()


def test_signals_and_a_backward_of_ones_own_in_twopass():
    model, twin, token_BT = made(Decoder)(), made(Decoder)(), some_tokens()
    sketcher, weight_B = sketcher_of(model, "twopass"), unequal(5)
    with sketcher.record(token_BT):
        loss_B = nll(model, token_BT)
        sketcher.signals(loss_B)
        (loss_B * weight_B).sum().backward()
    expected = oracle(twin, token_BT, nll, weight_B).weighted
    assert largest_error(gradients_of(model), expected)[0] < 1e-10


@pytest.mark.parametrize("mode", FILLING)
def test_a_record_without_a_backward_is_no_error(mode):
    """Losses alone, as an evaluation inside a record."""
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)
    with sketcher.record(token_BT), torch.no_grad():
        nll(model, token_BT)
    recorded(sketcher, model, token_BT, 1)
    expected = oracle(made(Decoder)(), token_BT, nll, unequal(5)).weighted
    assert largest_error(gradients_of(model), expected)[0] < 1e-10


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_inside_a_record_is_the_one_that_comes_out(mode):
    """The check at the end must not hide it, nor leave layers tapped."""
    model, token_BT = made(Decoder)(), some_tokens()
    sketcher = sketcher_of(model, mode)

    def loss_of(token_BT):
        nll(model, token_BT)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), sketcher.record(token_BT):
        loss_of(token_BT)
    assert not any("forward" in vars(module) for module in model.modules())
