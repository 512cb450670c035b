"""Scopes: domains of one batch, of a period of batches, or of the stream of all batches.

    batch    K-means on every world batch, as in the paper's appendix; no identity over time
    period   K-means once every `every` steps on all their sketches (the paper says epoch)
    stream   persistent domains that follow the model

Shapes: B samples, K sketch, M domains, P pooled samples.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.domains.kmeans import SMALLEST_NORM, KMeans
from dograph.domains.partition import partition
from dograph.errors import ConfigError
from dograph.types import Domains

FIT_BATCHES = 10  # that K-means of a stream is run on


class Scope:
    """Assigns samples to domains. This one is scope batch: every batch has its own domains."""

    def __init__(self, cluster: KMeans) -> None:
        self.cluster = cluster

    def assign(self, sketch_BK: Tensor, step: int, projection: int) -> Domains | None:
        """The domains of these samples; None while none are known."""
        return self.cluster.domains(sketch_BK, step)

    def observe(self, sketch_BK: Tensor, step: int) -> None:
        """Update the domains with a batch, for the next step."""

    def locate(self, sketch_BK: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """Domains of other samples, without an update: label_B, and closeness_BM to each centroid.

        Greater is nearer, -inf for domains without samples. None while no domains are known.
        In scope batch these samples are clustered among themselves.
        """
        label_B = self.cluster(sketch_BK, step)
        centroid_MK = self.cluster.centroids(sketch_BK, label_B)
        return label_B, closeness(sketch_BK, centroid_MK, self.cluster.normalise)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""


class PeriodScope(Scope):
    """Domains from all sketches of a period, used in the next one."""

    def __init__(self, cluster: KMeans, every: int) -> None:
        super().__init__(cluster)
        self.every = every
        self.pool: list[Tensor] = []
        self.centroid_MK: Tensor | None = None
        self.domains: Domains | None = None
        self.projection: int | None = None

    def assign(self, sketch_BK: Tensor, step: int, projection: int) -> Domains | None:
        if self.projection != projection:
            require_lasting("period", self.projection, projection, self.every)
            self.projection, self.pool = projection, []
            self.centroid_MK = self.domains = None
        if self.domains is None or (located := self.locate(sketch_BK, step)) is None:
            return None
        return replace(self.domains.to(sketch_BK.device), label_B=located[0])

    def locate(self, sketch_BK: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        if self.centroid_MK is None:
            return None
        self.centroid_MK = self.centroid_MK.to(sketch_BK.device)
        near_BM = closeness(sketch_BK, self.centroid_MK, self.cluster.normalise)
        return near_BM.argmax(dim=1), near_BM

    def observe(self, sketch_BK: Tensor, step: int) -> None:
        self.pool.append(sketch_BK)
        if len(self.pool) < self.every:
            return
        pool_PK, self.pool = torch.cat([s.to(sketch_BK.device) for s in self.pool]), []
        label_P = self.cluster(pool_PK, step)
        centroid_MK = self.cluster.centroids(pool_PK, label_P)
        if self.centroid_MK is not None:
            order_M = matched(self.centroid_MK, centroid_MK)
            label_P, centroid_MK = order_M.argsort()[label_P], centroid_MK[order_M]
        self.centroid_MK = centroid_MK
        self.domains = partition(pool_PK, label_P, self.cluster.num_domains)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"projection": self.projection, **_pool_state(self.pool)}
        if self.domains is not None:
            state["centroid_MK"] = self.centroid_MK
            state |= {f"domains/{n}": getattr(self.domains, n) for n in Domains.__slots__}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.projection, self.pool = state["projection"], _pool_of(state)
        if "centroid_MK" in state:
            self.centroid_MK = state["centroid_MK"]
            self.domains = Domains(**{n: state[f"domains/{n}"] for n in Domains.__slots__})


def _pool_state(pool: list[Tensor]) -> dict[str, Tensor]:
    return {f"pool/{i}": sketch_BK for i, sketch_BK in enumerate(pool)}


def _pool_of(state: Mapping[str, Any]) -> list[Tensor]:
    """The batches of a pool, in their order."""
    names = (name for name in state if name.startswith("pool/"))
    return [state[name] for name in sorted(names, key=lambda name: int(name[5:]))]


def require_lasting(scope: str, old: int | None, new: int, needed: int) -> None:
    """Refuse a projection that changed (`old`, `new`: first steps) before domains were formed."""
    if old is not None and 0 < new - old <= needed:
        raise ConfigError(
            f"scope={scope} needs sketches under one projection: domains are formed from {needed} "
            f"steps, and this projection changed after {new - old}; set refresh to never, or to "
            "some hundreds of steps, or scope to batch"
        )


class StreamScope(Scope):
    """Domains whose centroids follow the model over the whole run.

    A sketch is divided by its norm, centred on the running mean of such directions and divided by
    its norm again; it belongs to the centroid with the highest cosine. Counts, centroids, mean
    gradients and spreads are sums that decay with a half-life, so they are over thousands of
    samples. The first domains come from K-means on the last batches, and so do later ones if they
    fit better.
    """

    def __init__(self, cluster: KMeans, *, half_life: float = 70.0, refit_every: int = 25) -> None:
        super().__init__(cluster)
        self.refit_every, self.decay = refit_every, 0.5 ** (1 / half_life)
        self.index_M = torch.arange(cluster.num_domains)
        self._reset(projection=None)

    def _reset(self, projection: int | None) -> None:
        self.projection, self.seen = projection, 0
        self.pool: list[Tensor] = []
        self.sums: dict[str, Tensor] = {}

    def assign(self, sketch_BK: Tensor, step: int, projection: int) -> Domains | None:
        if projection != self.projection:
            require_lasting("stream", self.projection, projection, FIT_BATCHES)
            self._reset(projection)
        if (located := self.locate(sketch_BK, step)) is None:
            return None
        sums, count_M = self.sums, self.sums["count_M"]
        total, safe_M = count_M.sum(), count_M.clamp_min(1e-6)
        mean_MK = sums["gradient_MK"] / safe_M[:, None]
        spread_M, fourth_M = sums["spread_M"] / safe_M, sums["spread_square_M"] / safe_M
        return Domains(
            label_B=located[0],
            share_M=count_M / total,
            gram_MM=mean_MK @ mean_MK.T,
            square_M=sums["square_M"] / safe_M,
            spread_M=spread_M,
            spread_variance_M=fourth_M.addcmul(spread_M, spread_M, value=-1).clamp_min(0),
            scale=sums["square_M"].sum() / total,
        )

    def locate(self, sketch_BK: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        if "count_M" not in self.sums:
            return None
        self._move(sketch_BK.device)
        near_BM = self._cosines(self._directions(sketch_BK))
        return near_BM.argmax(dim=1), near_BM

    def observe(self, sketch_BK: Tensor, step: int) -> None:
        sketch_BK = sketch_BK.float()
        self._move(sketch_BK.device)
        self.seen += 1
        unit_BK = F.normalize(sketch_BK, eps=SMALLEST_NORM)
        unit_K, size = unit_BK.sum(dim=0), float(len(unit_BK))
        if "centre_K" in self.sums:
            self.sums["centre_K"] = torch.add(unit_K, self.sums["centre_K"], alpha=self.decay)
            self.sums["centre_count"] = self.decay * self.sums["centre_count"] + size
        else:
            self.sums |= {"centre_K": unit_K, "centre_count": unit_K.new_full((), size)}
        if "count_M" in self.sums:
            direction_BK = self._centred(unit_BK)
            if self.seen % self.refit_every == 0:
                self._refit(direction_BK, step)
            label_B = self._cosines(direction_BK).argmax(dim=1)
            added = self._sums_of(sketch_BK, direction_BK, label_B)
            for name, value in added.items():
                self.sums[name] = torch.add(value, self.sums[name], alpha=self.decay)
            self._reseed(sketch_BK, direction_BK)
        self.pool = [*self.pool[-(FIT_BATCHES - 1) :], sketch_BK]
        if "count_M" not in self.sums and len(self.pool) == FIT_BATCHES:
            self.sums |= self._fitted(step)

    def _move(self, device: torch.device) -> None:
        """A restored state is on the CPU."""
        self.index_M = self.index_M.to(device)
        self.sums = {name: value.to(device) for name, value in self.sums.items()}
        self.pool = [sketch_BK.to(device) for sketch_BK in self.pool]

    def _directions(self, sketch_BK: Tensor) -> Tensor:
        return self._centred(F.normalize(sketch_BK.float(), eps=SMALLEST_NORM))

    def _centred(self, unit_BK: Tensor) -> Tensor:
        return F.normalize(unit_BK - self.sums["centre_K"] / self.sums["centre_count"])

    def _cosines(self, direction_BK: Tensor) -> Tensor:
        return direction_BK @ F.normalize(self.sums["direction_MK"]).T

    def _sums_of(
        self, sketch_BK: Tensor, direction_BK: Tensor, label_B: Tensor
    ) -> dict[str, Tensor]:
        member_MB = (label_B == self.index_M[:, None]).to(sketch_BK.dtype)
        gradient_MK, count_M = member_MB @ sketch_BK, member_MB.sum(dim=1)
        if "count_M" in self.sums:  # distances to the mean as it was before this batch
            mean_MK = self.sums["gradient_MK"] / self.sums["count_M"].clamp_min(1e-6)[:, None]
        else:
            mean_MK = gradient_MK / count_M.clamp_min(1)[:, None]
        # The fourth power of a gradient soon leaves the range of float32: its sum is in float64.
        distance_B = (sketch_BK - mean_MK[label_B]).square().sum(dim=1, dtype=torch.float64)
        distance_MB = member_MB * distance_B
        return {
            "count_M": count_M,
            "direction_MK": member_MB @ direction_BK,
            "gradient_MK": gradient_MK,
            "square_M": member_MB @ sketch_BK.square().sum(dim=1),
            "spread_M": distance_MB.sum(dim=1, dtype=torch.float32),
            "spread_square_M": distance_MB @ distance_B,
        }

    def _fitted(self, step: int) -> dict[str, Tensor]:
        """Domains by K-means on the last batches."""
        pool_PK = torch.cat(self.pool)
        direction_PK = self._directions(pool_PK)
        return self._sums_of(pool_PK, direction_PK, self.cluster(direction_PK, step))

    def _refit(self, direction_BK: Tensor, step: int) -> None:
        """Take the domains of K-means if they fit a batch that is new to both better than ours."""
        new, old_MK = self._fitted(step), self.sums["direction_MK"]
        old_B, new_B = (
            (direction_BK @ F.normalize(c).T).amax(dim=1) for c in (old_MK, new["direction_MK"])
        )
        gain_B = new_B - old_B
        better = gain_B.mean() > gain_B.std(correction=0) / len(gain_B) ** 0.5
        order_M = matched(old_MK, new["direction_MK"])
        for name, value in new.items():
            self.sums[name] = torch.where(better, value[order_M], self.sums[name])

    def _reseed(self, sketch_BK: Tensor, direction_BK: Tensor) -> None:
        """Restart a domain that has lost its samples at the sample farthest from its centroid."""
        sums, count_M = self.sums, self.sums["count_M"]
        mass = count_M.sum() / (2 * len(count_M))
        needed = count_M.amin() < mass / 2
        # Not direction_BK[far]: indexing by a scalar on the device waits for the device.
        far_1 = self._cosines(direction_BK).amax(dim=1).argmin(keepdim=True)
        direction_K, sketch_K = (
            t.index_select(0, far_1).squeeze(0) for t in (direction_BK, sketch_BK)
        )
        one_M = (self.index_M == count_M.argmin()) & needed
        square = sketch_K.square().sum(dtype=torch.float64)
        mass_square = mass * square
        fresh = {
            "count_M": mass,
            "direction_MK": mass * direction_K,
            "gradient_MK": mass * sketch_K,
            "square_M": mass_square,
            "spread_M": mass_square,
            "spread_square_M": mass_square * square,
        }
        for name, value in fresh.items():
            where = one_M[:, None] if sums[name].dim() == 2 else one_M
            sums[name] = torch.where(where, value, sums[name])

    def state_dict(self) -> dict[str, Any]:
        sums = {f"sums/{name}": value for name, value in self.sums.items()}
        own = {"projection": self.projection, "seen": self.seen}
        return {**own, **sums, **_pool_state(self.pool)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.projection, self.pool = state["projection"], _pool_of(state)
        self.seen = state["seen"]
        self.sums = {n[5:]: value for n, value in state.items() if n.startswith("sums/")}


def closeness(point_BK: Tensor, centroid_MK: Tensor, normalise: bool) -> Tensor:
    """Cosine to each centroid, or minus the squared distance; -inf for an empty domain."""
    known_M = torch.isfinite(centroid_MK).all(dim=1)
    centroid_MK = torch.where(known_M[:, None], centroid_MK, 0.0)
    cross_BM = point_BK @ centroid_MK.T
    square_B1, square_M = point_BK.square().sum(dim=1)[:, None], centroid_MK.square().sum(dim=1)
    if normalise:
        near_BM = cross_BM / (square_B1.sqrt() * square_M.sqrt()).clamp_min(1e-30)
    else:
        near_BM = 2 * cross_BM - square_B1 - square_M
    return torch.where(known_M, near_BM, -torch.inf)


def matched(old_MK: Tensor, new_MK: Tensor) -> Tensor:
    """The new centroid for each old one: pairs by decreasing cosine, ties by index."""
    old_MK, new_MK = (F.normalize(torch.where(torch.isfinite(c), c, 0.0)) for c in (old_MK, new_MK))
    cosine_MM = old_MK @ new_MK.T
    num = len(cosine_MM)
    order_M = torch.zeros(num, dtype=torch.int64, device=cosine_MM.device)
    index_M = torch.arange(num, device=cosine_MM.device)
    for _ in range(num):
        best = cosine_MM.argmax()
        row, col = best // num, best % num
        order_M = torch.where(index_M == row, col, order_M)
        taken_MM = (index_M[:, None] == row) | (index_M == col)
        cosine_MM = cosine_MM.masked_fill(taken_MM, -torch.inf)
    return order_M
