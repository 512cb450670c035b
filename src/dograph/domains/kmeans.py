"""K-means on the Gram of a batch: all restarts at once, nothing waits for the device.

Shapes: B samples, K sketch, M domains, R restarts, L trial seeds.

Products are in float64, so that a TF32 setting cannot round the differences in distances. Ties go
to the lowest index, as with argmin and argmax. On a GPU the restarts are a kernel
(dograph.kernels.kmeans); more than 1024 samples or 64 domains, and a CPU, use the code here.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.domains.partition import centred, partition
from dograph.errors import ConfigError
from dograph.kernels import Sorted, Space, usable
from dograph.rng import key64
from dograph.types import Domains

ITERATIONS = 20  # of Lloyd's algorithm, which rarely needs ten
REFILL_EVERY = 5  # iterations between checks for empty domains; the last one checks
SAME = 1e-13  # squared distances below this fraction of the points' squares are rounding errors
SMALLEST_NORM = 1e-20  # of a sketch that has a direction: squares of float32 end at 1e-45
RATIO = 0.6180339887498949  # golden ratio: its multiples modulo 1 are spread evenly
IN_REGISTERS = 128  # samples of which one program holds the Gram


class Clustering(NamedTuple):
    """Domains of a batch, numbered by decreasing size, then by their first sample."""

    label_B: Tensor  # int64
    inertia: Tensor  # (): sum of squared distances to the own centroid, in the space clustered


def races(size: int, num_domains: int, restarts: int, generator: torch.Generator) -> Tensor:
    """Exponential draws (M, R, L, B) for the seeds of every restart, in one call."""
    num_trials = 2 + int(math.log(num_domains))
    shape = (num_domains, restarts, num_trials, size)
    race_MRLB = torch.empty(shape, dtype=torch.float64, device=generator.device)
    return race_MRLB.exponential_(generator=generator)


def _in_order_of_value(point_BK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples sorted by a number computed from their entries; not finite ones set to 0 and last."""
    finite_B = torch.isfinite(point_BK.square().sum(dim=1))
    point_BK = torch.where(finite_B[:, None], point_BK, 0.0)
    place_K = torch.arange(1, point_BK.shape[1] + 1, dtype=torch.float64, device=point_BK.device)
    place_K = (place_K * RATIO).frac() - 0.5
    key_B = torch.where(finite_B, (point_BK * place_K).sum(dim=1), torch.inf)
    order_B = key_B.argsort(stable=True)
    return order_B, point_BK[order_B], finite_B[order_B]


def _sorted_space(point_BK: Tensor, normalise: bool) -> Sorted:
    """Samples in that order, their Gram and the space that is clustered."""
    order_B, point_BK, finite_B = _in_order_of_value(point_BK.double())
    raw_BB = point_BK @ point_BK.T
    return Sorted(order_B, raw_BB, finite_B.double(), _space(raw_BB, finite_B, normalise))


def _space(raw_BB: Tensor, finite_B: Tensor, normalise: bool) -> Space:
    """From the Gram of the samples as they are to that of centred or of unit ones.

    Centring by subtracting means from the Gram has an error of about 1e-16 of the samples' squares,
    so the rounding error is relative to these, not to the squares of the centred samples.
    """
    weight_B, square_B = finite_B.double(), raw_BB.diagonal()
    if normalise:
        weight_B = weight_B * (square_B > 0)
        norm_B = square_B.masked_fill(weight_B == 0, 1).sqrt()
        return Space(raw_BB / (norm_B[:, None] * norm_B), weight_B, SAME * weight_B, True)
    gram_BB = centred(raw_BB, weight_B)
    return Space(gram_BB * weight_B[:, None] * weight_B, weight_B, SAME * square_B, False)


def _restarted(space: Space, race_MRLB: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Labels (R, B) and inertia (R,) of every restart."""
    if usable(space.gram_BB, len(space.gram_BB), len(race_MRLB)):
        from dograph.kernels.kmeans import restarts_by_kernel

        return restarts_by_kernel(space, race_MRLB, iterations, REFILL_EVERY)
    num_domains = len(race_MRLB)
    label_RB = _plus_plus(space, race_MRLB)
    for left in reversed(range(iterations)):
        score_RBM = _scores(space, label_RB, num_domains)
        before_RB, label_RB = label_RB, score_RBM.argmin(dim=-1)
        if left % REFILL_EVERY == 0:
            label_RB = _fill_empty(space, label_RB, score_RBM)
        elif _has_settled(space, before_RB, label_RB, score_RBM):
            break
    score_RBM = _scores(space, label_RB, num_domains)
    return label_RB, _own_distances(space, label_RB, score_RBM).sum(dim=1)


def _plus_plus(space: Space, race_MRLB: Tensor) -> Tensor:
    """Labels by the nearest of greedily drawn seeds (Arthur and Vassilvitskii 2007).

    Each seed is the best of a few candidates drawn in proportion to the squared distance to the
    seeds so far. A draw is an exponential race: the least of E_i / p_i.
    """
    square_B, rounding_B = space.gram_BB.diagonal(), space.rounding_B
    between_BB = square_B[:, None] + square_B - 2 * space.gram_BB
    between_BB = between_BB.masked_fill(between_BB <= rounding_B[:, None] + rounding_B, 0)
    odds_RB = space.weight_B.expand(race_MRLB.shape[1], -1)
    nearest_RB = torch.full_like(odds_RB, torch.inf)
    label_RB = torch.zeros(odds_RB.shape, dtype=torch.int64, device=odds_RB.device)
    for domain, race_RLB in enumerate(race_MRLB):
        distance_RLB = between_BB[(race_RLB / odds_RB[:, None]).argmin(dim=-1)]
        remaining_RLB = torch.minimum(distance_RLB, nearest_RB[:, None])
        chosen_R11 = (remaining_RLB @ space.weight_B).argmin(dim=-1)[:, None, None]
        distance_RB = distance_RLB.take_along_dim(chosen_R11, dim=1).squeeze(1)
        label_RB = label_RB.masked_fill(distance_RB < nearest_RB, domain)
        nearest_RB = torch.minimum(distance_RB, nearest_RB)
        odds_RB = nearest_RB * space.weight_B
    return label_RB


def _scores(space: Space, label_RB: Tensor, num_domains: int) -> Tensor:
    """Squared distance of samples to centroids minus the samples' squares; infinite if empty."""
    domain_M = torch.arange(num_domains, device=label_RB.device)
    member_RBM = (label_RB[..., None] == domain_M) * space.weight_B[:, None]
    count_R1M = member_RBM.sum(dim=1, keepdim=True)
    share_RBM = member_RBM / count_R1M.clamp_min(1)
    cross_RBM = space.gram_BB @ share_RBM
    square_R1M = (share_RBM * cross_RBM).sum(dim=1, keepdim=True)
    if space.spherical:
        norm_R1M = square_R1M.clamp_min(0).sqrt()
        score_RBM = 1 - 2 * cross_RBM / norm_R1M.masked_fill(norm_R1M == 0, 1)
    else:
        score_RBM = torch.add(square_R1M, cross_RBM, alpha=-2)
    return score_RBM.masked_fill(count_R1M == 0, torch.inf)


def _own_distances(space: Space, label_RB: Tensor, score_RBM: Tensor) -> Tensor:
    """Squared distance of samples to the centroid of their domain; 0 for those of weight 0."""
    square_B = space.gram_BB.diagonal()
    own_RB = score_RBM.gather(2, label_RB[..., None]).squeeze(2) + square_B
    return own_RB.masked_fill((own_RB <= space.rounding_B) | (space.weight_B == 0), 0)


def _fill_empty(space: Space, label_RB: Tensor, score_RBM: Tensor) -> Tensor:
    """The k-th empty domain takes the k-th farthest sample, unless that lies on its centroid."""
    domain_M = torch.arange(score_RBM.shape[2], device=label_RB.device)
    member_RBM = (label_RB[..., None] == domain_M) & (space.weight_B[:, None] > 0)
    empty_RM = ~member_RBM.any(dim=1)
    own_RB = _own_distances(space, label_RB, score_RBM)
    place_RB = own_RB.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    turn_RM = (empty_RM.cumsum(dim=1) - 1).masked_fill(~empty_RM, -1)
    takes_RBM = (turn_RM[:, None] == place_RB[..., None]) & (own_RB[..., None] > 0)
    return torch.where(takes_RBM.any(dim=2), (takes_RBM * domain_M).sum(dim=2), label_RB)


def _has_settled(space: Space, before_RB: Tensor, label_RB: Tensor, score_RBM: Tensor) -> bool:
    """Whether no later iteration changes a label; unknown on a GPU, which would have to wait."""
    if label_RB.device.type != "cpu" or not torch.equal(before_RB, label_RB):
        return False
    return torch.equal(_fill_empty(space, label_RB, score_RBM), label_RB)


def _by_size(label_B: Tensor, finite_B: Tensor, num_domains: int) -> Tensor:
    """The same domains numbered by decreasing size, equal ones by their first sample."""
    size = len(label_B)
    domain_M = torch.arange(num_domains, device=label_B.device)
    index_B1 = torch.arange(size, device=label_B.device)[:, None]
    member_BM = (label_B[:, None] == domain_M) & finite_B[:, None]
    first_M = torch.where(member_BM, index_B1, size).amin(dim=0)
    key_M = member_BM.sum(dim=0) * (size + 1) - first_M
    rank_M = key_M.argsort(descending=True, stable=True).argsort()
    return rank_M[label_B].masked_fill(~finite_B, 0)


@dataclass
class KMeans:
    """The best of several K-means runs from k-means++ starts (greedy, as in scikit-learn).

    Plain K-means clusters the samples centred on their mean; `normalise` divides each by its norm
    instead and assigns by the cosine to a domain's mean direction (spherical K-means). At most one
    domain for `samples_per_domain` samples. The same samples in another order give the same
    domains: random draws depend on the samples' values, not on their places. Rows that are not
    finite do not count in centroids and get label 0; zero rows do not count in spherical K-means.
    An empty domain restarts at the farthest sample.
    """

    num_domains: int
    normalise: bool = False
    restarts: int = 16
    seed: int = 0
    samples_per_domain: int = 1
    iterations: int = ITERATIONS

    def __post_init__(self) -> None:
        for name in ("num_domains", "restarts", "samples_per_domain", "iterations"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")

    def __call__(self, point_BK: Tensor, step: int) -> Tensor:
        """The domain of each point."""
        return self.cluster(point_BK, self._generator(step, point_BK.device)).label_B

    def cluster(self, point_BK: Tensor, generator: torch.Generator) -> Clustering:
        dtype = torch.promote_types(point_BK.dtype, torch.float32)
        num_domains = self._number(len(point_BK))
        batch = _sorted_space(point_BK.detach(), self.normalise)
        race_MRLB = races(len(point_BK), num_domains, self.restarts, generator)
        label_RB, inertia_R = _restarted(batch.space, race_MRLB, self.iterations)
        best_1, back_B = inertia_R.argmin(keepdim=True), batch.order_B.argsort()
        label_B = label_RB.index_select(0, best_1)[0, back_B]
        label_B = _by_size(label_B, batch.finite_B[back_B] > 0, num_domains)
        return Clustering(label_B, inertia_R.amin().to(dtype))

    def domains(self, sketch_BK: Tensor, step: int) -> Domains:
        """`partition` by the labels of `__call__`; on a GPU by a few launches."""
        if not usable(sketch_BK, len(sketch_BK), self.num_domains):
            return partition(sketch_BK, self(sketch_BK, step), self.num_domains)
        from dograph.kernels.gram import sorted_space
        from dograph.kernels.partition import domains_by_kernel

        size, generator = len(sketch_BK), self._generator(step, sketch_BK.device)
        if size <= IN_REGISTERS:
            batch = sorted_space(sketch_BK.detach(), self.normalise, SAME, RATIO)
        else:
            batch = _sorted_space(sketch_BK.detach(), self.normalise)
        race_MRLB = races(size, self._number(size), self.restarts, generator)
        label_RB, inertia_R = _restarted(batch.space, race_MRLB, self.iterations)
        dtype = torch.promote_types(sketch_BK.dtype, torch.float32)
        return domains_by_kernel(batch, label_RB, inertia_R, self.num_domains, dtype)

    def centroids(self, point_BK: Tensor, label_B: Tensor) -> Tensor:
        """Means of the domains in the space that was clustered: of directions if `normalise`."""
        if self.normalise:
            point_BK = F.normalize(point_BK, eps=SMALLEST_NORM)
        return domain_means(point_BK, label_B, self.num_domains)

    def _number(self, num_samples: int) -> int:
        """Domains of so many samples."""
        assert num_samples > 0, "a batch has samples"
        return min(self.num_domains, max(num_samples // self.samples_per_domain, 1))

    def _generator(self, step: int, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(key64(self.seed, "kmeans", step) >> 1)


def domain_means(point_BK: Tensor, label_B: Tensor, num_domains: int) -> Tensor:
    """The mean of each domain's points; infinite for an empty one, so that no point is near it."""
    member_BM = (label_B[:, None] == torch.arange(num_domains, device=label_B.device)).to(point_BK)
    count_M = member_BM.sum(dim=0)
    mean_MK = member_BM.T @ point_BK / count_M.clamp_min(1)[:, None]
    return torch.where(count_M[:, None] > 0, mean_MK, torch.inf)
