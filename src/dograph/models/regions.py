"""torch.compile, region by region: every block, the norms between them and the loss.

Blocks are alike, so one is compiled and all run it: seconds where the whole model takes a minute,
and a step as fast (docs/cost.md). Modes of the sketch that cut the model do so between regions.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn

from dograph.models.loss import PerSampleLoss
from dograph.sketch.coverage import blocks_of

_SHAPES = 16  # graphs of one region: training and validation, tapped or not, last batches


def compile_regions(model: PerSampleLoss) -> None:
    """Compile the model's regions in place; the model's own structure and names stay."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SHAPES)
    for region in regions(model):
        # A static graph each: one for any shape would be slower for the shape that trains.
        region.forward = torch.compile(region.forward, dynamic=False)


def uncompiled() -> AbstractContextManager[object]:
    """Inside it regions run as written: for validation and probes, whose shapes vary."""
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def regions(model: PerSampleLoss) -> Iterator[nn.Module]:
    """What is compiled: blocks, layers beside them that have parameters, the head with its loss."""
    stack, blocks = blocks_of(model.model)
    parent = model.model.get_submodule(stack.rpartition(".")[0])
    yield from blocks
    for child in parent.children():
        beside = child is not blocks and not isinstance(child, nn.Embedding)
        if beside and next(child.parameters(), None) is not None:
            yield child
    yield model.head
