"""Every trainable parameter is sketched, or trained by an ordinary backward and named.

Shapes: B samples, T tokens, D width.
"""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dograph.errors import ConfigError
from dograph.sketch.sketcher import Sketcher


class Around(nn.Module):
    """An embedding, something in the middle, and a head."""

    def __init__(self, middle, width=16):
        super().__init__()
        self.token = nn.Embedding(64, width)
        self.middle = middle
        self.head = nn.Linear(width, 64)

    def forward(self, token_BT):
        return self.head(self.middle(self.token(token_BT)))


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, value):
        return value * self.gain


class Convolution(nn.Conv1d):
    def forward(self, value):
        return super().forward(value.mT).mT


class Doubled(nn.Linear):
    def forward(self, value):
        return 2 * super().forward(value)


class Shared(nn.Module):
    """A layer that runs twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, value):
        return self.inner(F.gelu(self.inner(value)))


class WithUnusedBranch(nn.Module):
    """A layer that runs but whose output nobody reads."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, value):
        self.unused(value)
        return self.used(value)


class TiedByHand(nn.Module):
    """The table is used once through its layer and once past it."""

    def __init__(self):
        super().__init__()
        self.token, self.inner = nn.Embedding(64, 16), nn.Linear(16, 16)

    def forward(self, token_BT):
        return F.linear(self.inner(self.token(token_BT)), self.token.weight)


def around(tiny, middle):
    return tiny.randomised(Around(middle)).double()


class Attention(nn.MultiheadAttention):
    def forward(self, value):
        return super().forward(value, value, value, need_weights=False)[0]


class Scalar(nn.Module):
    """A gain beside a layer: the module has a child, so that it is not tried out."""

    def __init__(self):
        super().__init__()
        self.inner, self.gain = nn.Linear(16, 16), nn.Parameter(torch.tensor(0.7))

    def forward(self, value):
        return value + self.gain * self.inner(value)


WITHOUT_RULE = {
    "convolution": (lambda: Convolution(16, 16, 1), ["middle.weight", "middle.bias"]),
    "scalar": (Scalar, ["middle.gain"]),
    "doubled": (lambda: Doubled(16, 16), ["middle.weight", "middle.bias"]),
    "attention": (
        lambda: Attention(16, 2, batch_first=True),
        ["middle.in_proj_weight", "middle.in_proj_bias"],
    ),
}


@pytest.mark.parametrize("mode", ["full", "exact", "twopass"])
@pytest.mark.parametrize("kind", WITHOUT_RULE)
def test_layers_without_a_rule_are_trained_and_named(tiny, token_BT, weight_B, mode, kind, caplog):
    make, names = WITHOUT_RULE[kind]
    model = around(tiny, make())
    misses = kind == "attention" and mode == "twopass"  # it uses the weight of a layer of its own
    with pytest.warns(UserWarning, match="miss a part") if misses else nullcontext():
        sketch, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
    assert tiny.gradient_error(gradients, tiny.autograd(model, token_BT, weight_B)) < 1e-10
    assert sketch.sketch_BK.any()
    if mode != "twopass":
        [record] = caplog.records
        share = sum(model.get_parameter(n).numel() for n in names)
        share /= sum(p.numel() for p in model.parameters())
        assert set(names) <= set(record.getMessage().split(":")[0].split(", "))
        assert f"{100 * share:.2g} %" in record.getMessage() or kind == "attention"


def test_a_gain_under_any_name_has_a_rule(tiny, token_BT, weight_B):
    model = around(tiny, Bare())
    reference, expected = tiny.run(model, token_BT, weight_B, mode="reference")
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode="full")
    assert tiny.error(sketch.sketch_BK, reference.sketch_BK) < 1e-10
    assert tiny.gradient_error(gradients, expected) < 1e-10


@pytest.mark.parametrize("mode", ["full", "exact", "topdown"])
def test_a_layer_that_mixes_samples_is_refused_before_the_first_update(
    tiny, token_BT, weight_B, mode
):
    """BatchNorm: a sample's gradient is not its own."""

    class Mixing(nn.BatchNorm1d):
        def forward(self, value):
            return super().forward(value.mT).mT

    model = around(tiny, nn.ModuleList([nn.Linear(16, 16), Mixing(16)]))
    model.middle.forward = lambda value: model.middle[1](model.middle[0](value))
    with pytest.raises(ConfigError, match=r"not that of the model's own backward.*no update"):
        tiny.run(model, token_BT, weight_B, mode=mode, top_blocks=1)


def test_a_trained_bias_beside_a_frozen_weight(tiny, token_BT, weight_B):
    model = around(tiny, nn.Linear(16, 16))
    model.middle.weight.requires_grad_(False)
    reference, expected = tiny.run(model, token_BT, weight_B, mode="reference")
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode="full")
    assert tiny.error(sketch.sketch_BK, reference.sketch_BK) < 1e-10
    assert tiny.gradient_error(gradients, expected) < 1e-10
    assert "middle.bias" in gradients
    assert "middle.weight" not in gradients


@pytest.mark.parametrize("mode", ["full", "twopass", "exact", "reference"])
def test_frozen_parameters_are_skipped(tiny, token_BT, weight_B, mode):
    """Also a frozen layer that has no rule, and a frozen bias beside a trained weight."""
    model = around(tiny, nn.Sequential(nn.Linear(16, 16), Convolution(16, 16, 1), Bare()))
    for name in ("middle.0.bias", "middle.1.weight", "middle.1.bias", "middle.2.gain"):
        model.get_parameter(name).requires_grad_(False)
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
    expected = tiny.autograd(model, token_BT, weight_B)
    assert set(expected) == {"token.weight", "middle.0.weight", "head.weight", "head.bias"}
    assert tiny.gradient_error(gradients, expected) < 1e-10
    reference, _ = tiny.run(model, token_BT, weight_B, mode="reference")
    assert tiny.error(sketch.sketch_BK, reference.sketch_BK) < 1e-10


def test_nothing_to_train():
    model = Around(nn.Identity()).requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        Sketcher(model, dim=80)


def test_everything_excluded():
    model = Around(nn.Identity())
    with pytest.raises(ConfigError, match="every trainable parameter is excluded or"):
        Sketcher(model, mode="twopass", dim=80, exclude=("token", "head.weight", "head.bias"))


@pytest.mark.parametrize("mode", ["full", "twopass", "exact"])
def test_excluded_parameters_are_trained(tiny, token_BT, weight_B, mode):
    """They are out of the sketch, which is that of the others alone."""
    model = around(tiny, nn.Sequential(nn.Linear(16, 16), Bare()))
    exclude = ("middle.1", "head")
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode=mode, exclude=exclude)
    expected = tiny.autograd(model, token_BT, weight_B)
    assert tiny.gradient_error(gradients, expected) < 1e-10
    for name in ("middle.1.gain", "head.weight", "head.bias"):
        model.get_parameter(name).requires_grad_(False)
    others, _ = tiny.run(model, token_BT, weight_B, mode="full")
    assert tiny.error(sketch.sketch_BK, others.sketch_BK) < 1e-10


@pytest.mark.parametrize("exclude", ["head", ("head",)])
def test_names_are_excluded_whole(exclude):
    """`head` does not stand for `header`."""
    model = nn.ModuleDict({"head": nn.Linear(4, 4), "header": nn.Linear(4, 4)})
    sketcher = Sketcher(model, mode="twopass", dim=16, exclude=exclude)
    assert [rule.path for rule in sketcher.rules] == ["header"]


def test_an_excluded_name_that_fits_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"hed"):
        Sketcher(Around(nn.Identity()), mode="twopass", dim=80, exclude=("hed.weight",))


@pytest.mark.parametrize("mode", ["full", "twopass"])
def test_one_parameter_of_a_layer_excluded(tiny, token_BT, weight_B, mode):
    model = around(tiny, nn.Linear(16, 16))
    options = {"mode": mode, "exclude": ("middle.bias",)}
    sketch, gradients = tiny.run(model, token_BT, weight_B, **options)
    expected = tiny.autograd(model, token_BT, weight_B)
    assert tiny.gradient_error(gradients, expected) < 1e-10
    model.middle.bias.requires_grad_(False)
    without, _ = tiny.run(model, token_BT, weight_B, mode="full")
    assert tiny.error(sketch.sketch_BK, without.sketch_BK) < 1e-10


@pytest.mark.parametrize("mode", ["full", "exact", "twopass"])
def test_a_layer_that_runs_twice(tiny, token_BT, weight_B, mode):
    model = around(tiny, Shared())
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, mode="reference")
    got, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
    assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10
    assert tiny.gradient_error(gradients, expected_gradients) < 1e-10


@pytest.mark.parametrize(
    "mode",
    [
        "full",
        "exact",
        "twopass",
    ],
)
def test_a_layer_whose_output_is_not_read(tiny, token_BT, weight_B, mode):
    model = around(tiny, WithUnusedBranch())
    expected = tiny.autograd(model, token_BT, weight_B)
    _, got = tiny.run(model, token_BT, weight_B, mode=mode)
    for name in expected:
        assert tiny.error(got[name], expected[name]) < 1e-10, name
    assert all(not got[name].any() for name in set(got) - set(expected))


@pytest.mark.parametrize("mode", ["full", "exact"])
def test_a_weight_used_past_its_layer_is_trained_by_both_uses(tiny, token_BT, weight_B, mode):
    model = tiny.randomised(TiedByHand()).double()
    _, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
    assert tiny.gradient_error(gradients, tiny.autograd(model, token_BT, weight_B)) < 1e-10


def test_a_weight_used_past_its_layer_is_told_by_twopass(tiny, token_BT, weight_B):
    model = tiny.randomised(TiedByHand()).double()
    with pytest.warns(
        UserWarning,
        match=r"\['token.weight'\] are used outside their layers. The gradient is exact",
    ):
        _, gradients = tiny.run(model, token_BT, weight_B, mode="twopass")
    assert tiny.gradient_error(gradients, tiny.autograd(model, token_BT, weight_B)) < 1e-10
