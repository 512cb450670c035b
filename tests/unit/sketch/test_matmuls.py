"""What a sketch costs, counted in matrix products: no weight gradient is made before its weights.

Shapes: B samples, T tokens.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dograph.sketch import gradients
from dograph.sketch.sketcher import Sketcher

MATMULS = ("mm", "addmm", "bmm", "baddbmm")
LAYERS = 2
MATRICES = {"gpt2": 4 * LAYERS + 1, "llama": 7 * LAYERS + 1}  # the head is one of them
TABLES = {"gpt2": 2, "llama": 1}
ATTENTION = 4 * LAYERS  # q k' and its product with v, each with two gradients


class Matmuls(TorchDispatchMode):
    """Shapes of the products that pass, batched ones apart; a vector by a matrix is not one."""

    def __init__(self):
        super().__init__()
        self.plain, self.batched = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in MATMULS and 1 not in result.shape:
            (self.batched if "b" in name[:2] else self.plain).append(tuple(result.shape))
        return result

    @property
    def counts(self):
        return len(self.plain), len(self.batched)


def weight_shapes(model):
    """Shapes of weight gradients, from either side, one for each use of a weight matrix."""
    shapes = Counter()
    for module in model.modules():
        if type(module).__name__ in ("Linear", "Conv1D"):
            shapes[tuple(sorted(module.weight.shape))] += 1
    return shapes


def products(shapes, wanted):
    found = Counter(tuple(sorted(shape)) for shape in shapes)
    return Counter({shape: found[shape] for shape in wanted if found[shape]})


@pytest.fixture
def small_BT(tiny):
    """7 samples of 11 tokens: no product of activations has the shape of a weight."""
    return torch.randint(64, (7, 11), generator=tiny.generator("matmuls"))


@pytest.mark.parametrize("mode", ["full", "twopass"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_sketch_makes_no_weight_gradient(tiny, small_BT, name, mode):
    """Each matrix: its input's gradient, two projections, one product over tokens. A table: one
    projection, one product over tokens. The head's output gradient is hashed, without a product.
    """
    model = tiny.build[name](layers=LAYERS, attention="eager")
    sketcher = Sketcher(model, mode=mode, dim=80)
    with sketcher.record(small_BT):
        loss_B = tiny.nll(model, small_BT)
        with Matmuls() as sketching:
            sketch = sketcher.sketch(loss_B)
    matrices, tables = MATRICES[name], TABLES[name]
    assert sketching.counts == (3 * matrices - 1 + tables, matrices + tables + ATTENTION)
    assert not products(sketching.plain, weight_shapes(model))
    with Matmuls() as weighting:
        sketch.backward(torch.full((7,), 1 / 7, dtype=torch.float64))
    assert products(weighting.plain, weight_shapes(model)) == weight_shapes(model)
    if mode == "full":
        assert weighting.counts == (matrices, 0)
    else:
        model.zero_grad()
        loss_B = tiny.nll(model, small_BT)
        with Matmuls() as plain:
            loss_B.mean().backward()
        assert weighting.counts == plain.counts


def test_topdown_makes_no_weight_gradient_above_the_cut_and_is_plain_below(tiny, small_BT):
    model = tiny.gpt2(layers=LAYERS, attention="eager")
    sketcher = Sketcher(model, mode="topdown", dim=80, top_blocks=1)
    with sketcher.record(small_BT):
        loss_B = tiny.nll(model, small_BT)
        with Matmuls() as sketching:
            sketch = sketcher.sketch(loss_B)
        with Matmuls() as weighting:
            sketch.backward(torch.full((7,), 1 / 7, dtype=torch.float64))
    assert sketching.counts == (3 * 5 - 1, 5 + 4)
    assert not products(sketching.plain, weight_shapes(model))
    # The head and the block above the cut: 5 weight gradients. The block below: 4, and 4 inputs'.
    assert weighting.counts == (5 + 8, 4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("narrow", "broad"), [(80, 640), (640, 80), (128, 128)])
def test_large_products_by_onednn(narrow, broad, threads):
    """Exact to rounding, the same every time, and in the memory layout of PyTorch's own."""
    generator = torch.Generator().manual_seed(0)
    first_BTx = torch.randn(4, 256, narrow, generator=generator)
    second_BTy = torch.randn(4, 256, broad, generator=generator)
    matrix_xy = torch.randn(narrow, broad, generator=generator)
    first_Nx, second_Ny = first_BTx.flatten(0, 1), second_BTy.flatten(0, 1)
    assert gradients.suits_onednn(first_Nx, second_Ny) == torch.backends.mkldnn.is_available()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = [
            (
                gradients.multiplied(first_BTx, matrix_xy),
                gradients.summed_over_rows(first_Nx, second_Ny),
            )
            for _ in range(2)
        ]
    finally:
        torch.set_num_threads(before)
    exact = first_BTx.double() @ matrix_xy.double(), first_Nx.double().T @ second_Ny.double()
    for result, again, wanted in zip(*results, exact, strict=True):
        assert torch.equal(result, again)
        assert result.dtype == torch.float32
        assert result.is_contiguous()
        torch.testing.assert_close(result.double(), wanted, rtol=0, atol=2e-4)


def test_other_products_are_pytorchs_own():
    """Small ones, where a call of oneDNN costs more than it saves, and other precisions."""
    for size, dtype in ((64, torch.float32), (512, torch.float64), (512, torch.bfloat16)):
        first, second = (torch.randn(size, size, dtype=dtype) for _ in range(2))
        assert not gradients.suits_onednn(first, second)
        assert torch.equal(gradients.multiplied(first, second), first @ second)
        assert torch.equal(gradients.summed_over_rows(first, second), first.T @ second)
