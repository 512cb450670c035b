"""Per-sample gradients beside Opacus', which computes them by hooks, on an untied model."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dograph.sketch.sketcher import Sketcher

opacus = pytest.importorskip("opacus", reason="opacus is a development dependency")


class Untied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(40, 16)
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 24)
        self.rms = nn.RMSNorm(24)
        self.down = nn.Linear(24, 16, bias=False)
        self.head = nn.Linear(16, 40)

    def forward(self, token_BT):
        hidden = self.token(token_BT)
        hidden = hidden + self.down(self.rms(F.gelu(self.up(self.norm(hidden)))))
        return self.head(hidden)


def losses(model, token_BT):
    logits = model(token_BT)[:, :-1]
    nll = F.cross_entropy(logits.flatten(0, 1), token_BT[:, 1:].flatten(), reduction="none")
    return nll.view(len(token_BT), -1).mean(dim=1)


@pytest.mark.filterwarnings("ignore")
def test_per_sample_gradients_equal_opacus():
    torch.manual_seed(0)
    model = Untied().double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    token_BT = torch.randint(40, (6, 9))
    sketcher = Sketcher(model, mode="exact", projection="none")
    with sketcher.record(token_BT):
        ours = sketcher.sketch(losses(model, token_BT)).pending.args[0].args[0]

    hooked = opacus.GradSampleModule(model, loss_reduction="sum")
    losses(hooked, token_BT).sum().backward()
    theirs = {name.removeprefix("_module."): p.grad_sample for name, p in hooked.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-10, atol=1e-12)
