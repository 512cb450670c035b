"""What a DoGraph step reports, and its domain graph.

Metrics are written every few steps, and none of them decides anything: a step only keeps what they
are made of, some small tensors on the device, and the CPU works them out when they are read.

Shapes: B samples, K sketch, M domains.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dograph.config import RunConfig
from dograph.domains.agreement import agreement_of
from dograph.domains.graph import DomainGraph, build_graph
from dograph.domains.objectives import Objective
from dograph.mixers.base import Report
from dograph.types import Domains

if TYPE_CHECKING:
    from dograph.mixers.dograph import DoGraph


@dataclass(frozen=True, slots=True)
class _Known:
    """The domains of a step, and what their metrics are made of."""

    domains: Domains
    weight_M: Tensor
    objective: Objective
    keeps_identity: bool
    batches: list[tuple[Tensor, Tensor]]  # labels and sources of the last ones
    num_sources: int

    def tensors(self) -> list[Tensor]:
        held = [getattr(self.domains, field.name) for field in fields(Domains)]
        return [*held, self.weight_M, *(part for batch in self.batches for part in batch)]

    def metrics(self, host: Mapping[int, Tensor]) -> dict[str, float | Tensor]:
        """Worked out on the CPU. Domains without an identity are listed by falling weight."""
        weight_M = host[id(self.weight_M)]
        held = {field.name: getattr(self.domains, field.name) for field in fields(Domains)}
        domains = Domains(**{name: host[id(tensor)] for name, tensor in held.items()})
        order_M = listing(self.keeps_identity, weight_M)
        index_M = torch.arange(len(weight_M))
        count_M = (domains.label_B[:, None] == index_M).sum(dim=0)
        safe_M = weight_M.clamp_min(1e-30)
        report: dict[str, float | Tensor] = {
            "samples/domain": order_M.argsort()[domains.label_B],
            "domains/samples": count_M[order_M],
            "domains/share": domains.share_M[order_M],
            "domains/weight": weight_M[order_M],
            "domains/gradient_norm": domains.square_M.clamp_min(0).sqrt()[order_M],
            "domains/mean_norm": domains.gram_MM.diagonal().clamp_min(0).sqrt()[order_M],
            "weights/entropy_nats": -(weight_M * safe_M.log()).sum(),
            "weights/solver_residual": self.objective.residual(domains, weight_M),
        }
        if self.batches:
            batches = [
                (host[id(label_B)], host[id(source_B)]) for label_B, source_B in self.batches
            ]
            nmi_2, purity_2 = agreement_of(batches, len(weight_M), self.num_sources)
            report["domains/nmi"], report["domains/batch_nmi"] = nmi_2
            report["domains/purity"] = purity_2[0]
        return report


class DoGraphReport(Mapping[str, float | Tensor]):
    """Metrics of one step; reading one waits for the device and works all of them out."""

    def __init__(self, own: Mapping[str, Tensor], known: _Known | None) -> None:
        self._own, self._known = own, known
        self._metrics: dict[str, float | Tensor] | None = None

    def tensors(self) -> list[Tensor]:
        """What is still on the device."""
        return [*self._own.values(), *(self._known.tensors() if self._known else [])]

    def settle(self, host: Mapping[int, Tensor]) -> None:
        """Work the metrics out from the tensors as they are on the host."""
        if self._metrics is not None:
            return
        own = {name: host[id(tensor)] for name, tensor in self._own.items()}
        self._metrics = {
            "weights/max_times_equal": len(own["weight_B"]) * own["weight_B"].max(),
            "weights/gradient_norm_ratio": own["update_norm"] / own["mean_norm"].clamp_min(1e-30),
            "weights/fallback": 1.0 - own["finite"].float(),
            **(self._known.metrics(host) if self._known else {}),
        }
        self._own, self._known = {}, None

    def _read(self) -> dict[str, float | Tensor]:
        read_together([self])
        assert self._metrics is not None
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
    lazy = [report for report in reports if isinstance(report, DoGraphReport)]
    kinds: dict[Any, dict[int, Tensor]] = {}
    for tensor in (tensor for report in lazy for tensor in report.tensors()):
        kind = (tensor.dtype, tensor.shape, tensor.device)
        kinds.setdefault(kind, {})[id(tensor)] = tensor
    host: dict[int, Tensor] = {}
    for held in kinds.values():
        host |= zip(held, torch.stack(list(held.values())).cpu(), strict=True)
    for report in lazy:
        report.settle(host)


def describe(
    mixer: "DoGraph", sketch_BK: Tensor, weight_B: Tensor, finite: Tensor
) -> DoGraphReport:
    """Metrics of one step; those of domains are left out while none are known."""
    wide_BK = sketch_BK.float()
    own = {
        "weight_B": weight_B,
        "finite": finite,
        "mean_norm": wide_BK.mean(dim=0).norm(),
        "update_norm": (weight_B.to(wide_BK.dtype) @ wide_BK).norm(),
    }
    if mixer.domains is None or mixer.weight_M is None:
        return DoGraphReport(own, None)
    known = _Known(
        domains=mixer.domains,
        weight_M=mixer.weight_M,
        objective=mixer.objective,
        keeps_identity=mixer.scope.keeps_identity,
        batches=mixer.recent.batches,
        num_sources=mixer.recent.num_sources,
    )
    return DoGraphReport(own, known)


def listing(keeps_identity: bool, weight_M: Tensor) -> Tensor:
    """Which domain is listed as number 0, 1 and so on, in reports and in the graph."""
    if keeps_identity:
        return torch.arange(len(weight_M), device=weight_M.device)
    return weight_M.argsort(descending=True, stable=True)


def domain_graph(mixer: "DoGraph", sources: Sequence[str], step: int) -> DomainGraph | None:
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
        order_M=listing(mixer.scope.keeps_identity, weight_M),
    )


# What the objectives weigh by, as far as the table of domains shows it.
RULES = {
    "Precision": "weight ~ share x (gradient norm)^-q",
    "Robust": "weight ~ exp(mean norm / tau), norms in units of their average",
    "Alignment": "weight ~ agreement of the domain's mean gradient with the update",
    "Variance": "the weights that make the update shortest",
    "Uncertainty": "a short update from domains of little spread",
}


def reasons(mixer: "DoGraph", row: Mapping[str, float], step: int, config: RunConfig) -> list[str]:
    """Why the samples of a step counted what they did."""
    options, size = mixer.options, config.train.batch_size
    if "domains/0/mean_norm" not in row:
        return [
            f"no domains were known yet (scope {options.scope}): all {size} samples counted alike"
        ]
    objective = type(mixer.objective).__name__
    rule = RULES.get(objective, "an objective of your own")
    residual = row["weights/solver_residual"]
    told = [
        f"objective {objective.lower()}: {rule}; residual {residual:.2g}",
        f"scope {options.scope}: "
        + (
            "domains last, shares and norms are averages over time"
            if mixer.domains_last
            else "the domains are those of this batch alone, listed by falling weight"
        ),
    ]
    mixer.warm_up(config.train.steps)
    if step <= mixer.warmup_steps:
        told.append(f"warm-up until step {mixer.warmup_steps}: all {size} samples counted alike")
        return told
    if row["weights/fallback"]:
        told.append("some gradient was not finite: all samples counted alike")
        return told
    return told + _bounds(mixer, row, config)


def _bounds(mixer: "DoGraph", row: Mapping[str, float], config: RunConfig) -> list[str]:
    """From domain weights to sample weights, in the order in which it is done."""
    options, size = mixer.options, config.train.batch_size
    effective = row["weights/effective_samples"]
    if options.realise == "sampling":
        steps = ["domain weights change what is drawn (realise: sampling), not the loss"]
    else:
        steps = ["a sample counts its domain's weight over its domain's share"]
    if options.within == "unit":
        steps.append("divided by its own gradient norm (within: unit)")
    if options.keep_shares:
        steps.append("scaled so that each source keeps the share it was drawn with (keep_shares)")
    if options.cap is not None:
        steps.append(f"at most {options.cap:g} equal weights (cap)")
    if options.effective_floor is not None:
        floor = options.effective_floor
        # Weights of a micro-batch are held to the shares of domains, not to those in the batch.
        pieces = (config.train.micro_batch_size or size) < size
        lagged = pieces and config.sketch.accumulation == "lagged"
        mean = ", in the mean over batches" if lagged else ""
        steps.append(f"drawn towards 1 until {floor:.0%} of the samples are effective{mean}")
    return [", ".join(steps), f"effective samples: {effective:.1f} of {size}"]
