"""Every trainable parameter is sketched, excluded by name, or refused; none is passed over.

Shapes: B samples, T tokens, D width.
"""

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


@pytest.mark.parametrize("mode", ["full", "twopass", "topdown", "exact", "reference"])
def test_layers_without_a_rule_are_named_with_what_to_do(mode):
    model = Around(nn.ModuleDict({"a": Convolution(16, 16, 1), "b": nn.GRU(16, 16)}))
    with pytest.raises(ConfigError) as refused:
        Sketcher(model, mode=mode, dim=80)
    message = str(refused.value)
    assert "middle.a (Convolution): middle.a.weight, middle.a.bias" in message
    assert "middle.b (GRU with bare parameters): middle.b.weight_ih_l0" in message
    for advice in ("exclude=[...]", "twopass", "freeze", "head"):
        assert advice in message
    assert "token" not in message


def test_a_bare_parameter_is_named():
    with pytest.raises(ConfigError, match=r"middle \(Bare with bare parameters\): middle\.gain"):
        Sketcher(Around(Bare()), dim=80)


def test_a_bare_parameter_of_the_model_itself_is_named():
    with pytest.raises(ConfigError, match=r"Bare \(Bare with bare parameters\): gain"):
        Sketcher(Bare(), dim=80)


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (nn.Embedding(8, 16, max_norm=1.0), "Embedding with max_norm"),
        (nn.Embedding(8, 16, sparse=True), "Embedding with max_norm, scale_grad_by_freq or sparse"),
        (nn.Embedding(8, 16, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.LayerNorm((4, 16)), "LayerNorm over several axes"),
        (nn.BatchNorm1d(16), "BatchNorm1d"),
        (nn.MultiheadAttention(16, 2), "MultiheadAttention with bare parameters"),
    ],
)
def test_layers_that_mix_or_clip_are_refused(middle, message):
    with pytest.raises(ConfigError, match=message):
        Sketcher(Around(middle), dim=80)


def test_a_trained_bias_beside_a_frozen_weight_is_refused():
    model = Around(nn.Linear(16, 16))
    model.middle.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"frozen, excluded or missing weight.*: middle\.bias"):
        Sketcher(model, dim=80)


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
    with pytest.raises(ConfigError, match="every trainable parameter is excluded"):
        Sketcher(model, mode="twopass", dim=80, exclude=("token", "head.weight", "head.bias"))


def test_excluded_parameters_are_trained_by_twopass(tiny, token_BT, weight_B):
    """They are out of the sketch, which is that of the others alone."""
    model = around(tiny, nn.Sequential(nn.Linear(16, 16), Bare()))
    exclude = ("middle.1", "head")
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode="twopass", exclude=exclude)
    expected = tiny.autograd(model, token_BT, weight_B)
    assert tiny.gradient_error(gradients, expected) < 1e-10
    for name in ("middle.1.gain", "head.weight", "head.bias"):
        model.get_parameter(name).requires_grad_(False)
    others, _ = tiny.run(model, token_BT, weight_B, mode="full")
    assert tiny.error(sketch.sketch_BK, others.sketch_BK) < 1e-10


@pytest.mark.parametrize("mode", ["full", "topdown", "exact"])
def test_excluded_parameters_are_refused_where_no_backward_reaches_them(mode):
    model = Around(Bare())
    with pytest.raises(ConfigError, match=r"mode .* \['middle\.gain'\] are excluded.*twopass"):
        Sketcher(model, mode=mode, dim=80, exclude=("middle",))


def test_names_are_excluded_whole():
    """`head` does not stand for `header`."""
    model = nn.ModuleDict({"head": nn.Linear(4, 4), "header": nn.Linear(4, 4)})
    sketcher = Sketcher(model, mode="twopass", dim=16, exclude=("head",))
    assert [rule.path for rule in sketcher.rules] == ["header"]


def test_an_excluded_name_that_fits_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"hed"):
        Sketcher(Around(nn.Identity()), mode="twopass", dim=80, exclude=("hed.weight",))


def test_one_parameter_of_a_layer_excluded(tiny, token_BT, weight_B):
    model = around(tiny, nn.Linear(16, 16))
    options = {"mode": "twopass", "exclude": ("middle.bias",)}
    sketch, gradients = tiny.run(model, token_BT, weight_B, **options)
    expected = tiny.autograd(model, token_BT, weight_B)
    assert tiny.gradient_error(gradients, expected) < 1e-10
    model.middle.bias.requires_grad_(False)
    without, _ = tiny.run(model, token_BT, weight_B, mode="full")
    assert tiny.error(sketch.sketch_BK, without.sketch_BK) < 1e-10


@pytest.mark.parametrize("mode", ["full", "exact"])
def test_a_layer_that_runs_twice_is_refused(tiny, token_BT, weight_B, mode):
    model = around(tiny, Shared())
    with pytest.raises(ConfigError, match=r"\['middle\.inner'\] ran more than once.*twopass"):
        tiny.run(model, token_BT, weight_B, mode=mode)


def test_a_layer_that_runs_twice_in_twopass(tiny, token_BT, weight_B):
    model = around(tiny, Shared())
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, mode="reference")
    got, gradients = tiny.run(model, token_BT, weight_B, mode="twopass")
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


@pytest.mark.parametrize("mode", ["full", "twopass"])
def test_a_layer_with_a_forward_of_its_own_is_refused(mode):
    with pytest.raises(ConfigError, match="Doubled"):
        Sketcher(Around(Doubled(16, 16)), mode=mode, dim=80)


@pytest.mark.parametrize("mode", ["full", "exact"])
def test_a_weight_used_past_its_layer_is_refused(tiny, token_BT, weight_B, mode):
    """Its gradient from there would be lost."""
    model = tiny.randomised(TiedByHand()).double()
    with pytest.raises(ConfigError, match=r"token\.weight"):
        tiny.run(model, token_BT, weight_B, mode=mode)
