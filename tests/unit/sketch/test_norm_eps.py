"""Norms of small inputs, where eps is most of the divisor: the rules must use the layer's own.

Shapes: B samples, T tokens.
"""

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

WIDTH, EPS = 32, 0.05
NORMS = {
    "LayerNorm": (lambda: nn.LayerNorm(WIDTH, eps=EPS), torch.float64, 1e-10),
    "RMSNorm": (lambda: nn.RMSNorm(WIDTH, eps=EPS), torch.float64, 1e-10),
    "RMSNorm, eps of its dtype": (lambda: nn.RMSNorm(WIDTH), torch.float64, 1e-10),
    "LlamaRMSNorm": (lambda: LlamaRMSNorm(WIDTH, eps=EPS), torch.float32, 1e-5),
    "GemmaRMSNorm": (lambda: GemmaRMSNorm(WIDTH, eps=EPS), torch.float32, 1e-5),
}


@pytest.mark.parametrize("mode", ["full", "exact", "twopass"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_small_inputs(tiny, token_BT, weight_B, name, mode):
    build, dtype, tolerance = NORMS[name]
    model = nn.Sequential(nn.Embedding(64, WIDTH), build(), nn.Linear(WIDTH, 64))
    model = tiny.randomised(model).to(dtype)
    model[0].weight.data *= 0.1  # squares of 2e-4, far below eps
    weight_B = weight_B.to(dtype)
    expected = tiny.autograd(model, token_BT, weight_B)
    reference, _ = tiny.run(model, token_BT, weight_B, mode="reference")
    sketch, got = tiny.run(model, token_BT, weight_B, mode=mode)
    assert tiny.gradient_error(got, expected) < tolerance
    assert tiny.error(sketch.loss_B, tiny.nll(model, token_BT)) < tolerance
    assert tiny.error(sketch.sketch_BK, reference.sketch_BK) < 10 * tolerance
