"""Families of Hugging Face models: sketched rightly, or refused; their norms compute the same.

Shapes: B samples, T tokens.
"""

import importlib

import pytest
import torch
import transformers

from dograph.errors import ConfigError
from dograph.sketch.rules import RMS_NORM_OFFSETS, NormRule
from dograph.sketch.sketcher import Sketcher


def of_hugging_face(tiny, name):
    config = getattr(transformers, f"{name}Config")(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
        pad_token_id=None,
        use_cache=False,
    )
    return tiny.randomised(getattr(transformers, f"{name}ForCausalLM")(config))


@pytest.mark.parametrize(
    "name",
    [
        "Mistral",
        "Qwen2",  # biases beside LLaMA's layers
        "Qwen3",  # norms over the width of a head
        "Gemma",  # norms by 1 + weight, an embedding that scales
    ],
)
@pytest.mark.parametrize("mode", ["full", "twopass"])
def test_families_of_hugging_face_are_right_or_refused(tiny, token_BT, weight_B, name, mode):
    model, weight_B = of_hugging_face(tiny, name), weight_B.float()
    try:
        Sketcher(model, mode=mode, dim=80)
    except ConfigError:
        assert name == "Gemma"
        return
    reference, _ = tiny.run(model, token_BT, weight_B, mode="reference")
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
    assert tiny.error(sketch.sketch_BK, reference.sketch_BK) < 1e-5
    assert tiny.gradient_error(gradients, tiny.autograd(model, token_BT, weight_B)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", sorted(RMS_NORM_OFFSETS))
def test_norms_of_hugging_face_compute_what_they_compute(norm, dtype):
    """With the parameters out of the graph; a norm by 1 + weight rounds that sum in bfloat16."""
    family = norm.removesuffix("RMSNorm").removesuffix("LayerNorm").lower()
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    draw = torch.Generator().manual_seed(0)
    module = vars(modeling)[norm](16).to(dtype)
    module.weight.data = torch.randn(16, generator=draw).to(dtype)
    value = torch.randn(2, 5, 16, generator=draw).to(dtype)
    rule = NormRule("norm", module, {"weight": "norm.weight"}, wide=False)
    room = 2**-6 if RMS_NORM_OFFSETS[norm] and dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(rule.detached(value), module(value), rtol=room, atol=0.0)
