"""FLOPs counted from shapes against those that torch counts as they run."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dograph.bench.flops import count_flops
from dograph.models.build import build_model
from dograph.models.presets import PRESETS

SAMPLES, TOKENS = 3, 24


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_every_product_is_counted(preset):
    model = build_model(preset, vocab_size=500, seq_len=TOKENS, dropout=0.0, seed=0)
    token_BT = torch.arange(SAMPLES * TOKENS).view(SAMPLES, TOKENS)
    counter = FlopCounterMode(display=False)
    # Unfused, so that every product of attention is seen, and none is made twice.
    with counter, sdpa_kernel(SDPBackend.MATH):
        model(token_BT).sum().backward()
    shape = PRESETS[preset]
    counted = count_flops(model, shape, SAMPLES, TOKENS)
    # Some versions of Hugging Face make LLaMA's angles by a product of positions and frequencies.
    angles = counter.get_flop_counts().get("LlamaRotaryEmbedding", {})
    assert counter.get_total_flops() - sum(angles.values()) == counted.step
    assert counted.step == 3 * (counted.matrices + counted.attention)


def test_a_product_by_hand():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    counted = count_flops(model, PRESETS["tiny"], 7, 11)
    assert counted.matrices == 2 * 77 * (15 + 10)
    assert counted.attention == 2 * (2 * 77 * 11 * 64) * 2  # two products, two layers
