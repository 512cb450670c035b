"""The domain graph: nodes are domains, edges have the cosine of their mean gradients.

Its files:

    .json      a line of graph.jsonl
    .graphml   for Gephi, yEd, Cytoscape, networkx

Shapes: M domains, N samples whose domain and source are known.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.files import write_text
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


_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIGURES = ("share", "weight", "norm", "gradient_norm", "spread")


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


def write_graph(graph: DomainGraph, path: Path, words: Mapping[int, str] | None = None) -> None:
    """Write the graph in the format of the file's extension; `words` are part of the labels."""
    if path.suffix not in (".json", ".graphml"):
        raise ConfigError(
            f"{path}: a graph is written as one of .json, .graphml; use one of these extensions"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist; make it first")
    as_json = json.dumps(asdict(graph), indent=2, ensure_ascii=False) + "\n"
    write_text(path, as_json if path.suffix == ".json" else to_graphml(graph, words))


def to_graphml(graph: DomainGraph, words: Mapping[int, str] | None = None) -> str:
    """GraphML with every number as an attribute, and one attribute `source: NAME` per source.

    A label is the domain's number, its telling words, and its two largest sources.
    """
    import networkx  # it comes with torch

    drawn = networkx.Graph(id=f"step-{graph.step}")
    for node in graph.nodes:
        largest = sorted(node.sources.items(), key=lambda pair: (-pair[1], pair[0]))[:2]
        text = ", ".join(f"{name} {100 * count / node.samples:.0f} %" for name, count in largest)
        said = "; ".join(part for part in ((words or {}).get(node.domain), text) if part)
        label = f"domain {node.domain}" + (f": {said}" if said else "")
        values: dict[str, object] = {"label": _xml(label), "samples": node.samples}
        values |= {name: value for name, value in asdict(node).items() if name in _FIGURES}
        values |= {f"source: {name}": count for name, count in node.sources.items()}
        known = {_xml(name): value for name, value in values.items() if value is not None}
        drawn.add_node(f"n{node.domain}", **known)
    for edge in graph.edges:
        values = {"cosine": edge.cosine, "mmd_squared": edge.mmd_squared}
        drawn.add_edge(f"n{edge.first}", f"n{edge.second}", **values)
    text = "\n".join(networkx.generate_graphml(drawn))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _xml(text: str) -> str:
    """Replace characters that XML cannot hold, escaped or not."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
