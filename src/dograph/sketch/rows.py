"""Sketches of given rows, for looking at a model rather than training it.

Shapes: N rows, b rows at once, T tokens, K sketch.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from dograph.sketch.assembly import Sketch
from dograph.sketch.sketcher import Sketcher


def sketch_rows(
    sketcher: Sketcher,
    token_NT: Tensor,
    *,
    at_once: int,
    step: int = 0,
    half: bool = False,
) -> Iterator[tuple[Tensor, Sketch]]:
    """Loss and sketch of each row, `at_once` rows at a time; `half` runs the model in bfloat16.

    The model maps tokens to one loss a row. Nothing of it changes: no gradient is left behind, no
    random number is drawn (dropout is off), every layer's mode is as before.
    """
    device = next(iter(sketcher.parameters.values())).device
    with resting(sketcher.model), torch.enable_grad():
        for token_bT in token_NT.split(at_once):
            token_bT = token_bT.to(device)
            with ExitStack() as taps:
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    taps.enter_context(sketcher.record(token_bT, step))
                    loss_b = sketcher.model(token_bT)
                sketch = sketcher.sketch(loss_b, keep=False)
            yield loss_b.detach(), sketch


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """Inside it the model is in evaluation mode; afterwards every layer is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
