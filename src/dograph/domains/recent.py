"""The last batches' domains and sources: how far the two agree, as a metric only."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dograph.domains.agreement import agreement

BATCHES = 10


class Recent:
    """Labels of the last ten batches; one batch is too small to tell agreement from chance."""

    def __init__(self, num_domains: int, num_sources: int = 64) -> None:
        self.num_domains, self.num_sources = num_domains, num_sources
        self.batches: list[tuple[Tensor, Tensor]] = []

    def add(self, label_B: Tensor, source_B: Tensor) -> None:
        self.batches = [*self.batches[-(BATCHES - 1) :], (label_B, source_B)]

    def agreement(self, batches: int = BATCHES) -> tuple[Tensor, Tensor]:
        """NMI and purity over the last batches, as one."""
        device = self.batches[-1][0].device
        label_N = torch.cat([label_B.to(device) for label_B, _ in self.batches[-batches:]])
        source_N = torch.cat([source_B.to(device) for _, source_B in self.batches[-batches:]])
        return agreement(label_N, source_N, self.num_domains, self.num_sources)

    def state_dict(self) -> dict[str, Any]:
        held = {
            f"{what}/{i}": batch[k]
            for i, batch in enumerate(self.batches)
            for k, what in enumerate(("label", "source"))
        }
        return {"num_sources": self.num_sources, **held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_sources = state["num_sources"]
        held = range(len(state) // 2)
        self.batches = [(state[f"label/{i}"], state[f"source/{i}"]) for i in held]
