"""docs/nanogpt.md: its blocks in loops of the shape of nanoGPT's and nanochat's.

Shapes: B samples, T tokens, D width, V vocabulary.
"""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dograph import DoGraph, Sketcher
from trainers import furthest, parameters

PAGE = (Path(__file__).parents[3] / "docs" / "nanogpt.md").read_text()
V, D, T, MICRO, ACCUMULATION, STEPS, SAVED = 31, 16, 10, 8, 3, 5, 2


def blocks(title):
    """The code of a section."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


class Attention(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.qkv, self.out = linear(D, 3 * D), linear(D, D)

    def forward(self, x_BTD):
        q, k, v = self.qkv(x_BTD).unflatten(2, (3, 2, -1)).transpose(1, 3).unbind(2)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class GPT(nn.Module):
    """nanoGPT's: positions without an axis of samples, a tied output layer, logits and loss."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.attention = Attention(nn.Linear)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.lm_head = nn.Linear(D, V, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        x = x + self.attention(self.norms[0](x))
        logits = self.lm_head(self.norms[2](x + self.mlp(self.norms[1](x))))
        if targets is None:
            return logits[:, [-1]], None
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss


class Cast(nn.Linear):
    """nanochat's linear layer: the weight in the precision of the input."""

    def __init__(self, num_in, num_out):
        super().__init__(num_in, num_out, bias=False)

    def forward(self, x):
        return F.linear(x, self.weight.to(dtype=x.dtype))


class ChatGPT(nn.Module):
    """nanochat's: bare norms, scaled residuals, a cap on the logits, the loss of each token."""

    def __init__(self):
        super().__init__()
        self.wte, self.attention = nn.Embedding(V, D), Attention(Cast)
        self.up, self.down, self.lm_head = Cast(D, 4 * D), Cast(4 * D, D), Cast(D, V)
        self.resid_lambdas = nn.Parameter(torch.ones(2))

    def forward(self, idx, targets=None, loss_reduction="mean"):
        def norm(x):
            return F.rms_norm(x, (D,))

        x = norm(self.wte(idx))
        x = self.resid_lambdas[0] * x + self.attention(norm(x))
        x = self.resid_lambdas[1] * x + self.down(F.relu(self.up(norm(x))).square())
        logits = 15 * torch.tanh(self.lm_head(norm(x)) / 15)
        if targets is None:
            return logits
        given = logits.flatten(0, 1), targets.flatten()
        return F.cross_entropy(*given, ignore_index=-1, reduction=loss_reduction)


def batches(start=0):
    """Rows of three kinds, some of one token alone, one batch after another."""
    for i in range(start, 1000):
        draw = torch.Generator().manual_seed(i)
        low_B = 10 * torch.randint(3, (MICRO, 1), generator=draw)
        token_BT = low_B + torch.randint(10, (MICRO, T + 1), generator=draw)
        token_BT = torch.where(low_B == 20, 20, token_BT)
        yield token_BT[:, :-1], token_BT[:, 1:]


class Loop:
    """The names of a training script, its set-up and its update."""

    def __init__(self, kind, state=None, accumulation=ACCUMULATION):
        torch.manual_seed(0)
        self.model = ChatGPT() if kind == "nanochat" else GPT()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        self.step = 0
        setup, *loops = blocks(kind)
        self.update = loops[0 if accumulation > 1 else 1]
        self.names = {"torch": torch, "model": self.model, "ctx": nullcontext(), "ddp": False}
        self.names |= {"init_from": "scratch" if state is None else "resume"}
        self.names |= {"gradient_accumulation_steps": accumulation, "checkpoint": state}
        self.names["grad_accum_steps"] = accumulation
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.step = state["step"]
        source = batches(self.step * accumulation)
        self.names["get_batch"] = lambda split: next(source)
        self.names["train_loader"] = ((x, y, {}) for x, y in source)
        X, Y = next(source)
        self.names |= {"X": X, "Y": Y, "x": X, "y": Y}
        exec(setup, self.names)
        if state is not None and kind == "nanochat":
            self.names["mixer"].load_state_dict(state["mixer"])

    def run(self, until):
        """Gradients of every step."""
        gradients = []
        while self.step < until:
            self.names |= {"iter_num": self.step, "step": self.step}
            exec(self.update, self.names)
            gradients.append({n: p.grad.clone() for n, p in self.model.named_parameters()})
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
        return gradients

    def state(self):
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {"model": model, "mixer": self.names["mixer"].state_dict(), "step": self.step}


def losses(model, x, y):
    """Without the page: the mean loss of each row alone."""
    found = []
    for x_T, y_T in zip(x, y, strict=True):
        output = model(x_T[None], y_T[None])
        found.append(output[1] if isinstance(output, tuple) else output)
    return torch.stack(found)


def by_hand(kind, accumulation):
    """One backward per sample, the whole batch weighted at once, then a weighted backward."""
    torch.manual_seed(0)
    model, mixer, source = ChatGPT() if kind == "nanochat" else GPT(), DoGraph(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    sketcher, gradients = Sketcher(model, mode="reference"), []
    for step in range(STEPS):
        x, y = (
            torch.cat(parts)
            for parts in zip(*(next(source) for _ in range(accumulation)), strict=True)
        )
        with sketcher.record(x, step):
            output = model(x, y) if kind == "nanoGPT" else (model(x),)
            loss_B = F.cross_entropy(output[0].mT, y, reduction="none").mean(dim=1)
            weight_B = mixer.weigh(sketcher.signals(loss_B))
        (weight_B * losses(model, x, y)).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    assert (len(weight_B) * weight_B - 1).abs().max() > 0.05  # weights that are not equal
    return model, gradients


@pytest.mark.parametrize(
    ("kind", "accumulation"),
    [("nanoGPT", ACCUMULATION), ("nanoGPT", 1), ("nanochat", ACCUMULATION)],
)
def test_the_changed_loop_has_the_gradients_of_one_by_hand(kind, accumulation):
    loop = Loop(kind, accumulation=accumulation)
    gradients = loop.run(STEPS)
    model, expected = by_hand(kind, accumulation)
    for one, other in zip(gradients, expected, strict=True):
        assert furthest(one, other) < 1e-6
    assert furthest(parameters(loop.model), parameters(model)) < 1e-6


@pytest.mark.parametrize("kind", ["nanoGPT", "nanochat"])
def test_the_changed_loop_resumes_to_the_bit(kind):
    whole = Loop(kind)
    whole.run(SAVED)
    again = Loop(kind, state=whole.state())
    whole.run(STEPS)
    again.run(STEPS)
    assert furthest(parameters(again.model), parameters(whole.model)) == 0.0


def test_a_loss_scaler_is_refused_before_the_first_update():
    loop, scaler = Loop("nanoGPT"), torch.amp.GradScaler("cpu")
    loop.names |= {"iter_num": 0}
    exec(loop.update, loop.names)
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.unscale_(loop.optimizer)
