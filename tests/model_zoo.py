"""Tiny decoders that a user might write, each with something that a Sketcher could get wrong.

Every `make` returns a twin of the last one: float64, two or three blocks.

Shapes: B samples, T tokens, V vocabulary, D width, H heads, k tokens at one position.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verdicts import VOCABULARY, nll, randomised

WIDTH, HEADS, LENGTH = 16, 2, 16


class Attention(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        size, length, width = hidden_BTD.shape
        qkv = self.qkv(hidden_BTD).view(size, length, 3, HEADS, width // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.before, self.attention = norm(WIDTH), Attention()
        self.between = norm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden_BTD = hidden_BTD + self.attention(self.before(hidden_BTD), mask)
        out: Tensor = hidden_BTD + self.down(F.gelu(self.up(self.between(hidden_BTD))))
        return out


class Decoder(nn.Module):
    """The plain one: others change how it is declared, or one of its steps."""

    def __init__(self, layers: int = 2, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(norm) for _ in range(layers))
        self.last = norm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def embedded(self, token_BT: Tensor) -> Tensor:
        out: Tensor = self.token(token_BT) + self.position(torch.arange(token_BT.shape[1]))
        return out

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD)
        return hidden_BTD

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        out: Tensor = self.head(self.last(hidden_BTD))
        return out

    def forward(self, token_BT: Tensor) -> Tensor:
        return self.logits(self.through_blocks(self.embedded(token_BT)))


class HeadFirst(Decoder):
    """Declares its output layer before everything else."""

    def __init__(self) -> None:
        super().__init__()
        children = dict(self._modules)
        self._modules.clear()
        self.head = children.pop("head")
        self._modules.update(children)


class FunctionalTie(Decoder):
    """Logits by the embedding's own table, past its layer."""

    detached = False  # as the sketch sees it

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        table_VD = self.token.weight.detach() if self.detached else self.token.weight
        return self.last(hidden_BTD) @ table_VD.T


class DetachedTie(FunctionalTie):
    detached = True


class LateTie(Decoder):
    """A use of the table outside its layer that begins when `tied` is set."""

    tied = False

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        hidden_BTD = self.last(hidden_BTD)
        logits_BTV: Tensor = self.head(hidden_BTD)
        return logits_BTV + hidden_BTD @ self.token.weight.T if self.tied else logits_BTV


class LateSkip(Decoder):
    """The embedding reaches the output layer past the blocks when `skips` is set."""

    skips = False

    def forward(self, token_BT: Tensor) -> Tensor:
        first_BTD = self.embedded(token_BT)
        hidden_BTD = self.through_blocks(first_BTD)
        return self.logits(hidden_BTD + first_BTD if self.skips else hidden_BTD)


class WeightElsewhere(Decoder):
    """A weight of a block's layer is used a second time by hand, as Mamba does."""

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        hidden_BTD = super().through_blocks(hidden_BTD)
        out = self.blocks[-1].attention.out
        return hidden_BTD + F.linear(F.silu(hidden_BTD), out.weight, out.bias)


class SkipBlock(Block):
    """Mixes the embedding into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden_BTD: Tensor, first_BTD: Tensor | None = None) -> Tensor:
        assert first_BTD is not None
        return super().forward(hidden_BTD + self.mix(first_BTD))


class EmbeddingSkip(Decoder):
    def __init__(self) -> None:
        super().__init__(layers=3)
        self.blocks = nn.ModuleList(SkipBlock() for _ in range(3))

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        first_BTD = hidden_BTD
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, first_BTD)
        return hidden_BTD


class UNet(Decoder):
    """Outputs of the first blocks are added to the inputs of the last."""

    def __init__(self) -> None:
        super().__init__(layers=4)

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            rises = index >= len(self.blocks) // 2
            hidden_BTD = block(hidden_BTD + 0.5 * kept.pop() if rises else hidden_BTD)
            if not rises:
                kept.append(hidden_BTD)
        return hidden_BTD


class SumOfBlocks(Decoder):
    """The output layer reads the sum over all blocks' outputs."""

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        total_BTD = torch.zeros_like(hidden_BTD)
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD)
            total_BTD = total_BTD + hidden_BTD
        return total_BTD


class SingleHead(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, size), nn.Linear(WIDTH, size)
        self.value = nn.Linear(WIDTH, size)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            self.query(hidden_BTD), self.key(hidden_BTD), self.value(hidden_BTD), is_causal=True
        )


class BlockOfHeads(nn.Module):
    """nanoGPT's lecture: attention is a ModuleList of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.heads = nn.ModuleList(SingleHead(WIDTH // 4) for _ in range(4))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        value_BTD = self.norm(hidden_BTD)
        mixed = torch.cat([head(value_BTD) for head in self.heads], dim=-1)
        out: Tensor = hidden_BTD + self.out(mixed)
        return out


class HeadsInAList(Decoder):
    """Its blocks are a Sequential: the largest ModuleList is that of a block's attention heads."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(BlockOfHeads(), BlockOfHeads())  # type: ignore[assignment]


class CaptureHidden(Decoder):
    """Keeps the first block's output aside, as a hook of a user's would."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self.blocks[0].register_forward_hook(lambda module, args, out: self.captured.append(out))


def penalised(model: CaptureHidden, token_BT: Tensor) -> Tensor:
    """A loss with a penalty on hidden states that the model does not return."""
    loss_B = nll(model, token_BT)
    return loss_B + 0.3 * model.captured[-1].square().mean(dim=(1, 2))


class OutputsHidden(Decoder):
    """The same penalty on what the model does return."""

    def forward(self, token_BT: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        first_BTD = self.blocks[0](self.embedded(token_BT))
        return self.logits(self.blocks[1](first_BTD)), first_BTD


def penalised_outputs(model: OutputsHidden, token_BT: Tensor) -> Tensor:
    logits_BTV, hidden_BTD = model(token_BT)
    return nll(lambda _: logits_BTV, token_BT) + 0.3 * hidden_BTD.square().mean(dim=(1, 2))


def replace_forward(model: Decoder, *, factor: float, place: str) -> Decoder:
    """The forward of one instance replaced, as quantisers and patches do."""
    layer = model.get_submodule(place)
    own = type(layer).forward

    @functools.wraps(own)
    def forward(value: Tensor) -> Tensor:
        out: Tensor = factor * own(layer, value)
        return out

    layer.forward = forward
    return model


class OneMore(nn.Linear):
    """A Linear whose forward a user overrode."""

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) + value.mean(dim=-1, keepdim=True) * self.weight.sum(dim=1)


def class_called(name: str) -> type[nn.Module]:
    """A user's norm of its own that goes by the name of a library's."""

    class Own(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))
            self.variance_epsilon = self.eps = 1e-6

        def forward(self, value: Tensor) -> Tensor:
            centred = value - value.mean(dim=-1, keepdim=True)
            return self.weight.square() * centred / (1 + centred.abs().mean(dim=-1, keepdim=True))

    Own.__name__ = Own.__qualname__ = name
    return Own


class Conv1D(nn.Module):
    """Called like GPT-2's layer, but it scales every row of its weight to unit length."""

    def __init__(self, num_outputs: int, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.nf = num_outputs

    def forward(self, value: Tensor) -> Tensor:
        return value @ F.normalize(self.weight, dim=1) + self.bias


class TransposedLinear(nn.Module):
    """A user's own Linear, weights the other way round, in a class of any name."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, value: Tensor) -> Tensor:
        return value @ self.weight + self.bias


def with_layers(make_up: Callable[[], nn.Module]) -> Callable[[], Decoder]:
    """A decoder whose blocks' first feed-forward layer is another."""

    def make() -> Decoder:
        model = Decoder()
        for block in model.blocks:
            block.up = make_up()
        return model

    return make


class TimeFirst(Decoder):
    """Runs its blocks on (T, B, D), as older PyTorch code does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TimeFirstBlock() for _ in range(2))

    def forward(self, token_BT: Tensor) -> Tensor:
        hidden_TBD = self.embedded(token_BT).transpose(0, 1)
        return self.logits(self.through_blocks(hidden_TBD)).transpose(0, 1)


class TimeFirstBlock(Block):
    def forward(self, hidden_TBD: Tensor, mask: Tensor | None = None) -> Tensor:
        mixed = self.attention(self.before(hidden_TBD).transpose(0, 1)).transpose(0, 1)
        hidden_TBD = hidden_TBD + mixed
        out: Tensor = hidden_TBD + self.down(F.gelu(self.up(self.between(hidden_TBD))))
        return out


class RelativeBias(Decoder):
    """T5's position bias: a table looked up by distance, (T, T) without a sample axis."""

    def __init__(self) -> None:
        super().__init__()
        self.distance = nn.Embedding(2 * LENGTH, HEADS)

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        place_T = torch.arange(hidden_BTD.shape[1])
        distance_TT = place_T[:, None] - place_T[None, :]
        bias_HTT = self.distance(distance_TT + LENGTH).permute(2, 0, 1)
        causal_TT = torch.where(distance_TT < 0, -math.inf, 0.0)
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, (bias_HTT + causal_TT)[None])
        return hidden_BTD


def made(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The model drawn and in float64, the same at every call, buffers too."""

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return randomised(build()).double()

    return make
