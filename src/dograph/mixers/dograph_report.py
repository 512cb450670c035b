"""What a DoGraph step reports, all of it still on the device, and its domain graph."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dograph.domains.graph_export import DomainGraph, build_graph
from dograph.mixers.base import Report

if TYPE_CHECKING:
    from dograph.mixers.dograph import DoGraph


def describe(mixer: "DoGraph", sketch_BK: Tensor, weight_B: Tensor, finite: Tensor) -> Report:
    """Metrics of one step; those of domains are left out while none are known.

    Batch-scope domains have no identity: theirs are listed by falling weight.
    """
    wide_BK, size = sketch_BK.float(), len(weight_B)
    weight_B = weight_B.to(wide_BK.dtype)
    mean_norm = wide_BK.mean(dim=0).norm()
    report: Report = {
        "weights/max_times_equal": size * weight_B.max(),
        "weights/gradient_norm_ratio": (weight_B @ wide_BK).norm() / mean_norm.clamp_min(1e-30),
        "weights/fallback": 1.0 - finite.float(),
    }
    domains, weight_M = mixer.domains, mixer.weight_M
    if domains is None or weight_M is None:
        return report
    index_M = torch.arange(len(weight_M), device=weight_M.device)
    count_M = (domains.label_B[:, None] == index_M).sum(dim=0)
    order_M = listing(mixer, weight_M)
    report["samples/domain"] = order_M.argsort()[domains.label_B]
    report["domains/samples"] = count_M[order_M]
    report["domains/share"] = domains.share_M[order_M]
    report["domains/weight"] = weight_M[order_M]
    report["domains/gradient_norm"] = domains.square_M.clamp_min(0).sqrt()[order_M]
    report["domains/mean_norm"] = domains.gram_MM.diagonal().clamp_min(0).sqrt()[order_M]
    safe_M = weight_M.clamp_min(1e-30)
    report["weights/entropy_nats"] = -(weight_M * safe_M.log()).sum()
    report["weights/solver_residual"] = mixer.objective.residual(domains, weight_M)
    if mixer.recent.batches:
        report["domains/nmi"], report["domains/purity"] = mixer.recent.agreement()
        report["domains/batch_nmi"] = mixer.recent.agreement(batches=1)[0]
    return report


def listing(mixer: "DoGraph", weight_M: Tensor) -> Tensor:
    """Which domain is listed as number 0, 1 and so on, in reports and in the graph."""
    if mixer.scope.keeps_identity:
        return torch.arange(len(weight_M), device=weight_M.device)
    return weight_M.argsort(descending=True, stable=True)


def domain_graph(mixer: "DoGraph", sources: list[str], step: int) -> DomainGraph | None:
    """The domains after `step` steps, None while none are known; this waits for the device.

    Sources are counted over the last batches, or over the last one where domains do not last.
    """
    domains, weight_M, batches = mixer.domains, mixer.weight_M, mixer.recent.batches
    if domains is None or weight_M is None or not batches:
        return None
    batches = batches if mixer.scope.keeps_identity else batches[-1:]
    device = weight_M.device
    return build_graph(
        domains,
        weight_M,
        torch.cat([label_B.to(device) for label_B, _ in batches]),
        torch.cat([source_B.to(device) for _, source_B in batches]),
        sources,
        step=step,
        order_M=listing(mixer, weight_M),
    )
