"""The domain graph: nodes are domains, edges have the cosine of their mean gradients.

Shapes: M domains, N samples whose domain and source are known.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from dograph.types import Domains


def cosine(gram_MM: Tensor) -> Tensor:
    """Cosines between domain means: G_jl / sqrt(G_jj G_ll), 0 where a mean is zero."""
    norm_M = gram_MM.diagonal().clamp_min(0).sqrt()
    norm_MM = norm_M[:, None] * norm_M
    cosine_MM = gram_MM / torch.where(norm_MM == 0, 1.0, norm_MM)
    return torch.where(norm_MM == 0, 0.0, cosine_MM.clamp(-1, 1))


def adjacency(gram_MM: Tensor) -> Tensor:
    """Edge weights A_jl = max(cos(mean_j, mean_l), 0), none from a domain to itself."""
    cosine_MM = cosine(gram_MM).clamp_min(0)
    return cosine_MM - torch.diag(cosine_MM.diagonal())


def laplacian(adjacency_MM: Tensor) -> Tensor:
    """L = diag(A 1) - A, so that w'Lw is the sum over edges of A_jl (w_j - w_l)^2."""
    return torch.diag(adjacency_MM.sum(dim=1)) - adjacency_MM


def mmd_squared(gram_MM: Tensor) -> Tensor:
    """Squared distances between domain means, G_jj + G_ll - 2 G_jl.

    The squared maximum mean discrepancy (MMD) under the linear kernel on gradients (Theorem 1).
    """
    square_M = gram_MM.diagonal()
    return (square_M[:, None] + square_M - 2 * gram_MM).clamp_min(0)


@dataclass(frozen=True, slots=True)
class Node:
    """A domain."""

    domain: int
    share: float  # of the samples
    weight: float | None  # by the objective; None without weights
    norm: float  # of its mean gradient
    gradient_norm: float  # root of the mean squared gradient norm of its samples
    spread: float  # mean squared distance of its samples to their mean
    samples: int  # that `sources` is counted over
    sources: dict[str, int]


@dataclass(frozen=True, slots=True)
class Edge:
    """Two domains: the cosine of their mean gradients, and the squared distance (Theorem 1)."""

    first: int
    second: int
    cosine: float
    mmd_squared: float


@dataclass(frozen=True, slots=True)
class DomainGraph:
    """Domains that have samples, and every pair of them."""

    step: int
    nodes: list[Node]
    edges: list[Edge]


def build_graph(
    domains: Domains,
    weight_M: Tensor | None,
    label_N: Tensor,
    source_N: Tensor,
    sources: Sequence[str],
    *,
    step: int,
    order_M: Tensor | None = None,
) -> DomainGraph:
    """The graph of `domains`; `order_M`: which of them is number 0, 1 and so on.

    Sources are counted over the N samples.
    """
    num, device = len(domains.share_M), domains.share_M.device
    order_M = torch.arange(num, device=device) if order_M is None else order_M
    number_N = order_M.argsort()[label_N.to(device)]
    count = Counter(zip(number_N.tolist(), source_N.tolist(), strict=True))
    named = list(enumerate(sources))
    known = [{name: count[j, s] for s, name in named if count[j, s]} for j in range(num)]
    own = (domains.share_M, domains.square_M, domains.spread_M)
    share, square, spread = (value_M.double()[order_M].tolist() for value_M in own)
    weight = [None] * num if weight_M is None else weight_M.double()[order_M].tolist()
    gram_MM = domains.gram_MM.double()[order_M][:, order_M]
    cosines, distances = cosine(gram_MM).tolist(), mmd_squared(gram_MM).tolist()
    mean_square = gram_MM.diagonal().tolist()
    present = [j for j in range(num) if share[j] > 0]
    nodes = [
        Node(
            domain=j,
            share=share[j],
            weight=weight[j],
            norm=max(mean_square[j], 0.0) ** 0.5,
            gradient_norm=max(square[j], 0.0) ** 0.5,
            spread=spread[j],
            samples=sum(known[j].values()),
            sources=known[j],
        )
        for j in present
    ]
    pairs = combinations(present, 2)
    return DomainGraph(step, nodes, [Edge(j, k, cosines[j][k], distances[j][k]) for j, k in pairs])
