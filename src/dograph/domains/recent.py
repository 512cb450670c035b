"""The last batches' domains and sources: how far the two agree, as a metric only."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dograph.domains.agreement import agreement_of_counts

BATCHES = 10


class Recent:
    """Labels of the last ten batches; one batch is too small to tell agreement from chance."""

    def __init__(self) -> None:
        self.num_sources = 64  # until a plan knows the run's
        self.batches: list[tuple[Tensor, Tensor]] = []

    def add(self, label_B: Tensor, source_B: Tensor) -> None:
        self.batches = [*self.batches[-(BATCHES - 1) :], (label_B, source_B)]

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


def agreement_of(
    batches: Sequence[tuple[Tensor, Tensor]], num_domains: int, num_sources: int
) -> tuple[Tensor, Tensor]:
    """NMI and purity, each of all these batches as one and of the last alone; on the CPU."""
    label_N, source_N = (torch.cat(parts) for parts in zip(*batches, strict=True))
    num_sources = max(num_sources, int(source_N.max()) + 1)
    cell_N, size = label_N * num_sources + source_N, num_domains * num_sources
    last_B = cell_N[-len(batches[-1][0]) :]
    count_2X = torch.stack([cell.bincount(minlength=size) for cell in (cell_N, last_B)])
    return agreement_of_counts(count_2X.view(2, num_domains, num_sources).double())
