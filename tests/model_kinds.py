"""Tiny models of the kinds that people train: nanoGPT, modded-nanogpt, nanochat, LitGPT and others.

Written after their architectures, a few numbers wide. None needs a class of dograph.

Shapes: B samples, T tokens, N = B T, V vocabulary, D width, H heads, k tokens at one position.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_zoo import HEADS, LENGTH, WIDTH, Block, Decoder
from verdicts import VOCABULARY


class NanoGPTLayerNorm(nn.Module):
    """nanoGPT's own, because PyTorch's had no switch for the bias."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, value: Tensor) -> Tensor:
        return F.layer_norm(value, self.weight.shape, self.weight, self.bias, 1e-5)


class NanoGPTBlock(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = NanoGPTLayerNorm(WIDTH, bias), NanoGPTLayerNorm(WIDTH, bias)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=bias)
        self.mlp_proj = nn.Linear(4 * WIDTH, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (p.view(size, length, HEADS, width // HEADS).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(size, length, width))
        out: Tensor = x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))
        return out


class NanoGPT(nn.Module):
    """wte and lm_head share one weight; children live in a ModuleDict."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(NanoGPTBlock(bias) for _ in range(2)),
                "ln_f": NanoGPTLayerNorm(WIDTH, bias),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        parts = self.transformer
        x = parts["wte"](idx) + parts["wpe"](torch.arange(idx.shape[1]))
        for block in parts["h"]:  # type: ignore[union-attr]
            x = block(x)
        out: Tensor = self.lm_head(parts["ln_f"](x))
        return out


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions over (B, T, H, size)."""
    half = x.shape[-1] // 2
    speed = torch.exp(-torch.arange(half, dtype=x.dtype))
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * speed
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class CastedLinear(nn.Linear):
    """modded-nanogpt's: the weight in the input's precision."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.type_as(x))


class ModdedBlock(nn.Module):
    """QK norm without weights, a value embedding mixed in, relu squared, scalar lambdas."""

    def __init__(self) -> None:
        super().__init__()
        self.qkvo = nn.ModuleList(CastedLinear(WIDTH, WIDTH) for _ in range(4))
        self.fc, self.proj = CastedLinear(WIDTH, 32), CastedLinear(32, WIDTH)
        self.lambdas = nn.Parameter(torch.tensor([1.0, 0.0]))
        self.value_lambda = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, value: Tensor, x0: Tensor) -> Tensor:
        x = self.lambdas[0] * x + self.lambdas[1] * x0
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (layer(norm(x)).view(shape) for layer in self.qkvo[:3])
        v = v + self.value_lambda * value.view(shape)
        q, k = rotated(norm(q)), rotated(norm(k))
        y = F.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (q, k, v)), is_causal=True
        )
        x = x + self.qkvo[3](y.transpose(1, 2).flatten(2))
        out: Tensor = x + self.proj(F.relu(self.fc(norm(x))).square())
        return out


class Modded(nn.Module):
    """modded-nanogpt's kind: value embeddings, U-net skips with weights, a soft cap on logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.value_embeds = nn.ModuleList(nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.blocks = nn.ModuleList(ModdedBlock() for _ in range(4))
        self.skip_weights = nn.Parameter(torch.ones(2))
        self.lm_head = CastedLinear(WIDTH, VOCABULARY)

    def forward(self, token_BT: Tensor) -> Tensor:
        x = x0 = norm(self.embed(token_BT))
        values = [table(token_BT) for table in self.value_embeds]
        skips = []
        for index, block in enumerate(self.blocks):
            if index >= 2:
                x = x + self.skip_weights[index - 2] * skips.pop()
            x = block(x, values[index % 2], x0)
            if index < 2:
                skips.append(x)
        logits = self.lm_head(norm(x))
        return 15 * torch.sigmoid(logits / 7.5)


class NanochatBlock(nn.Module):
    """Grouped queries, rotary positions, QK norm, relu squared; no norm has a weight."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.c_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.c_k, self.c_v = nn.Linear(WIDTH, size, bias=False), nn.Linear(WIDTH, size, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.c_fc, self.mlp_proj = (
            nn.Linear(WIDTH, 32, bias=False),
            nn.Linear(32, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        value = norm(x)
        q, k, v = (
            layer(value).unflatten(-1, (-1, WIDTH // HEADS))
            for layer in (self.c_q, self.c_k, self.c_v)
        )
        q, k = norm(rotated(q)), norm(rotated(k))
        y = F.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (q, k, v)), is_causal=True, enable_gqa=True
        )
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp_proj(F.relu(self.c_fc(norm(x))).square())
        return out


class Nanochat(nn.Module):
    """Untied, per-layer residual scalars, a norm after the embedding, logits capped by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "h": nn.ModuleList(NanochatBlock() for _ in range(2)),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.resid_lambdas = nn.Parameter(torch.ones(2))
        self.x0_lambdas = nn.Parameter(torch.zeros(2))

    def forward(self, idx: Tensor) -> Tensor:
        x = x0 = norm(self.transformer["wte"](idx))
        for index, block in enumerate(self.transformer["h"]):  # type: ignore[arg-type]
            x = block(self.resid_lambdas[index] * x + self.x0_lambdas[index] * x0)
        logits = self.lm_head(norm(x))
        return 15 * torch.tanh(logits / 15)


class LitRMSNorm(nn.Module):
    """LitGPT's: `add_unit_offset` scales by 1 + weight, as Gemma does."""

    def __init__(self, size: int, *, add_unit_offset: bool, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.add_unit_offset = eps, add_unit_offset

    def forward(self, x: Tensor) -> Tensor:
        x_normed = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + self.eps)
        weight = 1 + self.weight if self.add_unit_offset else self.weight
        return (x_normed * weight).to(x.dtype)


class LitBlock(nn.Module):
    """One matrix gives queries, keys and values group by group; a gated feed-forward layer."""

    def __init__(self, *, add_unit_offset: bool) -> None:
        super().__init__()
        self.norm_1 = LitRMSNorm(WIDTH, add_unit_offset=add_unit_offset)
        self.attn = nn.Linear(WIDTH, 2 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = LitRMSNorm(WIDTH, add_unit_offset=add_unit_offset)
        self.fc_1, self.fc_2 = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.mlp_proj = nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        size, length, _ = x.shape
        # One group of two query heads, a key and a value, each of half the width.
        qkv = self.attn(self.norm_1(x)).view(size, length, 1, 4, WIDTH // 2)
        q, k, v = (part.flatten(2, 3) for part in qkv.split((2, 1, 1), dim=3))
        q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (q, k, v)), is_causal=True, enable_gqa=True
        )
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        value = self.norm_2(x)
        out: Tensor = x + self.mlp_proj(F.silu(self.fc_1(value)) * self.fc_2(value))
        return out


class LitGPT(nn.Module):
    def __init__(self, *, add_unit_offset: bool = False) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)  # first, as LitGPT has it
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "h": nn.ModuleList(LitBlock(add_unit_offset=add_unit_offset) for _ in range(2)),
                "ln_f": LitRMSNorm(WIDTH, add_unit_offset=add_unit_offset),
            }
        )

    def forward(self, idx: Tensor) -> Tensor:
        x = self.transformer["wte"](idx) * math.sqrt(WIDTH)
        for block in self.transformer["h"]:  # type: ignore[union-attr]
            x = block(x)
        out: Tensor = self.lm_head(self.transformer["ln_f"](x))
        return out


class EinsumBlock(nn.Module):
    """Weights with an axis of heads, applied by einsum, as JAX code is translated."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Parameter(torch.zeros(3, WIDTH, HEADS, size))
        self.out = nn.Parameter(torch.zeros(HEADS, size, WIDTH))

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        parts = torch.einsum("btd,cdhs->cbhts", self.norm(hidden_BTD), self.qkv)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return hidden_BTD + torch.einsum("bhts,hsd->btd", mixed, self.out)


class Einsum(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EinsumBlock() for _ in range(2))


class BarePositions(Decoder):
    """Positions are a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        del self.position
        self.pos_embed = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))

    def embedded(self, token_BT: Tensor) -> Tensor:
        out: Tensor = self.token(token_BT) + self.pos_embed[:, : token_BT.shape[1]]
        return out


class Reused(Decoder):
    """One block three times over, as ALBERT does."""

    def __init__(self) -> None:
        super().__init__(layers=1)

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        for _ in range(3):
            hidden_BTD = self.blocks[0](hidden_BTD)
        return hidden_BTD


class FlatBlock(Block):
    """Its feed-forward layers, and their norm, see (B T, D)."""

    def forward(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden_BTD = hidden_BTD + self.attention(self.before(hidden_BTD), mask)
        value_ND = self.between(hidden_BTD.reshape(-1, WIDTH))
        return hidden_BTD + self.down(F.gelu(self.up(value_ND))).view_as(hidden_BTD)


class FlatTokens(Decoder):
    """The output layer sees (B T, D) as well."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FlatBlock() for _ in range(2))

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        logits_NV = self.head(self.last(hidden_BTD).flatten(0, 1))
        return logits_NV.view(*hidden_BTD.shape[:2], -1)


class Packed(Decoder):
    """Each row holds two documents: positions begin anew, attention stays inside."""

    def forward(self, token_BT: Tensor) -> Tensor:
        length = token_BT.shape[1]
        # Every row is cut at another place.
        cut_B = 2 + torch.arange(len(token_BT)) % (length - 3)
        place_T = torch.arange(length)
        document_BT = (place_T[None] >= cut_B[:, None]).long()
        position_BT = place_T[None] - document_BT * cut_B[:, None]
        same_BTT = document_BT[:, :, None] == document_BT[:, None, :]
        mask_BTT = same_BTT & (place_T[:, None] >= place_T[None, :])
        hidden_BTD = self.token(token_BT) + self.position(position_BT)
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, mask_BTT[:, None])
        return self.logits(hidden_BTD)


class LoraLinear(nn.Module):
    """A frozen Linear beside two small trained ones."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.base(value) + 0.5 * self.lora_B(self.lora_A(value))
        return out


def lora(*places: str) -> Decoder:
    """Trained adapters at these layers of every block, or at the output layer; else frozen."""
    model = Decoder().requires_grad_(False)
    for place in places:
        for parent in [model] if place == "head" else list(model.blocks):
            owner, _, name = place.rpartition(".")
            holder = parent.get_submodule(owner)
            setattr(holder, name, LoraLinear(getattr(holder, name)))
    return model


def frozen(*places: str) -> Decoder:
    """Modules or parameters that do not train."""
    model = Decoder()
    for name, parameter in model.named_parameters():
        if any(name == place or name.startswith(f"{place}.") for place in places):
            parameter.requires_grad_(False)
    return model


class SeveralTokens(Decoder):
    """Each position embeds k tokens (byte patches, codebooks) and sums them: indices (B, T, k)."""

    def embedded(self, token_BT: Tensor) -> Tensor:
        before_BT = token_BT.roll(1, dims=1)
        token_BTk = torch.stack((token_BT, before_BT, (token_BT + before_BT) % VOCABULARY), dim=2)
        out: Tensor = self.token(token_BTk).sum(dim=2)
        return out + self.position(torch.arange(token_BT.shape[1]))


class OnePerSample(Decoder):
    """A table looked up once a sample, (B,): a language or a domain."""

    def __init__(self) -> None:
        super().__init__()
        self.domain = nn.Embedding(4, WIDTH)

    def embedded(self, token_BT: Tensor) -> Tensor:
        out: Tensor = super().embedded(token_BT) + self.domain(token_BT[:, 0] % 4)[:, None]
        return out


class KeywordBlock(Block):
    """A signature of its own, and its input not the first argument."""

    def forward(self, mask: Tensor | None = None, hidden_states: Tensor | None = None) -> Tensor:  # type: ignore[override]
        assert hidden_states is not None
        return super().forward(hidden_states, mask)


class KeywordBlocks(Decoder):
    """Blocks are called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(KeywordBlock() for _ in range(2))

    def through_blocks(self, hidden_BTD: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_BTD = block(hidden_states=hidden_BTD, mask=None)
        return hidden_BTD


class GainBlock(Block):
    """Scalar gains on both branches, as CaiT's and ReZero's."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden_BTD = hidden_BTD + self.gain * self.attention(self.before(hidden_BTD), mask)
        out: Tensor = hidden_BTD + self.scale * self.down(F.gelu(self.up(self.between(hidden_BTD))))
        return out


class Gains(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GainBlock() for _ in range(2))
