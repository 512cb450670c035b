"""The weight gradient of the sketched cross entropy in bfloat16: summed over chunks in float32.

Shapes: B samples, T tokens, D width, V vocabulary.
"""

import pytest
import torch

from dograph.sketch import head
from dograph.sketch.head import head_projection, sketched_cross_entropy
from dograph.sketch.projection import Projection

NUM_TOKENS = 1024  # a sum of equal terms in bfloat16 stops growing at 256 of them


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_many_small_terms_add_up(monkeypatch, dtype):
    """One token at a time, all alike, for weights of bfloat16 and for those under autocast."""
    monkeypatch.setattr(head, "_CHUNK", 1)
    hidden_BTD = torch.tensor([1.0, -0.5, 2.0], dtype=torch.bfloat16).expand(1, NUM_TOKENS, 3)
    weight_VD = torch.zeros(4, 3, dtype=dtype, requires_grad=True)
    target_BT = torch.full((1, NUM_TOKENS), 2)
    projection = head_projection(weight_VD.bfloat16(), Projection(dim=4))
    loss_B, _ = sketched_cross_entropy(hidden_BTD, weight_VD, target_BT, projection)
    loss_B.sum().backward()
    error_V = torch.tensor([0.25, 0.25, -0.75, 0.25])  # softmax of equal logits - one-hot
    expected_VD = torch.outer(error_V, hidden_BTD[0, 0].float())
    assert loss_B.dtype == torch.float32
    torch.testing.assert_close(weight_VD.grad.float(), expected_VD, rtol=0.01, atol=0)
