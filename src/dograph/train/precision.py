"""The precision that a run computes in; its weights stay float32."""

from contextlib import AbstractContextManager

import torch

from dograph.config import RunConfig


def autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[object]:
    """Inside it, forwards run in train.dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.train.half)
