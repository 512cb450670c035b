"""torch.compile in one graph: the same sketches and gradients, and the same matrix products.

Shapes: B samples, T tokens, K sketch.
"""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._ops import OpOverload

from dograph.sketch.sketcher import Sketcher

WEIGHT_B = torch.tensor([0.3, -0.1, 0.0, 0.5, 0.3])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Backwards:
    """An eager backend that keeps the backward graphs it is given."""

    def __init__(self):
        self.graphs = []
        self.backend = aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=self.keep
        )

    def keep(self, graph, _):
        self.graphs.append(graph.graph)
        return make_boxed_func(graph.forward)

    def count(self, *names):
        called = [n.target for n in self.graphs[-1].nodes if isinstance(n.target, OpOverload)]
        return sum(target.overloadpacket.__name__ in names for target in called)

    @property
    def tangents(self):
        return sum(
            n.op == "placeholder" and n.name.startswith("tangents") for n in self.graphs[-1].nodes
        )


def assert_as_reference(tiny, model, token_BT, backend, mode):
    """Sketches and gradients of two steps, each with its own projection."""
    whole = tiny.PerSample(model)
    compiled = torch.compile(whole, fullgraph=True, backend=backend)
    sketcher = Sketcher(whole, mode=mode, dim=80, refresh="step")
    for step in range(2):
        expected, expected_gradients = tiny.run(
            whole,
            token_BT,
            WEIGHT_B,
            loss=lambda model, token_BT: model(token_BT),
            mode="reference",
            refresh="step",
            step=step,
        )
        with sketcher.record(token_BT, step):
            sketch = sketcher.sketch(compiled(token_BT))
            sketch.backward(WEIGHT_B)
        assert tiny.error(sketch.sketch_BK, expected.sketch_BK) < 1e-5, step
        assert tiny.gradient_error(tiny.gradients(whole), expected_gradients) < 1e-5, step


@pytest.mark.slow
def test_full_in_one_graph(tiny, token_BT):
    """5 matrices: each its input's gradient, two projections, one product over tokens; the head's
    output gradient is hashed. Two tables: one projection, one product over tokens. What flows back
    is the loss' gradient alone.
    """
    kept = Backwards()
    model = tiny.plain(dtype=torch.float32)
    assert_as_reference(tiny, model, token_BT, kept.backend, "full")
    assert len(kept.graphs) == 1
    assert kept.count("mm", "addmm") == 3 * 5 - 1 + 2
    assert kept.count("bmm", "baddbmm") == 5 + 2
    assert kept.tangents == 1


def test_twopass_in_one_graph(tiny, token_BT):
    """One backward graph serves both passes, so it also has the head's weight gradient."""
    kept = Backwards()
    model = tiny.plain(layers=0, dtype=torch.float32)
    assert_as_reference(tiny, model, token_BT, kept.backend, "twopass")
    assert len(kept.graphs) == 1
    assert kept.count("mm", "addmm") == 3 + 1 + 1
    assert kept.count("bmm", "baddbmm") == 1 + 2
    assert kept.tangents == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["full", "twopass", "exact"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_inductor(tiny, token_BT, name, mode):
    options = {"norms": "hugging face"} if name == "llama" else {}
    model = tiny.build[name](dtype=torch.float32, **options)
    assert_as_reference(tiny, model, token_BT, "inductor", mode)
