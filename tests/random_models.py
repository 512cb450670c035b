"""Small random architectures from a seed: what users combine, in combinations nobody thought of.

Shapes: B samples, T tokens, D width, V vocabulary.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from model_kinds import CastedLinear, LitRMSNorm, LoraLinear, NanoGPTLayerNorm
from model_zoo import LENGTH, OneMore, TransposedLinear, class_called
from verdicts import VOCABULARY, nll, randomised, some_tokens

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "LayerNorm": nn.LayerNorm,
    "LayerNorm without a bias": lambda width: nn.LayerNorm(width, bias=False),
    "LayerNorm, large eps": lambda width: nn.LayerNorm(width, eps=0.1),
    "RMSNorm": nn.RMSNorm,
    "RMSNorm, large eps": lambda width: nn.RMSNorm(width, eps=0.1),
    "nanoGPT": lambda width: NanoGPTLayerNorm(width, bias=True),
    "nanoGPT without a bias": lambda width: NanoGPTLayerNorm(width, bias=False),
    "LitGPT": lambda width: LitRMSNorm(width, add_unit_offset=False, eps=1e-3),
    "LitGPT with an offset": lambda width: LitRMSNorm(width, add_unit_offset=True),
    "LLaMA": lambda width: LlamaRMSNorm(width, eps=1e-3),
    "Gemma": lambda width: GemmaRMSNorm(width, eps=1e-4),
    "own LlamaRMSNorm": lambda width: class_called("LlamaRMSNorm")(width),
    "without weights": lambda width: nn.LayerNorm(width, elementwise_affine=False),
    "none": lambda width: nn.Identity(),
}
MATRICES: dict[str, Callable[[int, int], nn.Module]] = {
    "Linear": nn.Linear,
    "Linear without a bias": lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False),
    "Conv1D": lambda inputs, outputs: Conv1D(outputs, inputs),
    "CastedLinear": CastedLinear,
    "TransposedLinear": TransposedLinear,
    "another forward": OneMore,
    "LoRA": lambda inputs, outputs: LoraLinear(nn.Linear(inputs, outputs)),
}
SIZES = ((5, 8), (5, 8), (6, 6), (1, 7), (4, 8), (3, 12), (8, 4), (2, 2))
ROUNDS = ("LLaMA", "Gemma")  # to float32, whatever the model's precision


@dataclass(frozen=True)
class Plan:
    """What was drawn for one model and its batch."""

    seed: int
    depth: int
    width: int
    norm: str
    matrix: str
    dtype: str
    sizes: tuple[tuple[int, int], ...]  # of the batches
    positions: str
    attention: bool
    gain: str
    rows: str  # the shape that feed-forward layers see
    skip: str
    tie: str
    head: str
    last_norm: bool
    reused: bool
    elsewhere: bool  # a weight used by hand, past its layer
    frozen: tuple[str, ...]
    head_first: bool
    soft_cap: bool
    top_blocks: int


def drawn(seed: int) -> Plan:
    """Most choices are the plain one, so that a model has a few oddities at a time."""
    draw = random.Random(seed)

    def odd(usual: Any, *others: Any, chance: float = 0.3) -> Any:
        return draw.choice(others) if draw.random() < chance else usual

    depth, reused = draw.randint(1, 4), draw.random() < 0.15
    places = ("token", "position", "last", "blocks.0", "blocks.0.up", "blocks.0.norm", "head")
    return Plan(
        seed=seed,
        depth=depth,
        width=draw.choice((8, 12, 16)),
        norm=draw.choice(list(NORMS)),
        matrix=odd("Linear", *MATRICES, chance=0.5),
        dtype=odd("float64", "float32"),
        sizes=tuple(draw.choice(SIZES) for _ in range(2)),
        positions=odd("(T,)", "(1, T)", "(B, T)", "bare", "none", "unsqueezed", chance=0.5),
        attention=draw.random() < 0.6,
        gain=odd("none", "scalar", "vector", "of the model"),
        rows=odd("(B, T, D)", "(B T, D)", "(B, T, 2, D / 2)", "(T, B, D)", "(T B, D)"),
        skip=odd("none", "embedding", "U-net", "sum", "input"),
        tie=odd("none", "weight", "functional"),
        head=odd("Linear without a bias", "Linear", "CastedLinear", "LoRA", "(B T, D)"),
        last_norm=draw.random() < 0.8,
        reused=reused,
        elsewhere=draw.random() < 0.1,
        frozen=tuple(draw.sample(places, draw.randint(1, 3))) if draw.random() < 0.25 else (),
        head_first=draw.random() < 0.3,
        soft_cap=draw.random() < 0.15,
        top_blocks=1 if reused else draw.randint(1, depth),
    )


class RandomBlock(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, width = plan, plan.width
        make = MATRICES[plan.matrix]
        halves = plan.rows == "(B, T, 2, D / 2)"
        seen = width // 2 if halves else width
        if plan.attention:
            self.qkv, self.out = make(width, 3 * width), make(width, width)
        self.norm = NORMS[plan.norm](seen)
        self.up, self.down = make(seen, 2 * width), make(2 * width, seen)
        if plan.gain in ("scalar", "vector"):
            shape = () if plan.gain == "scalar" else (width,)
            self.gain = nn.Parameter(torch.ones(shape))

    def attended(self, hidden_BTD: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden_BTD).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed)
        return out

    def fed(self, value: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(self.norm(value))))
        return out

    def reshaped(self, hidden_BTD: Tensor) -> Tensor:
        """The feed-forward layers on rows of this plan's shape."""
        rows, width = self.plan.rows, self.plan.width
        if rows == "(B T, D)":
            return self.fed(hidden_BTD.reshape(-1, width)).view_as(hidden_BTD)
        if rows == "(B, T, 2, D / 2)":
            return self.fed(hidden_BTD.unflatten(-1, (2, -1))).flatten(2)
        if rows == "(T, B, D)":  # contiguous, because Conv1D takes a view
            return self.fed(hidden_BTD.transpose(0, 1).contiguous()).transpose(0, 1)
        if rows == "(T B, D)":
            value_TBD = hidden_BTD.transpose(0, 1)
            return self.fed(value_TBD.reshape(-1, width)).view_as(value_TBD).transpose(0, 1)
        return self.fed(hidden_BTD)

    def forward(self, hidden_BTD: Tensor, first_BTD: Tensor | None = None) -> Tensor:
        if first_BTD is not None:
            hidden_BTD = hidden_BTD + 0.5 * first_BTD
        if self.plan.attention:
            hidden_BTD = hidden_BTD + self.attended(hidden_BTD)
        gain = self.gain if self.plan.gain in ("scalar", "vector") else 1.0
        return hidden_BTD + gain * self.reshaped(hidden_BTD)


class RandomModel(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, width = plan, plan.width
        kind = "Linear without a bias" if plan.head == "(B T, D)" else plan.head
        if plan.head_first:
            self.head = MATRICES[kind](width, VOCABULARY)
        self.token = nn.Embedding(VOCABULARY, width)
        if plan.positions == "bare":
            self.position = nn.Parameter(torch.zeros(LENGTH, width))
        elif plan.positions != "none":
            self.position = nn.Embedding(LENGTH, width)
        num_blocks = 1 if plan.reused else plan.depth
        self.blocks = nn.ModuleList(RandomBlock(plan) for _ in range(num_blocks))
        if plan.gain == "of the model":
            self.gains = nn.Parameter(torch.ones(plan.depth))
        if plan.last_norm:
            self.last = NORMS[plan.norm](width)
        if not plan.head_first:
            self.head = MATRICES[kind](width, VOCABULARY)
        if plan.tie == "weight" and isinstance(self.head, nn.Linear):
            self.head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if any(f"{name}.".startswith(f"{place}.") for place in plan.frozen):
                parameter.requires_grad_(False)

    def embedded(self, token_BT: Tensor) -> Tensor:
        hidden_BTD: Tensor = self.token(token_BT)
        place_T, positions = torch.arange(token_BT.shape[1]), self.plan.positions
        if positions == "bare":
            return hidden_BTD + self.position[: len(place_T)]
        if positions == "none":
            return hidden_BTD
        if positions == "unsqueezed":
            return hidden_BTD + self.position(place_T).unsqueeze(0)
        shape = {"(T,)": (-1,), "(1, T)": (1, -1), "(B, T)": (len(token_BT), -1)}[positions]
        index = place_T.expand(len(token_BT), -1) if positions == "(B, T)" else place_T.view(shape)
        return hidden_BTD + self.position(index)

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        skip, first_BTD, outputs = self.plan.skip, hidden_BTD, []
        for index in range(self.plan.depth):
            block = self.blocks[0 if self.plan.reused else index]
            if skip == "U-net" and index >= 2:
                hidden_BTD = hidden_BTD + 0.5 * outputs[self.plan.depth - 1 - index]
            if self.plan.gain == "of the model":
                hidden_BTD = self.gains[index] * hidden_BTD
            hidden_BTD = block(hidden_BTD, first_BTD if skip == "embedding" else None)
            outputs.append(hidden_BTD)
        if skip == "sum":
            return torch.stack(outputs).sum(dim=0)
        return hidden_BTD + first_BTD if skip == "input" else hidden_BTD

    def forward(self, token_BT: Tensor) -> Tensor:
        hidden_BTD = self.through_blocks(self.embedded(token_BT))
        if self.plan.last_norm:
            hidden_BTD = self.last(hidden_BTD)
        if self.plan.elsewhere and isinstance(self.blocks[-1].up, nn.Linear):
            layer = self.blocks[-1].up
            extra = F.linear(hidden_BTD[..., : layer.in_features], layer.weight)
            hidden_BTD = hidden_BTD + extra[..., : self.plan.width].tanh()
        if self.plan.tie == "functional":
            logits_BTV = hidden_BTD @ self.token.weight.T
        elif self.plan.head == "(B T, D)":
            logits_BTV = self.head(hidden_BTD.flatten(0, 1)).unflatten(0, token_BT.shape)
        else:
            logits_BTV = self.head(hidden_BTD)
        return 15 * torch.tanh(logits_BTV / 15) if self.plan.soft_cap else logits_BTV


def build(plan: Plan) -> nn.Module:
    """The model of a plan; twins when it is called again."""
    model = randomised(RandomModel(plan), plan.seed)
    return model.to(getattr(torch, plan.dtype))


def batches(plan: Plan) -> list[Tensor]:
    return [some_tokens(*size) for size in plan.sizes]


def tolerance(plan: Plan) -> float:
    """Two orders of rounding to float32 differ in the seventh digit."""
    return 1e-4 if plan.dtype == "float32" or plan.norm in ROUNDS else 1e-10


def trains(plan: Plan) -> bool:
    """Whether a loss has any gradient at all."""
    model = build(plan)
    return any(p.requires_grad for p in model.parameters()) and bool(
        nll(model, batches(plan)[0]).requires_grad
    )
