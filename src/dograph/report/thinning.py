"""Fewer points that show the same: extremes are kept, and smoothing sees every point.

Shapes: N points, b buckets.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SMOOTHED_SHARE = 50  # the running mean is over a fiftieth of the points
DIGITS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """Points of a line."""

    x: list[int]
    y: list[float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over steps: thinned, and smoothed where there are points enough."""

    raw: Line
    smooth: Line | None
    points: int  # before thinning
    window: int  # points of the running mean; 1 where nothing is smoothed


def rounded(values: np.ndarray, digits: int = DIGITS) -> list[float]:
    """Numbers with few digits, which is what a picture can show; a page of them is small."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def thin(step_N: np.ndarray, value_N: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last point, and the least and largest of each of `buckets` runs of points.

    So no spike is lost and none is made up: every point that is kept is one that was measured.
    """
    num = len(value_N)
    if num <= 2 * buckets + 2:
        return step_N, value_N
    edges = np.linspace(0, num, buckets + 1).round().astype(np.int64)
    kept = {0, num - 1}
    for low, high in pairwise(edges):
        part = value_N[low:high]
        kept |= {int(low + part.argmin()), int(low + part.argmax())}
    index = np.array(sorted(kept))
    return step_N[index], value_N[index]


def running_mean(value_N: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` points (an odd number) around each one.

    At the beginning, where losses fall steeply, the window narrows to what lies on either side. At
    the end it is the straight line through the last `window` points, which joins on to the means:
    narrowing would make the last value that of one noisy step. Straight lines stay straight.
    """
    num, half = len(value_N), window // 2
    half_N = np.minimum(np.minimum(np.arange(num), np.arange(num)[::-1]), half)
    total = np.concatenate([[0.0], np.cumsum(value_N, dtype=np.float64)])
    index_N = np.arange(num)
    mean_N: np.ndarray = (total[index_N + half_N + 1] - total[index_N - half_N]) / (2 * half_N + 1)
    if half and num >= window:
        last = value_N[-window:].astype(np.float64)
        place = np.arange(window) - half
        slope = float(place @ last) / float(place @ place)
        mean_N[num - half :] = last.mean() + slope * place[half + 1 :]
    return mean_N


def curve(step_N: np.ndarray, value_N: np.ndarray, buckets: int, *, smooth: bool = True) -> Curve:
    """What a page shows of one quantity."""
    steps, values = thin(step_N, value_N, buckets)
    raw = Line(steps.tolist(), rounded(values))
    num = len(value_N)
    window = max(1, 2 * (num // SMOOTHED_SHARE // 2) + 1)
    if not smooth or window < 3:
        return Curve(raw, None, num, 1)
    mean_N = running_mean(value_N, window)
    at = np.unique(np.linspace(0, num - 1, min(num, buckets)).round().astype(np.int64))
    return Curve(raw, Line(step_N[at].tolist(), rounded(mean_N[at])), num, window)
