"""Families of Hugging Face models: sketched rightly; their norms compute the same.

Shapes: B samples, T tokens.
"""

import importlib

import pytest
import torch
import transformers

from dograph.sketch.cover import rule_of
from dograph.sketch.rules import NormRule


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
def test_families_of_hugging_face_are_right(tiny, token_BT, weight_B, name, mode):
    model, weight_B = of_hugging_face(tiny, name), weight_B.float()
    reference, _ = tiny.run(model, token_BT, weight_B, mode="reference")
    sketch, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
    assert tiny.error(sketch.sketch_BK, reference.sketch_BK) < 1e-5
    assert tiny.gradient_error(gradients, tiny.autograd(model, token_BT, weight_B)) < 1e-5


NORMS = ("Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3", "SmolLM3", "Granite")
OTHERS = ("Gemma", "Gemma2", "Gemma3", "Olmo2")  # they cast after the weight, or add 1 to it


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [*NORMS, *OTHERS])
def test_norms_of_hugging_face_compute_what_they_compute(family, dtype):
    """Found by trying them out; with the parameters out of the graph, bit by bit the same."""
    place = f"transformers.models.{family.lower()}.modeling_{family.lower()}"
    draw = torch.Generator().manual_seed(0)
    module = vars(importlib.import_module(place))[f"{family}RMSNorm"](16, eps=3e-4).to(dtype)
    module.weight.data = torch.randn(16, generator=draw).to(dtype)
    value = torch.randn(2, 5, 16, generator=draw).to(dtype)
    rule = rule_of("norm", module, {"weight": "norm.weight"}, {})
    assert isinstance(rule, NormRule) == (family in NORMS)
    rule.defers, rule.shape = True, (2, 5)
    output = rule.forward(value.clone().requires_grad_())
    assert torch.equal(output, module(value))
    assert output.dtype == module(value).dtype
