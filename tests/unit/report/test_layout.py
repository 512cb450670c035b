"""Places of a graph's nodes."""

import numpy as np
import pytest

from dograph.report.domains import placed, pushed_apart, spread_out, turn_to


def distances(place_M2):
    return np.linalg.norm(place_M2[:, None] - place_M2[None], axis=-1)


def test_distances_of_a_plane_are_kept_up_to_scale():
    place_M2 = np.random.default_rng(0).standard_normal((6, 2))
    found = distances(spread_out(distances(place_M2)))
    expected = distances(place_M2)
    np.testing.assert_allclose(found / found.max(), expected / expected.max(), atol=1e-9)


@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_nodes_without_distances_have_places(num):
    found = spread_out(np.zeros((num, num)))
    assert found.shape == (num, 2)
    assert np.isfinite(found).all()


def test_turning_undoes_a_turn():
    rng = np.random.default_rng(1)
    place_M2 = rng.standard_normal((5, 2))
    turn = np.array([[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]])
    mirrored = place_M2 @ turn * np.array([1, -1])
    np.testing.assert_allclose(mirrored @ turn_to(mirrored, place_M2), place_M2, atol=1e-9)


def test_no_node_covers_another():
    place_M2 = np.zeros((6, 2))
    apart = distances(pushed_apart(place_M2, np.full(6, 0.2)))
    assert apart[~np.eye(6, dtype=bool)].min() > 0.39


def test_a_picture_that_does_not_change_does_not_turn():
    nodes = [{"domain": j, "share": 0.01, "weight": 0.01} for j in range(4)]
    edges = [
        {"first": i, "second": j, "cosine": 0.0, "mmd_squared": float(i + 2 * j)}
        for i in range(4)
        for j in range(i + 1, 4)
    ]
    first, second = placed([{"step": k, "nodes": nodes, "edges": edges} for k in (1, 2)])
    assert first.nodes == second.nodes
