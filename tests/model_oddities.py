"""Tiny decoders with layers that look like others, or like nothing: parametrisations, tricks.

Shapes: B samples, T tokens, N = B T, D width, V vocabulary.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from model_shapes import WithMiddle
from model_zoo import WIDTH, Decoder, TransposedLinear, with_layers
from verdicts import nll


def with_middle(make: Callable[[], nn.Module]) -> Callable[[], Decoder]:
    """A decoder with this between its blocks and its output layer."""

    def build() -> Decoder:
        model = WithMiddle()
        model.middle = make()
        return model

    return build


class GradientScale(torch.autograd.Function):
    """The identity, with half the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 0.5 * grad


class HalvedGradient(nn.Linear):
    """A Linear by its output, but not by its gradient."""

    def forward(self, value: Tensor) -> Tensor:
        weight: Tensor = GradientScale.apply(self.weight)  # type: ignore[no-untyped-call]
        return F.linear(value, weight, self.bias)


class DetachedInput(nn.Linear):
    """Learns, but lets no gradient through."""

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value.detach())


class DetachedStatistics(nn.Module):
    """An RMSNorm by its output; no gradient through the root mean square."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, value: Tensor) -> Tensor:
        size = (value.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        return self.weight * (value / size.detach())


class Rounded(nn.Linear):
    """Quantisation with a straight-through gradient."""

    def forward(self, value: Tensor) -> Tensor:
        rounded = (8 * self.weight).round() / 8
        return F.linear(value, self.weight + (rounded - self.weight).detach(), self.bias)


class NoisyLinear(nn.Linear):
    """Adds noise to its weight while it trains."""

    def forward(self, value: Tensor) -> Tensor:
        noise = 0.1 * torch.randn_like(self.weight) if self.training else 0.0
        return F.linear(value, self.weight + noise, self.bias)


class SwitchedLinear(nn.Linear):
    """Another function for large inputs."""

    def forward(self, value: Tensor) -> Tensor:
        out = super().forward(value)
        return torch.where(out > 2.0, 2.0 + 0.1 * (out - 2.0), out)


class LinearWithGelu(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return F.gelu(super().forward(value))


class ScaledLinear(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return 0.25 * super().forward(value)


class MaskedLinear(nn.Linear):
    """Pruned: a part of the weight does not count."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        draw = torch.Generator().manual_seed(0)
        mask = torch.rand(num_outputs, num_inputs, generator=draw) > 0.3
        self.register_buffer("mask", mask.double())

    def forward(self, value: Tensor) -> Tensor:
        return F.linear(value, self.weight * self.mask, self.bias)


class SeveralInputs(nn.Linear):
    """Two inputs for one weight."""

    def forward(self, value: Tensor, other: Tensor | None = None) -> Tensor:
        out = super().forward(value)
        return out if other is None else out + super().forward(other)


class TwoInputs(WithMiddle):
    def __init__(self) -> None:
        super().__init__()
        self.middle = SeveralInputs(WIDTH, WIDTH)

    def through_middle(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD + self.middle(hidden_BTD, hidden_BTD.tanh())  # type: ignore[no-any-return]


class OffsetNorm(nn.Module):
    """A norm and an offset under names of their own."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, value: Tensor) -> Tensor:
        return F.layer_norm(value, value.shape[-1:]) * self.scale.exp() + self.shift


class ScalarNorm(nn.Module):
    """ScaleNorm: one number for the whole vector."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(1))

    def forward(self, value: Tensor) -> Tensor:
        return self.g * F.normalize(value, dim=-1)


class TanhNorm(nn.Module):
    """DyT: tanh in the place of a norm."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, value: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * value) + self.bias


class TiedMlp(nn.Module):
    """The second layer is the first, the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), TransposedLinear(24, WIDTH)
        self.down.weight = self.up.weight

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.down(F.gelu(self.up(value)))
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.inner = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.inner(value)[0]
        return out


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.inner(value, value, value, need_weights=False)[0]
        return out


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.inner(value, value)
        return out


class InPlace(nn.Module):
    """Changes the outputs of its layers in place."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.down(F.relu(self.up(value), inplace=True))
        out += value
        return out


class AlongTokens(nn.Module):
    """A layer of torch that wants channels before tokens."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.inner(value.mT).mT
        return out


class Hooked(WithMiddle):
    """Hooks of a user's change a layer's input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.middle.up.register_forward_pre_hook(lambda module, args: (1.5 * args[0],))
        self.middle.up.register_forward_hook(lambda module, args, out: out.tanh())
        self.middle.norm.register_full_backward_hook(lambda module, into, out: None)


class NoGradPart(Decoder):
    """The first block runs without gradients, though its parameters would train."""

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        with torch.no_grad():
            first_BTD = self.blocks[0](hidden_BTD)
        return self.blocks[1](hidden_BTD + first_BTD)  # type: ignore[no-any-return]


class DirectCalls(Decoder):
    """Calls `forward` itself, and a weight without its layer."""

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        hidden_BTD = self.last.forward(hidden_BTD)
        return F.linear(hidden_BTD, self.head.weight)


class SlicedWeight(Decoder):
    """Half of a layer's weight is used once more."""

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        hidden_BTD = super().through_blocks(hidden_BTD)
        return hidden_BTD + F.linear(hidden_BTD, self.blocks[0].attention.qkv.weight[:WIDTH])


def hooked_weight_norm(layer: nn.Linear) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        return nn.utils.weight_norm(layer)


class AcrossSamples(nn.Module):
    """Every sample sees the mean of all: no sample has a gradient of its own layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, value_BTD: Tensor) -> Tensor:
        out: Tensor = value_BTD + self.inner(value_BTD).mean(dim=0, keepdim=True)
        return out


def relative_loss(model: Any, token_BT: Tensor) -> Tensor:
    """Each sample's loss over the mean of all: it depends on the other samples."""
    loss_B = nll(model, token_BT)
    return loss_B / loss_B.mean()


def contrastive_loss(model: Any, token_BT: Tensor) -> Tensor:
    """In-batch negatives."""
    logits_BV = model(token_BT).mean(dim=1)
    label_B = torch.arange(len(token_BT))
    return F.cross_entropy(logits_BV @ logits_BV.T, label_B, reduction="none")


def twice_loss(model: Any, token_BT: Tensor) -> Tensor:
    """The model runs twice for one loss."""
    return nll(model, token_BT) + 0.5 * nll(model, token_BT.flip(1))


def chunked_loss(model: Any, token_BT: Tensor) -> Tensor:
    """The model runs once for each half of the samples."""
    return torch.cat([nll(model, part) for part in token_BT.tensor_split(2)])


def edited_loss(model: Any, token_BT: Tensor) -> Tensor:
    """Logits changed in place before the loss."""
    logits_BTV = model(token_BT)
    logits_BTV[..., 0] = -5.0
    logits_BTV *= 1.5
    return nll(lambda _: logits_BTV, token_BT)


def masked_loss(model: Any, token_BT: Tensor) -> Tensor:
    """One sample counts for nothing."""
    mask_B = (torch.arange(len(token_BT)) != 1).double()
    return nll(model, token_BT) * mask_B


ODD: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": with_layers(lambda: parametrizations.weight_norm(nn.Linear(WIDTH, 24))),
    "weight_norm by hooks": with_layers(lambda: hooked_weight_norm(nn.Linear(WIDTH, 24))),
    "orthogonal": with_middle(lambda: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))),
    "spectral_norm": with_layers(lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, 24))),
    "halved gradient": with_layers(lambda: HalvedGradient(WIDTH, 24)),
    "detached input": with_middle(lambda: DetachedInput(WIDTH, WIDTH)),
    "detached statistics": lambda: Decoder(norm=DetachedStatistics),
    "straight-through": with_layers(lambda: Rounded(WIDTH, 24)),
    "switched": with_layers(lambda: SwitchedLinear(WIDTH, 24)),
    "with GELU": with_layers(lambda: LinearWithGelu(WIDTH, 24)),
    "scaled": with_layers(lambda: ScaledLinear(WIDTH, 24)),
    "masked": with_layers(lambda: MaskedLinear(WIDTH, 24)),
    "two inputs": TwoInputs,
    "norm of other names": lambda: Decoder(norm=OffsetNorm),
    "norm of one number": lambda: Decoder(norm=lambda width: ScalarNorm()),
    "DyT": lambda: Decoder(norm=TanhNorm),
    "tied transposed": with_middle(TiedMlp),
    "GRU": with_middle(lambda: Recurrent(nn.GRU)),
    "LSTM": with_middle(lambda: Recurrent(nn.LSTM)),
    "MultiheadAttention": with_middle(Attended),
    "Conv1d": with_middle(lambda: AlongTokens(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))),
    "GroupNorm": with_middle(lambda: AlongTokens(nn.GroupNorm(4, WIDTH))),
    "PReLU": with_middle(nn.PReLU),
    "TransformerEncoderLayer": with_middle(
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True)
    ),
    "Bilinear": with_middle(Squared),
    "in place": with_middle(InPlace),
    "hooks on layers": Hooked,
    "part without gradients": NoGradPart,
    "forward called directly": DirectCalls,
    "slice of a weight": SlicedWeight,
}
# Layers through which samples see one another: nothing but one backward a sample is right.
COUPLED: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm1d": with_middle(lambda: AlongTokens(nn.BatchNorm1d(WIDTH))),
    "mean over samples": with_middle(AcrossSamples),
}
