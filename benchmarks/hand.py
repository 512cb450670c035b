"""A plain loop written by hand, which the trainer's plain step is judged by.

What one would write for the same shapes: modules of its own, nn.Linear, causal
scaled_dot_product_attention, a compiled cross entropy over the whole (padded) vocabulary, autocast,
clip_grad_norm_, fused AdamW. No losses per sample, no weights, no check for non-finite numbers, no
metrics.

Shapes: B samples, T tokens, D width, H heads, N = B T, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.bench.arms import Arm, BenchOptions
from dograph.models.build import PAD_TO, build_model
from dograph.models.loss import PerSampleLoss
from dograph.models.presets import PRESETS, Shape
from dograph.train.step import Lap, Stopwatch, build_optimizer
from dograph.types import Batch

Batches = Callable[[int], Batch]  # by step


def open_model(options: BenchOptions, device: torch.device) -> PerSampleLoss:
    """The model of every arm, with the same weights in each."""
    with device:  # initialise on the device: a CPU takes long for a large model
        run, sizes = options.run, {"vocab_size": options.vocab_size}
        sizes |= {"seq_len": run.data.seq_len, "seed": run.seed}
        model = build_model(run.model.preset or "", dropout=0.0, **sizes).to(device)
    return model.train()


def open_hand(
    options: BenchOptions, batches: Batches, device: torch.device, *, whole: bool = False
) -> Arm:
    """The loop, from the same weights as the other arms; `whole`: compiled as one graph."""
    config = options.config(None)
    rows = -(-options.vocab_size // PAD_TO) * PAD_TO
    with device:
        model = HandModel(PRESETS[config.model.preset or ""], rows, config.data.seq_len)
    copy_weights(model, open_model(options, device).model)
    if config.train.compile and whole:
        model.compile(dynamic=False)
    elif config.train.compile:  # one graph for all blocks and one for the ending
        for part in (*model.blocks, model.ending):
            part.forward = torch.compile(part.forward, dynamic=False)
    parameters, watch = list(model.parameters()), Stopwatch(device)
    optimizer, half = build_optimizer(model, config.optim), config.train.half
    done = count()  # steps so far

    def step() -> list[Lap]:
        watch.start()
        token_BT = batches(next(done)).token_BT.to(device, non_blocking=True)
        parts = token_BT.split(config.train.micro_batch_size or config.train.batch_size)
        for part in parts:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = model(part)
            watch.lap("forward")
            (loss / len(parts)).backward()
            watch.lap("backward")
        nn.utils.clip_grad_norm_(parameters, config.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        watch.lap("update")
        return watch.laps

    return Arm(step, model)


class Gpt2Block(nn.Module):
    """LayerNorm, attention, LayerNorm, feed-forward with tanh GELU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up = nn.Linear(width, shape.feed_forward)
        self.down = nn.Linear(shape.feed_forward, width)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(hidden_BTD)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden_BTD = hidden_BTD + self.out(mixed.transpose(1, 2).flatten(2))
        inner = F.gelu(self.up(self.norm2(hidden_BTD)), approximate="tanh")
        result: Tensor = hidden_BTD + self.down(inner)
        return result


class LlamaBlock(nn.Module):
    """RMSNorm, grouped-query attention with rotary positions, RMSNorm, gated feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.feed_forward
        self.head_width = width // shape.heads
        narrow = shape.kv_heads * self.head_width
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        linear = partial(nn.Linear, bias=False)
        self.query, self.key = linear(width, width), linear(width, narrow)
        self.value, self.out = linear(width, narrow), linear(width, width)
        self.gate, self.up = linear(width, inner), linear(width, inner)
        self.down = linear(inner, width)

    def forward(self, hidden_BTD: Tensor, cos_Td: Tensor, sin_Td: Tensor) -> Tensor:
        normed = self.norm1(hidden_BTD)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )

        def turned(value_BHTd: Tensor) -> Tensor:
            """Rotary positions, in the precision of the queries and keys."""
            first, second = value_BHTd.chunk(2, dim=-1)
            half_turn, kind = torch.cat((-second, first), dim=-1), value_BHTd.dtype
            return value_BHTd * cos_Td.to(kind) + half_turn * sin_Td.to(kind)

        mixed = F.scaled_dot_product_attention(
            turned(query), turned(key), value, is_causal=True, enable_gqa=True
        )
        hidden_BTD = hidden_BTD + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norm2(hidden_BTD)
        result: Tensor = hidden_BTD + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return result


class Ending(nn.Module):
    """The last norm, the output layer and the mean cross entropy."""

    def __init__(self, norm: nn.Module, width: int, vocab_size: int) -> None:
        super().__init__()
        self.norm, self.head = norm, nn.Linear(width, vocab_size, bias=False)

    def forward(self, hidden_BTD: Tensor, target_BT: Tensor) -> Tensor:
        logits_NV = self.head(self.norm(hidden_BTD)).float().flatten(0, 1)
        return F.cross_entropy(logits_NV, target_BT.flatten(), ignore_index=-100)


class HandModel(nn.Module):
    """A decoder of a named shape: tokens in, the mean loss out."""

    def __init__(self, shape: Shape, vocab_size: int, seq_len: int) -> None:
        super().__init__()
        self.shape, gpt2 = shape, shape.family == "gpt2"
        width, block = shape.width, Gpt2Block if gpt2 else LlamaBlock
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max(shape.positions, seq_len), width) if gpt2 else None
        self.blocks = nn.ModuleList([block(shape) for _ in range(shape.layers)])
        norm = nn.LayerNorm(width) if gpt2 else nn.RMSNorm(width, eps=1e-6)
        self.ending = Ending(norm, width, vocab_size)
        if shape.tied:
            self.ending.head.weight = self.tokens.weight
        half = width // shape.heads // 2
        turn_d = shape.rope_theta ** -(torch.arange(half) / half)
        angle_Td = torch.outer(torch.arange(seq_len).float(), turn_d).repeat(1, 2)
        self.register_buffer("cos_Td", angle_Td.cos(), persistent=False)
        self.register_buffer("sin_Td", angle_Td.sin(), persistent=False)

    def forward(self, token_BT: Tensor) -> Tensor:
        hidden_BTD = self.tokens(token_BT)
        extra: tuple[Any, ...] = (self.cos_Td, self.sin_Td)
        if self.positions is not None:
            place_T = torch.arange(token_BT.shape[1], device=token_BT.device)
            hidden_BTD, extra = hidden_BTD + self.positions(place_T), ()
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, *extra)
        target_BT = F.pad(token_BT[:, 1:], (0, 1), value=-100)
        loss: Tensor = self.ending(hidden_BTD, target_BT)
        return loss


# Hugging Face's names of a block's layers, in the order of ours.
_GPT2 = ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
_LLAMA = (
    *("input_layernorm", "post_attention_layernorm"),
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@torch.no_grad()
def copy_weights(hand: HandModel, model: Any) -> None:
    """Give `hand` the weights of a Hugging Face model of the same shape."""
    gpt2, base = hand.shape.family == "gpt2", model.base_model
    names = _GPT2 if gpt2 else _LLAMA
    pairs: list[tuple[nn.Module, Any]] = [(hand.tokens, model.get_input_embeddings())]
    if hand.positions is not None:
        pairs.append((hand.positions, base.wpe))
    pairs.append((hand.ending.norm, base.ln_f if gpt2 else base.norm))
    pairs.append((hand.ending.head, model.get_output_embeddings()))
    for block, theirs in zip(hand.blocks, base.h if gpt2 else base.layers, strict=True):
        pairs += zip(block.children(), map(theirs.get_submodule, names), strict=True)
    for own, theirs in pairs:
        for name, parameter in own.named_parameters():
            given = theirs.get_parameter(name)
            on_rows = type(theirs).__name__ == "Conv1D" and name == "weight"
            parameter.copy_(given.T if on_rows else given)
