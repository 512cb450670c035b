"""The control of a comparison: DoGraph with the domain labels permuted within every batch.

    dograph compare recipe.yaml --mixers dograph,permuted=benchmarks.permuted:PermutedLabels

Domains have the sizes that K-means gave them and random samples, so a gain that remains is not due
to which samples belong together. Everything else is the recipe's.

Shapes: B samples, K sketch.
"""

import torch
from torch import Tensor

from dograph import DoGraph
from dograph.domains.partition import partition
from dograph.rng import stream
from dograph.types import Domains, Signals


class PermutedLabels(DoGraph):
    def _clustered(self, signals: Signals) -> tuple[Tensor, Tensor, Domains | None]:
        sketch_BK, finite, domains = super()._clustered(signals)
        if domains is not None:
            order_B = stream(self.options.seed, "permuted", signals.step).permutation(
                len(sketch_BK)
            )
            label_B = domains.label_B[torch.as_tensor(order_B, device=sketch_BK.device)]
            domains = partition(sketch_BK, label_B, len(domains.share_M))
        return sketch_BK, finite, domains
