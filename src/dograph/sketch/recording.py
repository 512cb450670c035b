"""Layers whose forward is replaced for a while, and models inside their wrappers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    while isinstance(model, DistributedDataParallel | torch._dynamo.OptimizedModule):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
    return model


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    # Through __dict__: a Module's own __setattr__ takes no heed of what was there.
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
