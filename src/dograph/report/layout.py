"""Where the nodes of a domain graph are drawn.

Shapes: M nodes.
"""

import numpy as np

ROUNDS = 60  # of pushing apart nodes that overlap


def spread_out(distance_MM: np.ndarray) -> np.ndarray:
    """Places in the plane whose distances are near the given ones (classical scaling)."""
    num = len(distance_MM)
    if num == 0:
        return np.zeros((0, 2))
    centre_MM = np.eye(num) - 1 / num
    value_M, vector_MM = np.linalg.eigh(-0.5 * centre_MM @ distance_MM**2 @ centre_MM)
    top = np.argsort(value_M)[::-1][:2]
    place_M2 = vector_MM[:, top] * np.sqrt(np.maximum(value_M[top], 0))
    if place_M2.shape[1] < 2:
        place_M2 = np.column_stack([place_M2, np.zeros(num)])
    largest = np.abs(place_M2).max()
    if largest == 0:
        angle_M = 2 * np.pi * np.arange(num) / num
        return np.column_stack([np.cos(angle_M), np.sin(angle_M)]) * (num > 1)
    return np.asarray(place_M2 / largest)


def turn_to(place_M2: np.ndarray, like_M2: np.ndarray) -> np.ndarray:
    """The turn or mirror image (2 x 2) that brings a picture nearest another (Procrustes)."""
    left, _, right = np.linalg.svd(place_M2.T @ like_M2)
    return np.asarray(left @ right)


def pushed_apart(place_M2: np.ndarray, radius_M: np.ndarray) -> np.ndarray:
    """Move nodes that overlap away from each other, as little as it takes."""
    place_M2, num = place_M2.copy(), len(place_M2)
    for _ in range(ROUNDS):
        moved = False
        for i in range(num):
            for j in range(i + 1, num):
                apart = place_M2[j] - place_M2[i]
                length = float(np.hypot(*apart))
                lacking = radius_M[i] + radius_M[j] - length
                if lacking <= 1e-6:
                    continue
                angle = 2.4 * (i + num * j)  # alike places part in fixed, differing directions
                way = apart / length if length > 1e-9 else np.array([np.cos(angle), np.sin(angle)])
                place_M2[i] -= way * lacking / 2
                place_M2[j] += way * lacking / 2
                moved = True
        if not moved:
            break
    return place_M2
