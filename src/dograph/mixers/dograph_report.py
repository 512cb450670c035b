"""The metrics of a DoGraph step, worked out when they are read.

Metrics are written every few steps, and none of them decides anything: a step only keeps what they
are made of, some small tensors on the device, and the CPU works them out when they are read.

Shapes: B samples, K sketch, M domains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dograph.domains.partition import agreement_of
from dograph.mixers.base import Report
from dograph.types import Domains

if TYPE_CHECKING:
    from dograph.mixers.dograph import DoGraph

Values = dict[str, float | Tensor]


class LateReport(Mapping[str, float | Tensor]):
    """Metrics of one step; reading one waits for the device and works all of them out."""

    def __init__(self, held: Mapping[str, Tensor], work_out: Callable[[Any], Values]) -> None:
        self.held = held  # what is still on the device
        self._work_out: Callable[[Any], Values] | None = work_out  # given `held`, on the host
        self._metrics: Values = {}

    def settle(self, host: Mapping[int, Tensor]) -> None:
        """Work the metrics out from the tensors as they are on the host, by their ids."""
        if self._work_out is not None:
            self._metrics = self._work_out({n: host[id(t)] for n, t in self.held.items()})
            self.held, self._work_out = {}, None

    def _read(self) -> Values:
        read_together([self])
        return self._metrics

    def __getitem__(self, name: str) -> float | Tensor:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def read_together(reports: Iterable[Report]) -> None:
    """Bring over what several reports are made of, in a few transfers; this waits for the device.

    Tensors of one kind come as one, and those that several reports hold come once.
    """
    late = [report for report in reports if isinstance(report, LateReport)]
    kinds: dict[Any, dict[int, Tensor]] = {}
    for tensor in (tensor for report in late for tensor in report.held.values()):
        kind = (tensor.dtype, tensor.shape, tensor.device)
        kinds.setdefault(kind, {})[id(tensor)] = tensor
    host: dict[int, Tensor] = {}
    for held in kinds.values():
        host |= zip(held, torch.stack(list(held.values())).cpu(), strict=True)
    for report in late:
        report.settle(host)


def step_report(
    mixer: "DoGraph", sketch_BK: Tensor, weight_B: Tensor, finite: Tensor
) -> LateReport:
    """Metrics of one step; those of domains are left out while none are known."""
    wide_BK = sketch_BK.float()
    held = {
        "weight_B": weight_B,
        "finite": finite,
        "mean_norm": wide_BK.mean(dim=0).norm(),
        "update_norm": (weight_B.to(wide_BK.dtype) @ wide_BK).norm(),
    }
    known, num_batches, num_sources = mixer.domains is not None, 0, mixer.num_sources
    if mixer.domains is not None and mixer.weight_M is not None:
        held |= {field.name: getattr(mixer.domains, field.name) for field in fields(Domains)}
        held["weight_M"], num_batches = mixer.weight_M, len(mixer.recent)
        for i, (label_B, source_B) in enumerate(mixer.recent):
            held |= {f"label/{i}": label_B, f"source/{i}": source_B}

    def work_out(host: dict[str, Tensor]) -> Values:
        report: Values = {
            "weights/max_times_equal": len(host["weight_B"]) * host["weight_B"].max(),
            "weights/gradient_norm_ratio": host["update_norm"] / host["mean_norm"].clamp_min(1e-30),
            "weights/fallback": 1.0 - host["finite"].float(),
        }
        if not known:
            return report
        weight_M = host["weight_M"]
        domains = Domains(**{field.name: host[field.name] for field in fields(Domains)})
        order_M, index_M = mixer.listing(weight_M), torch.arange(len(weight_M))
        count_M = (domains.label_B[:, None] == index_M).sum(dim=0)
        report |= {
            "samples/domain": order_M.argsort()[domains.label_B],
            "domains/samples": count_M[order_M],
            "domains/share": domains.share_M[order_M],
            "domains/weight": weight_M[order_M],
            "domains/gradient_norm": domains.square_M.clamp_min(0).sqrt()[order_M],
            "domains/mean_norm": domains.gram_MM.diagonal().clamp_min(0).sqrt()[order_M],
            "weights/entropy_nats": -(weight_M * weight_M.clamp_min(1e-30).log()).sum(),
            "weights/solver_residual": mixer.objective.residual(domains, weight_M),
        }
        if num_batches:
            batches = [(host[f"label/{i}"], host[f"source/{i}"]) for i in range(num_batches)]
            nmi_2, purity_2 = agreement_of(batches, len(weight_M), num_sources)
            report["domains/nmi"], report["domains/batch_nmi"] = nmi_2
            report["domains/purity"] = purity_2[0]
        return report

    return LateReport(held, work_out)
