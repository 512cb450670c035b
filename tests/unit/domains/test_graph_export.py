"""The domain graph against the samples it is made of, and its JSON read back."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from dograph.domains.graph import DomainGraph, build_graph
from dograph.domains.partition import partition

SOURCES = ["C4", "Book", "none"]


@pytest.fixture
def sample():
    generator = torch.Generator().manual_seed(0)
    sketch_BK = torch.randn(30, 8, generator=generator) + 0.5
    label_B = torch.randint(3, (30,), generator=generator) + (torch.arange(30) % 7 == 0) * 1
    label_B[label_B == 1] = 4  # domain 1 is empty
    source_B = torch.randint(2, (30,), generator=generator)
    return sketch_BK, label_B, source_B


@pytest.mark.parametrize("order", [None, [4, 0, 3, 1, 2]])
def test_nodes_and_edges_are_those_of_the_samples(sample, order):
    sketch_BK, label_B, source_B = sample
    weight_M = torch.tensor([0.3, 0.0, 0.2, 0.1, 0.4])
    order_M = None if order is None else torch.tensor(order)
    graph = build_graph(
        partition(sketch_BK, label_B, 5), weight_M, label_B, source_B, SOURCES,
        step=7, order_M=order_M,
    )  # fmt: skip
    order = order or list(range(5))
    points = {
        place: sketch_BK[label_B == domain].double().numpy()
        for place, domain in enumerate(order)
        if (label_B == domain).any()
    }
    assert graph.step == 7
    assert [node.domain for node in graph.nodes] == list(points)
    for node in graph.nodes:
        point = points[node.domain]
        mean = point.mean(axis=0)
        domain = order[node.domain]
        assert node.share == pytest.approx(len(point) / 30)
        assert node.weight == pytest.approx(float(weight_M[domain]))
        assert node.norm == pytest.approx(np.linalg.norm(mean), rel=1e-5)
        squares = (point**2).sum(axis=1)
        assert node.gradient_norm == pytest.approx(squares.mean() ** 0.5, rel=1e-5)
        assert node.spread == pytest.approx(((point - mean) ** 2).sum(axis=1).mean(), rel=1e-4)
        counts = np.bincount(source_B[label_B == domain].numpy(), minlength=3)
        expected = {s: int(n) for s, n in zip(SOURCES, counts, strict=True) if n}
        assert (node.sources, node.samples) == (expected, len(point))
    pairs = {(e.first, e.second): e for e in graph.edges}
    assert set(pairs) == {(j, k) for j in points for k in points if j < k}
    for (j, k), edge in pairs.items():
        a, b = points[j].mean(axis=0), points[k].mean(axis=0)
        assert edge.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-5)
        assert edge.mmd_squared == pytest.approx(((a - b) ** 2).sum(), rel=1e-4)


def test_without_weights_there_are_none(sample):
    sketch_BK, label_B, source_B = sample
    graph = build_graph(partition(sketch_BK, label_B, 5), None, label_B, source_B, SOURCES, step=0)
    assert {node.weight for node in graph.nodes} == {None}
    assert TypeAdapter(DomainGraph).validate_json(json.dumps(asdict(graph))) == graph
