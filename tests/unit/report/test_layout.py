"""Places of a graph's nodes."""

import itertools

import numpy as np
import pytest

from dograph.report.domains import classical_scaling, move_apart, place_graph


def distances(place_M2):
    return np.linalg.norm(place_M2[:, None] - place_M2[None], axis=-1)


def test_distances_of_a_plane_are_kept_up_to_scale():
    place_M2 = np.random.default_rng(0).standard_normal((6, 2))
    found = distances(classical_scaling(distances(place_M2)))
    expected = distances(place_M2)
    np.testing.assert_allclose(found / found.max(), expected / expected.max(), atol=1e-9)


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_nodes_without_distances_have_places(num):
    found = classical_scaling(np.zeros((num, num)))
    assert found.shape == (num, 2)
    assert np.isfinite(found).all()


def test_no_node_covers_another():
    place_M2 = np.zeros((6, 2))
    apart = distances(move_apart(place_M2, np.full(6, 0.2)))
    assert apart[~np.eye(6, dtype=bool)].min() > 0.39


def placed(graphs):
    """Each one towards the one before."""
    places = {}
    return [place_graph(graph, places) for graph in graphs]


def test_a_picture_that_does_not_change_does_not_turn():
    nodes = [{"domain": j, "share": 0.01, "weight": 0.01} for j in range(4)]
    edges = [
        {"first": i, "second": j, "cosine": 0.0, "mmd_squared": float(i + 2 * j)}
        for i in range(4)
        for j in range(i + 1, 4)
    ]
    first, second = placed([{"step": k, "nodes": nodes, "edges": edges} for k in (1, 2)])
    assert first.nodes == second.nodes


@pytest.mark.parametrize(("change", "moved"), [(0.0, 1e-9), (0.01, 0.1)])
def test_a_graph_is_turned_and_mirrored_towards_the_one_before(change, moved):
    """Listed in another order the picture is the same; small changes move nodes a little."""
    rng = np.random.default_rng(1)
    place_M2 = rng.standard_normal((5, 2))
    graphs = []
    for step in range(1, 6):
        order = rng.permutation(5).tolist()
        place_M2 = place_M2 + change * rng.standard_normal((5, 2))
        distance_MM = distances(place_M2)
        nodes = [{"domain": j, "share": 1e-6, "weight": 1e-6} for j in order]
        edges = [
            {"first": i, "second": j, "cosine": 0.0, "mmd_squared": float(distance_MM[i, j] ** 2)}
            for i in range(5)
            for j in range(i + 1, 5)
        ]
        graphs.append({"step": step, "nodes": nodes, "edges": edges})
    places = [
        {node["domain"]: (node["x"], node["y"]) for node in graph.nodes} for graph in placed(graphs)
    ]
    for before, after in itertools.pairwise(places):
        for domain, place in after.items():
            assert np.hypot(*np.subtract(place, before[domain])) <= moved
