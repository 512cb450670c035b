"""Compiled region by region: the same step, one graph a kind of region, in every mode."""

import functools
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters

from dograph.mixers.base import Mixer
from dograph.models.build import build_model
from dograph.models.loss import compile_regions, regions
from dograph.sketch.sketcher import Sketcher

LAYERS = 3
MODES = ("full", "topdown", "head", "exact", "twopass")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def model(request):
    from dograph.models import presets

    small = {"layers": LAYERS, "width": 32, "feed_forward": 64, "heads": 4}
    base = presets.PRESETS["tiny" if request.param == "gpt2" else "llama-tiny"]
    shape = presets.Shape(
        **{**{n: getattr(base, n) for n in base.__slots__}, **small, "kv_heads": 4}
    )
    with mock.patch.dict(presets.PRESETS, {"small": shape}):
        return build_model("small", vocab_size=50, seq_len=8, dropout=0.0, seed=0)


def compiled(model):
    """By a backend that compiles nothing and traces everything, forward and backward."""
    with mock.patch.object(torch, "compile", functools.partial(torch.compile, backend="aot_eager")):
        compile_regions(model)


class ByNorm(Mixer):
    needs = frozenset({"sketch"})

    def weigh(self, signals):
        return signals.sketch_BK.norm(dim=1).softmax(dim=0)


def step(model, mode, number):
    token_BT = torch.randint(
        50, (4, 8), generator=torch.Generator().manual_seed(number), device="cpu"
    )
    model.zero_grad()
    if mode == "plain":
        loss_B = model(token_BT)
        loss_B.mean().backward()
        return loss_B.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}
    sketcher = step.sketchers.setdefault(
        id(model),
        Sketcher(model, mode=mode, dim=80, top_blocks=1, head=model.head, refresh="step"),
    )
    with sketcher.record(token_BT, number):
        loss_B = model(token_BT)
        weight_B = sketcher.backward(loss_B, ByNorm())
    return weight_B, {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize(
    "mode",
    ["plain", "full", *(pytest.param(m, marks=pytest.mark.slow) for m in MODES if m != "full")],
)
def test_a_compiled_step_is_the_step(model, mode):
    step.sketchers = {}
    expected = [step(model, mode, number) for number in range(3)]
    step.sketchers = {}
    compiled(model)
    with torch._dynamo.config.patch(error_on_recompile=mode not in ("topdown",)):
        got = [step(model, mode, number) for number in range(3)]
    for (value_B, gradients), (expected_B, expected_gradients) in zip(got, expected, strict=True):
        torch.testing.assert_close(value_B, expected_B)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected_gradients[name], msg=name)
    assert not counters["graph_break"]
    # Blocks share a graph; those below a cut have another than those above.
    assert counters["stats"]["unique_graphs"] == (4 if mode == "topdown" else 3)


def test_regions_are_all_but_the_embeddings(model):
    parts = list(regions(model))
    assert len(parts) == LAYERS + 2
    assert parts[-1] is model.head
    inside = {id(p) for part in parts for p in part.parameters()}
    outside = {n for n, p in model.named_parameters() if id(p) not in inside}
    assert all("wte" in n or "wpe" in n or "embed" in n or "lm_head" in n for n in outside)


def test_names_and_files_stay(model):
    names = [name for name, _ in model.named_parameters()]
    saved = set(model.state_dict())
    compiled(model)
    assert [name for name, _ in model.named_parameters()] == names
    assert set(model.state_dict()) == saved


def test_uncompiled_runs_as_written(model):
    compiled(model)
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        model(torch.zeros(2, 8, dtype=torch.int64))
    assert counters["stats"]["unique_graphs"] == 0
