"""Rules of a user's own: `Sketcher(rules={MyLayer: MyRule()})`; a wrong one is found by the check.

Shapes: B samples, T tokens, D width, F numbers of a vector.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.sketch.cover import LayerRule
from dograph.sketch.sketcher import Sketcher
from model_oddities import OffsetNorm
from model_zoo import WIDTH, Decoder, made
from verdicts import DIM, EXACT, MODES, REFUSED, some_tokens, verdict


class OffsetNormRule(LayerRule):
    """Of F.layer_norm(x) * exp(scale) + shift."""

    factor = 1.0

    def per_sample(self, module: nn.Module, value: Tensor, grad: Tensor) -> dict[str, Tensor]:
        xhat = F.layer_norm(value, value.shape[-1:])
        weighted = self.factor * grad * xhat * module.scale.exp()
        return {
            "scale": weighted.flatten(1, -2).sum(dim=1),
            "shift": grad.flatten(1, -2).sum(dim=1),
        }


class WrongRule(OffsetNormRule):
    factor = 1.01


class OffsetNormBelow(OffsetNorm):
    """A class below the one that has a rule."""


def decoder(norm: type[nn.Module] = OffsetNorm) -> Decoder:
    return Decoder(norm=norm)


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_of_ones_own(mode):
    got = verdict(made(decoder), mode, rules={OffsetNorm: OffsetNormRule()}, steps=2)
    assert got.kind == EXACT, str(got)
    assert got.outside == {}
    assert not got.warned


@pytest.mark.parametrize("mode", ["full", "exact"])
def test_without_it_the_layer_stays_out_of_the_sketch(mode):
    got = verdict(made(decoder), mode)
    assert got.kind == EXACT, str(got)
    assert {name for name in got.outside if name.startswith("blocks.0")} >= {
        "blocks.0.before.scale",
        "blocks.0.between.scale",
    }


@pytest.mark.parametrize("mode", ["full", "exact", "topdown"])
def test_a_wrong_rule_is_refused(mode):
    """An error of 1 % is a hundred times what the check lets pass."""
    got = verdict(made(decoder), mode, rules={OffsetNorm: WrongRule()})
    assert got.kind == REFUSED, str(got)
    assert "scale" in got.message


def test_a_wrong_rule_is_said_in_twopass():
    got = verdict(made(decoder), "twopass", rules={OffsetNorm: WrongRule()})
    assert got.kind == REFUSED or got.warned


def test_a_rule_holds_for_the_classes_below():
    got = verdict(
        made(lambda: decoder(OffsetNormBelow)), "full", rules={OffsetNorm: OffsetNormRule()}
    )
    assert got.kind == EXACT, str(got)


def test_a_rule_goes_before_those_that_are_built_in():
    """A user may know better than a probe."""
    asked = []

    class LinearRule(LayerRule):
        def per_sample(self, module: nn.Module, value: Tensor, grad: Tensor) -> dict[str, Tensor]:
            asked.append(module)
            return {
                "weight": torch.einsum("bto,bti->boi", grad, value),
                "bias": grad.sum(dim=1),
            }

    class MyLinear(nn.Linear):
        pass

    def build() -> Decoder:
        model = Decoder()
        model.blocks[0].up = MyLinear(WIDTH, 24)
        return model

    got = verdict(made(build), "full", rules={MyLinear: LinearRule()}, holds_sketch=False)
    assert got.kind == EXACT, str(got)
    assert asked


@pytest.mark.parametrize("rules", [{nn.Bilinear: OffsetNormRule()}, {"OffsetNorm": 3}])
def test_rules_that_fit_nothing_do_no_harm_or_are_refused(rules):
    try:
        sketcher = Sketcher(made(decoder)(), dim=DIM, rules=rules)
    except ConfigError:
        return
    with sketcher.record(some_tokens()):
        pass
